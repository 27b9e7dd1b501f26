"""A run's matrix of cosines between domain gradients: as a table, a picture and a figure of a page.

Off the diagonal: +1 two domains pull the same way, -1 each undoes the other. On it: how far two
halves of one domain's groups agree, which is as much as any cosine with it can mean.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.observability.run_reader import RunReader
from educe.observability.terminal_text import format_number, printable

_CELL, _MAX_WRITTEN = 22, 12


@dataclass(frozen=True, slots=True)
class InterferenceView:
    """The newest measurement of a stage.

    Attributes:
        cosines, errors, corrected: by row and column, NaN where unknown.
        norms, weights: by name.
        num_measured: measurements that the run recorded.
    """

    stage: str
    step: int
    names: tuple[str, ...]
    cosines: tuple[tuple[float, ...], ...]
    errors: tuple[tuple[float, ...], ...]
    corrected: tuple[tuple[float, ...], ...]
    norms: tuple[float, ...]
    weights: tuple[float, ...]
    num_measured: int

    @staticmethod
    def from_event(payload: Mapping[str, JSON], num_measured: int) -> InterferenceView:
        return InterferenceView(
            str(payload["stage"]),
            int(payload["step"]),
            tuple(payload["names"]),
            tuple(_numbers(row) for row in payload["cosines"]),
            tuple(_numbers(row) for row in payload["errors"]),
            tuple(_numbers(row) for row in payload["corrected"]),
            _numbers(payload["norms"]),
            _numbers(payload["weights"]),
            num_measured,
        )

    def pairs(self) -> list[tuple[float, float, float, str, str]]:
        """Return (cosine, error, cosine without noise, one, other) of all known pairs, the worst
        conflict first."""
        count = len(self.names)
        known = [
            (
                self.cosines[i][j],
                self.errors[i][j],
                self.corrected[i][j],
                self.names[i],
                self.names[j],
            )
            for i in range(count)
            for j in range(i + 1, count)
            if math.isfinite(self.cosines[i][j])
        ]
        return sorted(known)

    def to_json(self) -> dict[str, JSON]:
        return {
            "stage": self.stage,
            "step": self.step,
            "measured": self.num_measured,
            "names": list(self.names),
            "cosines": [list(row) for row in self.cosines],
            "errors": [list(row) for row in self.errors],
            "corrected": [list(row) for row in self.corrected],
            "norms": list(self.norms),
            "weights": list(self.weights),
        }


def _numbers(row: Sequence[JSON]) -> tuple[float, ...]:
    return tuple(math.nan if v is None else float(v) for v in row)


def newest_interference(store: RunReader, stage: str = "") -> InterferenceView | None:
    """Return what a run measured last (of a stage, where one is named), None when it has not."""
    events = [
        e.payload for e in store.events("interference") if not stage or e.payload["stage"] == stage
    ]
    if not events:
        return None
    # A resumed run repeats steps; each counts once.
    steps = {(e["stage"], e["step"]) for e in events}
    return InterferenceView.from_event(events[-1], len(steps))


def interference_text(view: InterferenceView, limit: int = 5) -> str:
    """Return the strongest conflicts and helps as lines."""
    pairs = view.pairs()
    worst = [p for p in pairs if p[0] < 0][:limit]
    best = [p for p in reversed(pairs) if p[0] > 0][:limit]
    lines = [
        f"gradients of {len(view.names)} domains or clusters at step {view.step} "
        f"({view.num_measured} measurements)"
    ]
    for title, chosen in (("against each other", worst), ("with each other", best)):
        for cosine, error, corrected, one, other in chosen:
            noise = f" ± {error:.2f}" if math.isfinite(error) else ""
            is_sure = math.isfinite(error) and abs(cosine) > 2 * error
            doubt = "" if is_sure else "  (may be noise)"
            names = f"{printable(one)} / {printable(other)}"
            alone = f" ({corrected:+.2f} without noise)" if math.isfinite(corrected) else ""
            lines.append(f"  {title:<19} {cosine:+.2f}{noise}{alone}  {names}{doubt}")
    moved = [
        f"{printable(n)} x {w:.2f}"
        for n, w in zip(view.names, view.weights, strict=True)
        if abs(w - 1.0) > 0.01
    ]
    if moved:
        lines.append(f"  losses are weighted: {', '.join(moved[:8])}")
    return "\n".join(lines)


def plot_interference(view: InterferenceView, path: str | Path, title: str = "") -> Path:
    """Draw the matrix; needs no display.

    Raises:
        EduceError: no pair was ever measured together.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not view.names:
        raise EduceError("the run has measured no gradients: expected events 'interference'")
    count = len(view.names)
    size = 3.5 + 0.42 * count
    figure = Figure(figsize=(size + 1.2, size), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    image = axis.imshow(view.cosines, cmap="RdBu", vmin=-1.0, vmax=1.0, interpolation="nearest")
    names = [_plain(n) for n in view.names]
    axis.set_xticks(range(count), names, fontsize=7, rotation=90)
    axis.set_yticks(range(count), names, fontsize=7)
    if count <= _MAX_WRITTEN:
        for i in range(count):
            for j in range(count):
                if math.isfinite(view.cosines[i][j]):
                    axis.text(j, i, _cell_text(view, i, j), ha="center", va="center", fontsize=7)
    axis.set_title(
        "cosine of gradients; diagonal: agreement of a domain with itself", fontsize=8, loc="left"
    )
    figure.colorbar(image, ax=axis, fraction=0.04, pad=0.02)
    figure.suptitle(_plain(title), fontsize=11)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, format="png")
    return path


