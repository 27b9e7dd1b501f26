"""A run's shares by domain over its steps, for tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from educe.core.errors import EduceError
from educe.observability.history import History, Series

_MAX_CURVES = 12
_ESTIMATES = ("level_estimate", "signal_estimate", "response_estimate", "cost_estimate")


@dataclass(frozen=True, slots=True)
class MixtureRow:
    """One domain's share in a stage.

    Attributes:
        by_weight: the share that its weight alone would give; None for runs that did not say.
        shares: (step, share) of every step.
        reason: number of the newest reason (see ``scheduling.controller``), None without one.
        estimates: what the newest share rests on.
    """

    domain: str
    by_weight: float | None
    shares: Series
    reason: int | None
    estimates: Mapping[str, float]

    @property
    def share(self) -> float:
        return self.shares[-1][1]


def mixture_rows(history: History, stage: str = "rl") -> list[MixtureRow]:
    """Return every domain with shares, the largest newest share first."""
    rows = []
    for domain in history.domains(stage):
        shares = history.domain(stage, domain, "share")
        if not shares:
            continue

        def newest(name: str, domain: str = domain) -> float | None:
            series = history.domain(stage, domain, name)
            return series[-1][1] if series else None

        reason = newest("share_reason")
        known = {name: newest(name) for name in _ESTIMATES}
        rows.append(
            MixtureRow(
                domain,
                newest("share_by_weight"),
                shares,
                None if reason is None else int(reason),
                {n.removesuffix("_estimate"): v for n, v in known.items() if v is not None},
            )
        )
    return sorted(rows, key=lambda row: (-row.share, row.domain))


def plot_mixture(rows: Sequence[MixtureRow], path: str | Path, title: str = "") -> Path:
    """Draw shares over steps: stacked for a few domains, a map of changes for many. Needs no
    display.

    Raises:
        EduceError: there is nothing to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if not rows:
        raise EduceError("the run has recorded no shares yet: expected 'domain/NAME/share'")
    is_map = len(rows) > _MAX_CURVES
    height = 1.2 + (0.16 * len(rows) if is_map else 5.0)
    figure = Figure(figsize=(12, height), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    steps = sorted({step for row in rows for step, _ in row.shares})
    if is_map:
        _draw_map(figure, axis, rows, steps)
    else:
        _draw_stack(axis, rows, steps)
    axis.set_xlabel("rollout batch")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(_plain(title), fontsize=12)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, format="png")
    return path


def _draw_stack(axis: Any, rows: Sequence[MixtureRow], steps: Sequence[int]) -> None:
    known = [dict(row.shares) for row in rows]
    values = [[shares.get(step, 0.0) for step in steps] for shares in known]
    labels = [_plain(row.domain) for row in rows]
    if len(steps) == 1:  # an area needs two points
        bottom = 0.0
        for (value,), label in zip(values, labels, strict=True):
            axis.bar([steps[0]], [value], bottom=bottom, label=label)
            bottom += value
    else:
        axis.stackplot(steps, values, labels=labels, linewidth=0)
    axis.set_ylim(0, 1)
    axis.set_ylabel("share of prompts")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_map(figure: Any, axis: Any, rows: Sequence[MixtureRow], steps: Sequence[int]) -> None:
    """Rows are domains, colour is the share over the one by weight, in doublings."""
    grid = []
    for row in rows:
        own = dict(row.shares)
        base = row.by_weight or 1.0 / len(rows)
        grid.append([math.log2(max(own[s], 1e-12) / base) if s in own else math.nan for s in steps])
    image = axis.imshow(
        grid,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r",
        vmin=-2.0,
        vmax=2.0,
        extent=(steps[0] - 0.5, steps[-1] + 0.5, len(rows) - 0.5, -0.5),
    )
    names = [f"{_plain(row.domain)}  {row.share:.2%}" for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=6)
    axis.set_title("share relative to the one by weight, in doublings", fontsize=9, loc="left")
    figure.colorbar(image, ax=axis, fraction=0.02, pad=0.01)


def _plain(text: str) -> str:
    """Keep matplotlib from reading ``$`` in a name as mathematics."""
    return text.replace("$", r"\$")
