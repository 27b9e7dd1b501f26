"""Curves of a run as one PNG: overall, then each domain's score (a heat map when they are many)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from educe.core.errors import EduceError
from educe.observability.history import History, Series, smooth, visible_range
from educe.observability.metric_names import HEADLINES
from educe.observability.run_reader import RunReader

_COLUMNS = 4
_MAX_PANELS = 24  # domains shown as curves; more become a heat map
_RAW, _SMOOTH, _ALARM = "#9ab8d6", "#1f5f99", "#c0392b"


@dataclass(frozen=True, slots=True)
class Curve:
    """One series to draw; ``alarm_steps`` are marked."""

    title: str
    series: Series
    alarm_steps: tuple[int, ...] = ()


def overall_curves(history: History, alarms: Sequence[tuple[str, int]] = ()) -> list[Curve]:
    """Return the headline curves of every stage, stage after stage.

    Args:
        alarms: (stage, step) of alarms to mark.
    """
    curves = []
    for stage in history.stages():
        steps = tuple(step for s, step in alarms if s == stage)
        for name in HEADLINES:
            series = [(s, v) for s, v in history.overall(stage, name) if math.isfinite(v)]
            if series:
                curves.append(Curve(f"{stage}: {name}", series, steps))
    return curves


def domain_curves(history: History) -> list[Curve]:
    """Return the score curve of every domain, of the last stage in which it has several points."""
    curves: dict[str, Curve] = {}
    for stage in history.stages():
        for domain in history.domains(stage):
            scores = history.domain(stage, domain, "score")
            series = [(s, v) for s, v in scores if math.isfinite(v)]
            if series and (len(series) > 1 or domain not in curves):
                curves[domain] = Curve(domain, series)
    return [curves[domain] for domain in sorted(curves)]


def alarm_marks(store: RunReader) -> list[tuple[str, int]]:
    """Return (stage, step) of the recorded alarms."""
    payloads = [event.payload for event in store.events("alarm")]
    return [(str(p.get("stage", "")), int(p["step"])) for p in payloads if "step" in p]


def plot_png(store: RunReader, path: str | Path) -> Path:
    """Draw the run into a PNG file; needs no display.

    Raises EduceError when the run has no metrics yet.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    history = History(store.metrics())
    overall = overall_curves(history, alarm_marks(store))
    domains = domain_curves(history)
    if not overall and not domains:
        raise EduceError(
            f"{store.folder} has no metrics to draw yet: expected rows like 'rl/reward'"
        )
    is_map = len(domains) > _MAX_PANELS
    num_top = math.ceil(len(overall) / _COLUMNS)
    num_bottom = 0 if is_map else math.ceil(len(domains) / _COLUMNS)
    map_height = 1.0 + 0.16 * len(domains) if is_map else 0.0
    curves_height = 2.1 * (num_top + num_bottom)
    figure = Figure(figsize=(14, 0.7 + curves_height + map_height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{store.name}: {store.info().status}", fontsize=13)
    heights = [h for h in (curves_height, map_height) if h]
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if curves_height:
        axes = parts[0].subplots(num_top + num_bottom, _COLUMNS, squeeze=False).ravel()
        for axis in axes:
            axis.set_visible(False)
        for axis, curve in zip(axes, overall, strict=False):
            _draw_curve(axis, curve)
        if not is_map:
            for axis, curve in zip(axes[num_top * _COLUMNS :], domains, strict=False):
                _draw_curve(axis, curve, limits=(-0.03, 1.03))
    if is_map:
        _draw_map(parts[-1], domains)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, format="png")
    return path


def _draw_curve(axis: Any, curve: Curve, limits: tuple[float, float] | None = None) -> None:
    axis.set_visible(True)
    steps = [step for step, _ in curve.series]
    values = [value for _, value in curve.series]
    # One point has no line to be seen by.
    axis.plot(steps, values, color=_RAW, linewidth=0.9, marker="o" if len(steps) == 1 else "")
    if len(values) >= 10:
        window = max(3, len(values) // 10)
        axis.plot(steps, smooth(values, window), color=_SMOOTH, linewidth=1.6)
    for step in curve.alarm_steps:
        axis.axvline(step, color=_ALARM, linewidth=0.8, linestyle="--")
    axis.set_title(_plain(curve.title), fontsize=9, loc="left")
    axis.xaxis.get_major_locator().set_params(integer=True)  # there is no half a step
    axis.tick_params(labelsize=7)
    axis.yaxis.get_offset_text().set_fontsize(7)
    axis.yaxis.get_major_formatter().set_useOffset(False)  # "+5.553" over small numbers misleads
    axis.grid(alpha=0.25)
    axis.margins(x=0.02)
    if limits is not None and all(limits[0] <= v <= limits[1] for v in values):
        axis.set_ylim(*limits)
    elif (shown := visible_range(values)) != (min(values), max(values)):
        axis.set_ylim(*shown)


def _draw_map(figure: Any, domains: Sequence[Curve]) -> None:
    """Domains as rows, sorted by how far their score moved; columns are bins of steps."""
    low = min(curve.series[0][0] for curve in domains)
    high = max(curve.series[-1][0] for curve in domains)
    num_bins = min(60, high - low + 1)
    rows = sorted((_binned(curve, low, high, num_bins) for curve in domains), key=lambda r: -r[1])
    axis = figure.subplots()
    image = axis.imshow(
        [row[2] for row in rows],
        aspect="auto",
        interpolation="nearest",
        cmap="viridis",
        vmin=0.0,
        vmax=1.0,
        extent=(low - 0.5, high + 0.5, len(rows) - 0.5, -0.5),
    )
    names = [f"{_plain(name)}  {change:+.2f}" for name, change, _ in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=6)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title("score of each domain by step, most improved first", fontsize=9, loc="left")
    figure.colorbar(image, ax=axis, fraction=0.02, pad=0.01)


def _binned(curve: Curve, low: int, high: int, num_bins: int) -> tuple[str, float, list[float]]:
    """Return (name, change from first to last fifth, mean of each bin; nan where it has none)."""
    sums, counts = [0.0] * num_bins, [0] * num_bins
    for step, value in curve.series:
        at = min(num_bins - 1, (step - low) * num_bins // (high - low + 1))
        sums[at] += value
        counts[at] += 1
    values = [value for _, value in curve.series]
    size = max(1, len(values) // 5)
    change = sum(values[-size:]) / size - sum(values[:size]) / size
    means = [s / n if n else math.nan for s, n in zip(sums, counts, strict=True)]
    return curve.title, change, means


def _plain(text: str) -> str:
    """Keep matplotlib from reading ``$`` in a name as mathematics."""
    return text.replace("$", r"\$")