def _cell_text(view: InterferenceView, i: int, j: int) -> str:
    error = view.errors[i][j]
    noise = f"\n±{error:.2f}" if math.isfinite(error) and i != j else ""
    return f"{view.cosines[i][j]:+.2f}{noise}"


def interference_svg(view: InterferenceView) -> str:
    """Return the matrix as a ``<figure>``; each cell tells its pair and number as a tooltip."""
    count = len(view.names)
    left = 8 + 6 * max(len(n) for n in view.names)
    width, height = left + _CELL * count + 8, _CELL * count + 24
    cells = []
    for i, one in enumerate(view.names):
        y = _CELL * i
        cells.append(
            f'<text class="tick" x="{left - 4}" y="{y + 15}" text-anchor="end">{_text(one)}</text>'
        )
        cells.append(
            f'<text class="tick" x="{left + y + 11}" y="{_CELL * count + 14}" '
            f'text-anchor="middle">{i + 1}</text>'
        )
        for j, other in enumerate(view.names):
            value, error = view.cosines[i][j], view.errors[i][j]
            noise = f" ± {format_number(error)}" if math.isfinite(error) else ""
            told = f"{value:+.2f}{noise}" if math.isfinite(value) else "never measured together"
            pair = f"{one} with itself" if i == j else f"{one} / {other}"
            cells.append(
                f'<rect x="{left + _CELL * j}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" '
                f'fill="{_colour(value)}"><title>{_text(pair)}: {told}</title></rect>'
            )
    caption = f"cosines of gradients, step {view.step} (columns in the order of rows)"
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<svg viewBox="0 0 {width} {height}" style="max-width:{2 * width}px" role="img" '
        f'aria-label="{caption}">{"".join(cells)}</svg></figure>'
    )


def _colour(value: float) -> str:
    """White at 0, blue with each other, red against each other; grey is unknown."""
    if not math.isfinite(value):
        return "#c8ccd2"
    strength = min(1.0, abs(value)) ** 0.5  # small cosines are the usual ones
    other = round(255 * (1.0 - 0.8 * strength))
    return f"rgb({other},{other},255)" if value > 0 else f"rgb(255,{other},{other})"


def _text(text: str) -> str:
    return html.escape(printable(text))


def _plain(text: str) -> str:
    """Keep matplotlib from reading ``$`` in a name as mathematics."""
    return text.replace("$", r"\$")
