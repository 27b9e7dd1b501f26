"""Line charts as SVG text, drawn by hand so that a page needs no library and no network."""

from __future__ import annotations

import html
import math

from educe.observability.history import Series, smooth, visible_range
from educe.observability.terminal_text import format_number, printable

_WIDTH, _HEIGHT = 300, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 8, 18
_MAX_POINTS = 300


def thin(series: Series, max_points: int = _MAX_POINTS) -> Series:
    """Return at most ``max_points`` points: means of equal runs of neighbours."""
    if len(series) <= max_points:
        return series
    thinned = []
    for i in range(max_points):
        part = series[i * len(series) // max_points : (i + 1) * len(series) // max_points]
        thinned.append((part[-1][0], sum(v for _, v in part) / len(part)))
    return thinned


def curve_svg(
    title: str,
    series: Series,
    *,
    marks: tuple[int, ...] = (),
    limits: tuple[float, float] | None = None,
) -> str:
    """Return a ``<figure>`` with one curve, its smoothed line and marked steps.

    Points carry their step and value as a tooltip. Returns "" when nothing is finite.
    """
    points = thin([(s, v) for s, v in series if math.isfinite(v)])
    if not points:
        return ""
    values = [v for _, v in points]
    low, high = visible_range(values)
    if limits is not None and limits[0] <= min(values) and max(values) <= limits[1]:
        low, high = limits
    first, last = points[0][0], points[-1][0]

    def x(step: int) -> float:
        share = (step - first) / (last - first) if last > first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def path(line: Series) -> str:
        return " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in line)

    parts = [
        f'<text class="tick" x="{_LEFT - 4}" y="{y(v) + 3:.1f}" text-anchor="end">'
        f"{format_number(v)}</text>"
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        for v in (low, (low + high) / 2, high)
    ]
    ends = {first: "start", last: "end"} if last > first else {first: "middle"}
    parts += [
        f'<text class="tick" x="{x(s):.1f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{s}</text>'
        for s, anchor in ends.items()
    ]
    parts += [
        f'<line class="mark" x1="{x(s):.1f}" x2="{x(s):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        for s in marks
        if first <= s <= last
    ]
    parts.append(f'<polyline class="raw" points="{path(points)}"/>')
    if len(points) >= 10:
        means = smooth(values, max(3, len(values) // 10))
        line = [(s, m) for (s, _), m in zip(points, means, strict=True)]
        parts.append(f'<polyline class="mean" points="{path(line)}"/>')
    parts += [
        f'<circle class="{"dot" if len(points) == 1 else "hover"}" cx="{x(s):.1f}" '
        f'cy="{y(v):.1f}" r="3"><title>step {s}: {format_number(v)}</title></circle>'
        for s, v in points
    ]
    caption = html.escape(printable(title))
    now = format_number(values[-1])
    return (
        f"<figure><figcaption>{caption} <b>{now}</b></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{caption}">'
        f"{''.join(parts)}</svg></figure>"
    )
