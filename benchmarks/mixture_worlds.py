"""The prior over worlds of the mixture simulator: what learners, domains, costs and rewards may be.

This file was committed before any setting of a controller was chosen with it, and is not to be
tuned: a change of the prior is a new prior, with new numbers. Worlds are drawn from counted seeds;
those for choosing settings (``tune``) and those for proof (``test``) never meet.

A learner is one logit ``theta`` a domain; a task adds its own difficulty; success has a chance
level and a ceiling. A group of G completions teaches in proportion to the spread of its rewards (a
group that is all right or all wrong teaches nothing), times the domain's own speed; what it teaches
leaks to the domain's family and, weakly and with either sign, to other families. Ranges follow what
was seen in small runs: most domains start near 0 or in the middle, some are solved, gains over a
run are 5 to 30 points, lengths and costs of domains differ by a factor of ten or more.

Shapes: W worlds, D domains (padded; ``is_real``), F families.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from educe.core.seeds import numpy_random

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Share of each kind of world. ``alike`` is the one in which uniform shares are the best ones.
KINDS = {
    "plain": 0.30,
    "alike": 0.10,
    "no_transfer": 0.10,
    "drift": 0.10,
    "lying": 0.10,
    "dead": 0.10,
    "unequal_cost": 0.10,
    "interference": 0.10,
}
GROUP_SIZE = 8


@dataclass(slots=True)
class Worlds:
    """W worlds. Arrays are (W, D) unless said otherwise; padding has ``is_real`` false.

    Attributes:
        kind: (W,) names from ``KINDS``.
        start: logits at the start.
        floor: chance level.
        ceiling: success above chance that can be reached, 0 for a dead domain.
        speed: what a group with full spread adds to the logit, before transfer.
        task_spread: standard deviation of task difficulty, logits.
        flips: share of rewards replaced by a coin.
        truth: what a step on the observed reward does to the real skill: 1 honest, <= 0 lying.
        tokens: mean tokens of a completion.
        cost: mean seconds of a completion, everything counted.
        size: tasks in the data set (for size-proportional shares).
        family: index of the family.
        leak: (W, F, F) what a family's lessons do to each member of another (or the same) family.
        decay: logits lost a step while others are trained.
        shift_at, shift: the step (as a share of the run) and size of a change of the task stream.
        jitter: (W,) random walk of every logit, a step.
        normalise: (W,) how far the optimizer makes up for batches with little signal, in [0, 0.5].
        prompts: (W,) prompts of a run with uniform shares.
        batch: (W,) prompts a batch.
    """

    kind: NDArray[np.str_]
    is_real: NDArray[np.bool_]
    start: Floats
    floor: Floats
    ceiling: Floats
    speed: Floats
    task_spread: Floats
    flips: Floats
    truth: Floats
    tokens: Floats
    cost: Floats
    size: Floats
    family: Ints
    leak: Floats
    decay: Floats
    shift_at: Floats
    shift: Floats
    jitter: Floats
    normalise: Floats
    prompts: Ints
    batch: Ints


def draw_worlds(split: str, count: int, first: int = 0) -> list[Worlds]:
    """Return ``count`` worlds of a split, in stacks of equal batch size (each sorted by size)."""
    single = [draw_world(split, first + i) for i in range(count)]
    stacks = []
    for batch in sorted({int(w.batch[0]) for w in single}):
        members = sorted((w for w in single if w.batch[0] == batch), key=lambda w: w.start.shape[1])
        stacks += [stack(members[i : i + 64]) for i in range(0, len(members), 64)]
    return stacks


def draw_world(split: str, index: int) -> Worlds:
    """Return world ``index`` of a split, W = 1."""
    rng = numpy_random("mixture world", split, index)
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    num_domains = round(float(np.exp(rng.uniform(np.log(50), np.log(500)))))
    num_families = max(4, round(num_domains / rng.uniform(3, 10)))
    family = np.sort(rng.integers(0, num_families, num_domains))
    shape = (1, num_domains)
    speed_of_run = np.exp(rng.normal(np.log(0.06), 0.4))

    def by_family(scale: float, own: float) -> Floats:
        shared = rng.normal(0.0, scale, num_families)[family]
        return (shared + rng.normal(0.0, own, num_domains)).reshape(shape)

    world = Worlds(
        kind=np.array([kind]),
        is_real=np.ones(shape, dtype=bool),
        start=_starts(rng, family, num_families).reshape(shape),
        floor=np.where(rng.random(shape) < 0.7, 0.0, rng.uniform(0.02, 0.5, shape)),
        ceiling=rng.beta(8, 2, shape),
        speed=speed_of_run * np.exp(by_family(0.6, 0.4)),
        task_spread=rng.uniform(0.5, 2.0, shape),
        flips=np.where(rng.random(shape) < 0.9, 0.0, rng.uniform(0.05, 0.2, shape)),
        truth=np.ones(shape),
        tokens=60.0 * np.exp(by_family(0.7, 0.3)),
        cost=np.zeros(shape),
        size=np.exp(rng.normal(np.log(2000), 1.2, shape)),
        family=family.reshape(shape),
        leak=np.zeros((1, num_families, num_families)),
        decay=np.full(shape, rng.uniform(0.0, 0.0005)),
        shift_at=np.full(shape, 2.0),
        shift=np.zeros(shape),
        jitter=np.array([rng.uniform(0.0, 0.01)]),
        normalise=np.array([rng.uniform(0.0, 0.5)]),
        prompts=np.array([round(num_domains * float(np.exp(rng.uniform(np.log(15), np.log(80)))))]),
        batch=np.array([32 if num_domains < 100 else 64 if num_domains < 250 else 128]),
    )
    overhead = np.exp(by_family(0.4, 0.2)) * rng.uniform(0.0, 0.5)
    world.cost = world.tokens / 60.0 + overhead
    world.leak = _leak(rng, family, num_families, help_=(0.0, 1.0), cross=0.3, share_bad=0.3)
    _make_dead(rng, world, rng.uniform(0.0, 0.2))
    _KIND_CHANGES.get(kind, lambda *_: None)(rng, world)
    return world


def _starts(rng: np.random.Generator, family: Ints, num_families: int) -> Floats:
    """Hard, middling and solved domains, alike within families."""
    centre = rng.choice([-3.0, -0.7, 2.5], size=num_families, p=[0.4, 0.4, 0.2])
    return np.asarray(centre[family] + rng.normal(0.0, 0.8, len(family)))


def _leak(
    rng: np.random.Generator,
    family: Ints,
    num_families: int,
    *,
    help_: tuple[float, float],
    cross: float,
    share_bad: float,
) -> Floats:
    """Within a family all lessons together teach ``help_`` of what they teach at home."""
    sizes = np.maximum(1, np.bincount(family, minlength=num_families))
    sign = np.where(rng.random((num_families, num_families)) < share_bad, -1.0, 1.0)
    is_linked = rng.random((num_families, num_families)) < 0.15
    leak = cross * sign * is_linked * rng.random((num_families, num_families)) / sizes
    leak[np.diag_indices(num_families)] = rng.uniform(*help_) / sizes
    return leak[np.newaxis]


def _make_dead(rng: np.random.Generator, world: Worlds, share: float) -> None:
    """Half of the dead never succeed; the other half succeed at some rate and never learn."""
    is_dead = rng.random(world.start.shape) < share
    is_mute = rng.random(world.start.shape) < 0.5
    world.ceiling = np.where(is_dead & is_mute, 0.0, world.ceiling)
    world.floor = np.where(is_dead & is_mute, 0.0, world.floor)
    world.speed = np.where(is_dead & ~is_mute, 0.0, world.speed)


def _alike(rng: np.random.Generator, world: Worlds) -> None:
    """Every domain the same, past the middle of its curve, so returns fall from the first lesson:
    uniform shares are the best ones."""
    shape = world.start.shape
    world.start = np.full(shape, rng.uniform(0.0, 1.0))
    world.floor = np.zeros(shape)
    world.ceiling = np.ones(shape)
    world.speed = np.full(shape, float(np.median(world.speed[world.speed > 0])))
    world.task_spread = np.full(shape, 1.0)
    world.flips = np.zeros(shape)
    world.tokens = np.full(shape, 60.0)
    world.cost = np.full(shape, 1.2)
    world.leak = np.zeros_like(world.leak)
    world.decay = np.zeros(shape)


def _no_transfer(rng: np.random.Generator, world: Worlds) -> None:
    world.leak = np.zeros_like(world.leak)


def _drift(rng: np.random.Generator, world: Worlds) -> None:
    """Untrained skills fade, and the tasks of a fifth of the domains get harder on the way."""
    shape = world.start.shape
    steps = world.prompts[0] / world.batch[0]
    world.decay = rng.uniform(0.0, 1.0, shape) / steps
    world.shift = np.where(rng.random(shape) < 0.2, -rng.uniform(0.5, 2.0, shape), 0.0)
    world.shift_at = rng.uniform(0.2, 0.8, shape)


def _lying(rng: np.random.Generator, world: Worlds) -> None:
    """A share of the rewards can be won without the skill; others are noisy."""
    shape = world.start.shape
    is_lying = rng.random(shape) < rng.uniform(0.05, 0.2)
    world.truth = np.where(is_lying, rng.uniform(-0.3, 0.0, shape), 1.0)
    world.flips = np.where(rng.random(shape) < 0.3, rng.uniform(0.1, 0.5, shape), 0.0)


def _dead(rng: np.random.Generator, world: Worlds) -> None:
    _make_dead(rng, world, rng.uniform(0.3, 0.6))


def _unequal_cost(rng: np.random.Generator, world: Worlds) -> None:
    """Slow sandboxes and judges: costs over two orders of magnitude, tokens over one."""
    num_families = world.leak.shape[1]
    slow = np.exp(rng.normal(0.0, 1.4, num_families))[world.family]
    world.cost = world.cost * slow
    world.tokens = world.tokens * np.exp(rng.normal(0.0, 0.5, num_families))[world.family]


def _interference(rng: np.random.Generator, world: Worlds) -> None:
    family, num_families = world.family[0], world.leak.shape[1]
    world.leak = _leak(rng, family, num_families, help_=(-0.2, 0.6), cross=1.0, share_bad=0.8)


_KIND_CHANGES = {
    "alike": _alike,
    "no_transfer": _no_transfer,
    "drift": _drift,
    "lying": _lying,
    "dead": _dead,
    "unequal_cost": _unequal_cost,
    "interference": _interference,
}

# What padding holds where 0 would divide or take a logarithm.
_FILL = {"tokens": 1.0, "cost": 1.0, "size": 1.0, "task_spread": 1.0, "shift_at": 2.0}


def stack(worlds: list[Worlds]) -> Worlds:
    """Return worlds side by side, padded to the largest."""
    num_domains = max(w.start.shape[1] for w in worlds)
    num_families = max(w.leak.shape[1] for w in worlds)
    fields = {}
    for name in Worlds.__slots__:
        arrays = [getattr(w, name) for w in worlds]
        if arrays[0].ndim == 2:
            arrays = [_padded(a, num_domains, _FILL.get(name, 0)) for a in arrays]
        elif arrays[0].ndim == 3:
            arrays = [np.pad(a, ((0, 0), *(((0, num_families - a.shape[1]),) * 2))) for a in arrays]
        fields[name] = np.concatenate(arrays)
    return Worlds(**fields)


def _padded(array: NDArray[np.generic], width: int, fill: float) -> NDArray[np.generic]:
    missing = ((0, 0), (0, width - array.shape[1]))
    return np.pad(array, missing, constant_values=array.dtype.type(fill))
