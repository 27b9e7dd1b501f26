"""Where a step's time and memory go, against the floors of its matrix products.

A profile runs a recipe's RL stage for a few steps, times every phase of the main thread, and times
the matrix products that a phase cannot do without alone, at the same number of rows.
"""

from __future__ import annotations

import resource
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.config.loader import LoadedRecipe
from educe.observability.timing import Phase, Timeline

if TYPE_CHECKING:
    from educe.pipeline import StepInfo

OTHER = "everything else"
DECODING = ("decode", "decode with prefill")
READING = ("prefill",)
TRAINING = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """A phase a step: seconds, calls, rows or tokens a call, and the floor in seconds (or None)."""

    name: str
    seconds: float
    share: float
    calls: float
    mean_size: float
    floor_s: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured, over ``num_steps`` steps after a first one that warmed everything up.

    Attributes:
        step_s: wall seconds a step.
        phases: by cost.
        domains: seconds of rewards and replies a step that were waited for, by domain.
        completion_tokens, trained_tokens: a step.
        peak_gb: largest resident memory of the process.
        timeline: the phases of the measured steps, seconds from the first one's start.
    """

    name: str
    num_steps: int
    step_s: float
    phases: tuple[PhaseCost, ...]
    domains: dict[str, float]
    completion_tokens: float
    trained_tokens: float
    peak_gb: float
    timeline: tuple[Phase, ...] = field(repr=False, default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_steps": self.num_steps,
            "step_s": self.step_s,
            "completion_tokens": self.completion_tokens,
            "trained_tokens": self.trained_tokens,
            "peak_gb": self.peak_gb,
            "phases": [
                {
                    "name": p.name,
                    "seconds": p.seconds,
                    "share": p.share,
                    "calls": p.calls,
                    "mean_size": p.mean_size,
                    "floor_s": p.floor_s,
                }
                for p in self.phases
            ],
            "reward_s_by_domain": self.domains,
        }


def profile(
    loaded: LoadedRecipe,
    *,
    num_steps: int = 2,
    floors: bool = True,
    announce: Callable[[str], None] = print,
) -> Profile:
    """Profile a recipe's RL stage; the run itself is thrown away.

    Args:
        loaded: passed preflight; its stages and budgets are replaced.
        num_steps: measured steps, after one that is not.
        floors: whether to time the matrix products alone as well.
    """
    from educe.api import train_here
    from educe.core.stopping import StopSignal
    from educe.rollout.metering import MeteredScoring
    from educe.run_folder import prepare_folder

    timeline = Timeline()
    marks: list[tuple[float, dict[str, float]]] = []
    metered: list[dict[str, float]] = []

    def after_step(info: StepInfo) -> None:
        marks.append((timeline.now(), dict(info.metrics)))
        meter = getattr(info.session.scoring, "inner", None)
        metered.append(meter.drain() if isinstance(meter, MeteredScoring) else {})

    with tempfile.TemporaryDirectory(prefix="educe-profile-") as scratch:
        short = _shortened(loaded, num_steps + 1, scratch)
        folder, store = prepare_folder(short, resume=False)
        train_here(
            short,
            folder=folder,
            store=store,
            announce=announce,
            live=False,
            stop=StopSignal(),
            callbacks=[after_step],
            timeline=timeline,
        )
    begin, end = marks[0][0], marks[-1][0]
    inside = [
        Phase(p.name, p.begin - begin, p.end - begin, p.size)
        for p in timeline.phases
        if begin <= p.begin and p.end <= end
    ]
    measured = [metrics for _, metrics in marks[1:]]
    domains: dict[str, float] = defaultdict(float)
    for spent in metered[1:]:
        for name, seconds in spent.items():
            domains[name] += seconds / num_steps
    limits = _Floors(loaded) if floors else None
    return Profile(
        name=loaded.recipe.run.name,
        num_steps=num_steps,
        step_s=(end - begin) / num_steps,
        phases=_costs(inside, num_steps, end - begin, limits),
        domains=dict(sorted(domains.items(), key=lambda item: -item[1])),
        completion_tokens=_mean(measured, "rl/tokens"),
        trained_tokens=_mean(measured, "rl/trained_tokens"),
        peak_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        timeline=tuple(inside),
    )


def _shortened(loaded: LoadedRecipe, steps: int, out: str) -> LoadedRecipe:
    """Return the recipe with the RL stage alone, that many steps, in a folder of its own."""
    recipe = loaded.recipe
    changed = recipe.model_copy(
        update={
            "stages": ("rl",),
            "run": recipe.run.model_copy(update={"out": out, "sinks": (), "ranks": 1}),
            "rl": recipe.rl.model_copy(update={"steps": steps, "minutes": 0.0, "tokens": 0}),
            "goal": type(recipe.goal)(),
            "checkpoint": recipe.checkpoint.model_copy(
                update={"every_steps": 0, "every_minutes": 0.0}
            ),
        }
    )
    return LoadedRecipe(changed)


def _costs(
    phases: Sequence[Phase], num_steps: int, wall_s: float, floors: _Floors | None
) -> tuple[PhaseCost, ...]:
    by_name: dict[str, list[Phase]] = defaultdict(list)
    for phase in phases:
        by_name[phase.name].append(phase)
    costs = []
    for name, own in by_name.items():
        seconds = sum(p.end - p.begin for p in own)
        floor = None if floors is None else floors.of(name, [p.size for p in own])
        costs.append(
            PhaseCost(
                name,
                seconds / num_steps,
                seconds / wall_s,
                len(own) / num_steps,
                sum(p.size for p in own) / len(own),
                None if floor is None else floor / num_steps,
            )
        )
    rest = wall_s - sum(p.end - p.begin for p in phases)
    costs.append(PhaseCost(OTHER, rest / num_steps, rest / wall_s, 0, 0, None))
    return tuple(sorted(costs, key=lambda c: -c.seconds))


class _Floors:
    """Seconds that the matrix products of a phase need, measured once for each power of two."""

    def __init__(self, loaded: LoadedRecipe) -> None:
        from educe.models.load import find_folder

        recipe = loaded.recipe
        self._folder = find_folder(recipe.model.name, allow_hub=recipe.model.allow_hub)
        self._sampling = self._dtype(recipe.engine.dtype, recipe.model.dtype)
        self._training = self._dtype(recipe.model.compute_dtype, recipe.model.dtype)
        self._known: dict[tuple[str, int], float] = {}

    @staticmethod
    def _dtype(name: str, otherwise: str) -> Any:
        import torch

        return getattr(torch, otherwise if name == "auto" else name)

    def of(self, name: str, sizes: Sequence[int]) -> float | None:
        """Return the floor of all calls of a phase; None where there is no product in it."""
        if name not in (*DECODING, *READING, *TRAINING):
            return None
        return sum(self._one(name, size) for size in sizes if size)

    def _one(self, name: str, size: int) -> float:
        """Interpolate between the powers of two around a size."""
        below = 1 << (size.bit_length() - 1)
        low = self._at(name, below)
        if below == size:
            return low
        high = self._at(name, 2 * below)
        return low + (high - low) * (size - below) / below

    def _at(self, name: str, size: int) -> float:
        from educe.floor import decode_floor, training_floor

        kind = "train" if name in TRAINING else "sample"
        key = (kind, size)
        if key not in self._known:
            if kind == "sample":
                found = decode_floor(self._folder, size, self._sampling, 0)["products_s"]
            else:
                found = training_floor(self._folder, size, size, self._training)["seconds"]
            self._known[key] = found
        whole = self._known[key]
        # Forward is one product of three; input and weight gradients are the others.
        return {"forward": whole / 3, "backward": whole * 2 / 3}.get(name, whole)


def _mean(rows: Sequence[dict[str, float]], key: str) -> float:
    values = [row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else 0.0


def draw_timeline(found: Profile, path: Path) -> None:
    """Write a picture: a band of time for each step phase, the costliest at the top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [p.name for p in found.phases if p.name != OTHER]
    figure, axes = pyplot.subplots(figsize=(12, 0.5 * len(names) + 1.5))
    for row, name in enumerate(names):
        bars = [(p.begin, p.end - p.begin) for p in found.timeline if p.name == name]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=f"C{row % 10}")
    labels = {p.name: f"{p.name}  {p.share:.0%}" for p in found.phases}
    axes.set_yticks(range(len(names)), [labels[n] for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(f"{found.name}: {found.num_steps} steps, {found.step_s:.1f} s each")
    for step in range(1, found.num_steps):
        axes.axvline(step * found.step_s, color="grey", linewidth=0.5, linestyle=":")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
