"""Interval charts as inline SVG: no script, no network, colours from the page's own variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

_ROW = 26
_TOP = 30
_LABEL = 250
_PLOT = 430
_RIGHT = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with an interval, in data units; ``style`` names a CSS class of the page."""

    value: float
    low: float
    high: float
    style: str
    title: str


def interval_chart(
    rows: Sequence[tuple[str, Sequence[Mark]]],
    *,
    low: float,
    high: float,
    unit: str,
    zero_line: bool = False,
) -> str:
    """Return an SVG with one row a label and its marks one under another.

    Values outside [low, high] are cut at the edge.
    """
    if not rows or high <= low:
        return ""
    height = _TOP + _ROW * len(rows) + 12
    width = _LABEL + _PLOT + _RIGHT

    def x(value: float) -> float:
        return _LABEL + _PLOT * (min(max(value, low), high) - low) / (high - low)

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" class="chart" '
        f'xmlns="http://www.w3.org/2000/svg">'
    ]
    parts += [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP - 6}" '
        f'y2="{height - 8}"/><text class="tick" x="{x(tick):.1f}" y="{_TOP - 12}">'
        f"{tick:g}{escape(unit)}</text>"
        for tick in ticks(low, high)
    ]
    if zero_line and low < 0 < high:
        parts.append(
            f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{_TOP - 6}" '
            f'y2="{height - 8}"/>'
        )
    for number, (label, marks) in enumerate(rows):
        middle = _TOP + _ROW * number + _ROW / 2
        shown = label if len(label) <= 38 else "…" + label[-37:]
        parts.append(
            f'<text class="label" x="{_LABEL - 10}" y="{middle + 4:.1f}">{escape(shown)}</text>'
        )
        for position, mark in enumerate(marks):
            y = middle + (position - (len(marks) - 1) / 2) * 8
            parts.append(_mark(mark, x(mark.low), x(mark.value), x(mark.high), y))
    return "".join(parts) + "</svg>"


def _mark(mark: Mark, left: float, centre: float, right: float, y: float) -> str:
    return (
        f'<g class="{escape(mark.style)}"><title>{escape(mark.title)}</title>'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle cx="{centre:.1f}" cy="{y:.1f}" r="3.6"/></g>'
    )


def sparkline(values: Sequence[float | None], *, width: int = 120, height: int = 22) -> str:
    """Return a small line of shares in [0, 1] over equal steps; missing values leave a gap."""
    step = (width - 8) / max(len(values) - 1, 1)
    points = [
        None if v is None else (4 + i * step, 4 + (height - 8) * (1 - min(max(v, 0.0), 1.0)))
        for i, v in enumerate(values)
    ]
    lines = [
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"/>'
        for a, b in pairwise(points)
        if a is not None and b is not None
    ]
    dots = [f'<circle cx="{p[0]:.1f}" cy="{p[1]:.1f}" r="2.2"/>' for p in points if p is not None]
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg"><g class="ma">{"".join(lines + dots)}</g></svg>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Return about five round positions within [low, high]."""
    import math

    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough - 1e-12)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) + 0.0 for i in range(first, last + 1)]
