"""Runs the very controllers of ``educe.scheduling`` on simulated learners, many worlds at once.

    python benchmarks/mixture_simulator.py [--split test] [--worlds 240] [--part 1/8] [--out FILE]
    python benchmarks/mixture_simulator.py --gather FILE … [--out FILE] [--page PAGE]

Arms, at equal tokens and at equal cost, over the same worlds: uniform shares, the same with other
luck (what noise alone does to every figure), shares by data size, the best of many static tables
(searched *in* each test world, knowing its true final score: more than anyone can have), and each
adaptive strategy with its default settings. For every arm: the gain of the mean true score, the
worst tenth of the domains, and the share of domains that ended five points below their start;
differences with 95 % bootstrap intervals over worlds. Long runs go in parts (each a share of the
worlds, of a minute or so), which ``--gather`` puts together; ``--page`` writes them as a section
of a page, and says of how many worlds it speaks.

The worlds are those of ``mixture_worlds``. Shapes: W worlds, D domains, F families, B prompts a
batch.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mixture_figures import Outcome, gather, page_of, summarise
from mixture_worlds import GROUP_SIZE, Worlds, draw_worlds
from page_section import replace_section

from educe.core.seeds import numpy_random
from educe.scheduling.controller import ControlSettings, ShareController
from educe.scheduling.evidence import BatchCounts, Evidence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_STRETCH = 4  # a run is cut after this many times the steps of the uniform one


class Learner:
    """W learners in their worlds; ``step`` samples a batch, tells what was seen, and learns."""

    def __init__(self, worlds: Worlds, seed: int) -> None:
        self.worlds = worlds
        self.rng = numpy_random("mixture learner", seed)
        self.skill = worlds.start.copy()  # what counts
        self.proxy = worlds.start.copy()  # what the training reward sees
        self.num_steps = 0
        shape = worlds.start.shape
        self._rows = np.arange(shape[0])[:, np.newaxis]
        self._slots = self._rows * worlds.leak.shape[1] + worlds.family
        # Mean of a logistic over normal difficulties, by the usual probit-like approximation.
        self._flat = 1.0 / np.sqrt(1.0 + np.pi * worlds.task_spread**2 / 8.0)

    def scores(self) -> Floats:
        """Return the true chance-corrected scores (W, D); padding is nan."""
        worlds = self.worlds
        found = worlds.ceiling * _logistic(self.skill * self._flat)
        return np.where(worlds.is_real, found, np.nan)

    def step(self, chosen: Ints) -> tuple[BatchCounts, Floats, Floats]:
        """Sample one group for each chosen domain (W, B), then learn from them.

        Returns:
            counts (without costs), tokens (W, D) and seconds (W, D) spent.
        """
        worlds, rows = self.worlds, self._rows
        difficulty = self.rng.normal(size=chosen.shape) * worlds.task_spread[rows, chosen]
        earned = worlds.ceiling[rows, chosen] * _logistic(self.proxy[rows, chosen] - difficulty)
        floor, flips = worlds.floor[rows, chosen], worlds.flips[rows, chosen]
        success = (1.0 - flips) * (floor + (1.0 - floor) * earned) + 0.5 * flips
        right = self.rng.binomial(GROUP_SIZE, success) / GROUP_SIZE
        spread = 2.0 * np.sqrt(right * (1.0 - right))
        # Of the successes, only those that were earned teach the skill.
        lesson = spread * (1.0 - flips) * earned / np.maximum(success, 1e-9)
        counts = self._counts(chosen, right, spread, floor)
        length = self.rng.gamma(8.0, 1.0 / 8.0, chosen.shape) * GROUP_SIZE
        tokens = self._sum(chosen, length * worlds.tokens[rows, chosen])
        seconds = self._sum(chosen, length * worlds.cost[rows, chosen])
        self._learn(self._sum(chosen, lesson * worlds.speed[rows, chosen]), spread.mean(axis=1))
        return counts, tokens, seconds

    def _counts(self, chosen: Ints, right: Floats, spread: Floats, floor: Floats) -> BatchCounts:
        groups = self._sum(chosen, np.ones(chosen.shape))
        best = np.where(right > 0, 1.0, 0.0)
        return BatchCounts(
            groups=groups,
            scored_groups=groups,
            scored=groups * GROUP_SIZE,
            score_sum=self._sum(chosen, GROUP_SIZE * (right - floor) / (1.0 - floor)),
            spread_sum=self._sum(chosen, spread),
            regret_sum=self._sum(chosen, (best - right) / (1.0 - floor)),
            cost_sum=np.zeros(groups.shape),
        )

    def _learn(self, own: Floats, mean_spread: Floats) -> None:
        worlds = self.worlds
        pace = ((mean_spread + 0.05) / 0.5) ** -worlds.normalise
        own = own * pace[:, np.newaxis]
        taught = worlds.truth * own
        num_families = worlds.leak.shape[1]
        by_family = np.bincount(
            self._slots.ravel(), taught.ravel(), num_families * len(own)
        ).reshape(len(own), num_families)
        leaked = np.einsum("wfg,wg->wf", worlds.leak, by_family)[self._rows, worlds.family]
        noise = self.rng.normal(size=own.shape) * worlds.jitter[:, np.newaxis]
        faded = np.where(own > 0, 0.0, worlds.decay)
        progress = self.num_steps * worlds.batch / worlds.prompts
        after = (self.num_steps + 1) * worlds.batch / worlds.prompts
        is_now = (worlds.shift_at >= progress[:, np.newaxis]) & (
            worlds.shift_at < after[:, np.newaxis]
        )
        common = leaked + noise - faded + np.where(is_now, worlds.shift, 0.0)
        self.skill += taught + common
        self.proxy += own + common
        self.num_steps += 1

    def _sum(self, chosen: Ints, values: Floats) -> Floats:
        shape = self.worlds.start.shape
        flat = (self._rows * shape[1] + chosen).ravel()
        return np.bincount(flat, values.ravel(), shape[0] * shape[1]).reshape(shape)


def _logistic(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0)))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to choose shares. ``weights`` (W, D) replace equal ones."""

    settings: ControlSettings
    weights: Floats | None = None
    unit: str = "tokens"
    half_life: float = 32.0
    pooling: float = 4.0


def run_arm(
    worlds: Worlds, arm: Arm, seed: int = 0, units: Sequence[str] = ("tokens", "seconds")
) -> dict[str, Outcome]:
    """Run one arm in a stack of worlds; return its outcome at each of the budgets asked for."""
    learner = Learner(worlds, seed)
    weights = worlds.is_real.astype(float) if arm.weights is None else arm.weights
    evidence = Evidence(worlds.family, worlds.floor, arm.half_life, arm.pooling)
    ties = np.argsort(np.argsort(learner.rng.random(weights.shape), axis=1), axis=1)
    controller = ShareController(
        weights,
        evidence,
        arm.settings,
        ties.astype(float),
        np.zeros(weights.shape, dtype=bool),
    )
    budgets = uniform_budgets(worlds)
    spent = {unit: np.zeros(len(weights)) for unit in budgets}
    start = before = learner.scores()
    ends = {unit: np.full(start.shape, np.nan) for unit in budgets}
    batch = int(worlds.batch[0])
    steps = MAX_STRETCH * math.ceil(float((worlds.prompts / worlds.batch).max()))
    for _ in range(steps):
        chosen = np.stack([controller.pick() for _ in range(batch)], axis=1)
        counts, tokens, seconds = learner.step(chosen)
        counts.cost_sum = tokens if arm.unit == "tokens" else seconds
        # What is left of the run's budget, as the rounds that uniform shares would make of it.
        left = np.clip(1.0 - spent[arm.unit] / budgets[arm.unit], 0.02, 1.0)
        rounds = worlds.prompts / worlds.is_real.sum(axis=1)
        controller.rounds_left = (left * rounds)[:, np.newaxis]
        controller.observe(counts)
        now = learner.scores()
        for unit, used in (("tokens", tokens), ("seconds", seconds)):
            _close(ends[unit], spent[unit], used.sum(axis=1), budgets[unit], before, now)
        before = now
        if all((spent[u] >= budgets[u]).all() for u in units):
            break
    found = {}
    for unit in units:
        is_open = spent[unit] < budgets[unit]
        found[unit] = Outcome.of(start, np.where(is_open[:, np.newaxis], before, ends[unit]))
    return found


def _close(
    end: Floats, spent: Floats, used: Floats, budget: Floats, before: Floats, now: Floats
) -> None:
    """Where this step crosses the budget, keep the scores at the crossing."""
    is_crossing = (spent < budget) & (spent + used >= budget)
    part = ((budget - spent) / np.maximum(used, 1e-12))[:, np.newaxis]
    end[is_crossing] = (before + part * (now - before))[is_crossing]
    spent += used


def uniform_budgets(worlds: Worlds) -> dict[str, Floats]:
    """Return what the uniform run is expected to spend (W,)."""
    groups = worlds.prompts * GROUP_SIZE
    real = worlds.is_real
    return {
        "tokens": groups * (worlds.tokens * real).sum(axis=1) / real.sum(axis=1),
        "seconds": groups * (worlds.cost * real).sum(axis=1) / real.sum(axis=1),
    }


def run_static(worlds: Worlds, weights: Floats, seed: int = 0) -> dict[str, Outcome]:
    """Run fixed shares; return the outcomes at both budgets.

    As ``run_arm`` with the strategy ``static``, but each batch's turns are dealt out at once
    (largest remainders), so that a search can afford thousands of runs.
    """
    learner = Learner(worlds, seed)
    shares = weights / weights.sum(axis=1, keepdims=True)
    ties = 1e-9 * np.argsort(np.argsort(learner.rng.random(weights.shape), axis=1), axis=1)
    rank = np.where(weights > 0, ties, np.inf)
    budgets = uniform_budgets(worlds)
    spent = {unit: np.zeros(len(weights)) for unit in budgets}
    start = before = learner.scores()
    ends = {unit: np.full(start.shape, np.nan) for unit in budgets}
    batch = int(worlds.batch[0])
    credit = np.zeros(weights.shape)
    for _ in range(MAX_STRETCH * math.ceil(float((worlds.prompts / worlds.batch).max()))):
        credit += batch * shares
        turns = _dealt(credit, rank, batch)
        credit -= turns
        chosen = np.stack([np.repeat(np.arange(len(row)), row) for row in turns])
        _, tokens, seconds = learner.step(chosen)
        now = learner.scores()
        for unit, used in (("tokens", tokens), ("seconds", seconds)):
            _close(ends[unit], spent[unit], used.sum(axis=1), budgets[unit], before, now)
        before = now
        if all((spent[u] >= budgets[u]).all() for u in budgets):
            break
    return {
        unit: Outcome.of(start, np.where((spent[unit] < budgets[unit])[:, None], before, end))
        for unit, end in ends.items()
    }


def _dealt(credit: Floats, rank: Floats, batch: int) -> Ints:
    """Return how many of ``batch`` turns each domain has (W, D), by whole credits, then the
    largest remainders."""
    turns = np.floor(np.maximum(credit, 0.0)).astype(np.int64)
    for row in np.flatnonzero(turns.sum(axis=1) > batch):  # debts of others: take some back
        while turns[row].sum() > batch:
            turns[row, np.argmin(np.where(turns[row] > 0, credit[row] - turns[row], np.inf))] -= 1
    rest = np.argsort(-(credit - turns - rank), axis=1)
    missing = batch - turns.sum(axis=1)
    for row, count in enumerate(missing):
        turns[row, rest[row, :count]] += 1
    return turns


def best_static(worlds: Worlds, rounds: int = 3, width: int = 12) -> dict[str, Outcome]:
    """Search each world for the static table with the highest true gain, and report that gain.

    Candidates: equal shares, by size at two temperatures, by tokens and by cost at two powers,
    random tables; then random changes of the best so far. Each unit keeps its own best. Searched
    with one noise seed and reported with another.
    """
    rng = numpy_random("static search", worlds.start.shape[0])
    real = worlds.is_real.astype(float)
    first = [real, real * worlds.size, real * np.sqrt(worlds.size)]
    for price in (worlds.tokens, worlds.cost):
        first += [real / np.maximum(price, 1e-9) ** power for power in (0.5, 1.0)]
    candidates = first + [_shaken(real, rng, 1.0) for _ in range(width - len(first))]
    best = {unit: (np.full(len(real), -np.inf), real) for unit in ("tokens", "seconds")}
    for number in range(rounds):
        for table in candidates:
            found = run_static(worlds, table, seed=100)
            for unit, (gain, kept) in best.items():
                is_better = found[unit].gain > gain
                best[unit] = (
                    np.maximum(gain, found[unit].gain),
                    np.where(is_better[:, np.newaxis], table, kept),
                )
        scale = 0.7 / (number + 1)
        candidates = [
            _shaken(kept, rng, scale) for _, kept in best.values() for _ in range(width // 2)
        ]
    return {unit: run_static(worlds, kept)[unit] for unit, (_, kept) in best.items()}


def _shaken(weights: Floats, rng: np.random.Generator, scale: float) -> Floats:
    return weights * np.exp(rng.normal(0.0, scale, weights.shape))


# Reports

ADAPTIVE = ("expected_gain", "success_variance", "learning_progress", "regret")


Results = dict[str, Outcome]  # by unit of the budget


def standard_arms(
    names: Sequence[str], units: Sequence[str]
) -> dict[str, Callable[[Worlds], Results]]:
    """Return the arms by name, each a function of a stack of worlds."""

    def adaptive(strategy: str) -> Callable[[Worlds], Results]:
        def run(worlds: Worlds) -> Results:
            settings = ControlSettings(strategy)
            # A run of one budget ends with it: what comes after changes nothing before.
            return {u: run_arm(worlds, Arm(settings, unit=u), units=(u,))[u] for u in units}

        return run

    arms: dict[str, Callable[[Worlds], Results]] = {
        "uniform": lambda worlds: run_arm(worlds, Arm(ControlSettings("static"))),
        "uniform_again": lambda worlds: run_arm(worlds, Arm(ControlSettings("static")), seed=1),
        "size": lambda worlds: run_static(worlds, worlds.is_real * worlds.size),
        "best_static": best_static,
        **{name: adaptive(name) for name in ADAPTIVE},
    }
    return {name: arms[name] for name in names}


def run_part(given: argparse.Namespace) -> dict[str, Any]:
    """Run the arms in a part of the worlds; return every world's outcomes as JSON-able lists."""
    part, parts = (int(word) for word in given.part.split("/"))
    begin, end = (given.first + given.worlds * k // parts for k in (part - 1, part))
    numbers = range(begin, end)
    stacks = draw_worlds(given.split, len(numbers), begin)
    told: dict[str, Any] = {
        "split": given.split,
        "numbers": list(numbers),
        "kinds": np.concatenate([s.kind for s in stacks]).tolist(),
        "seconds": {},
        "outcomes": {},
    }
    for name, arm in standard_arms(given.arms, given.units).items():
        begin = time.process_time()
        runs = [arm(stack) for stack in stacks]
        told["seconds"][name] = time.process_time() - begin
        for unit in given.units:
            found = gather([run[unit] for run in runs])
            told["outcomes"][f"{unit}/{name}"] = {
                f.name: getattr(found, f.name).tolist() for f in fields(Outcome)
            }
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--split", default="test", choices=("tune", "test"))
    parser.add_argument("--worlds", type=int, default=240)
    parser.add_argument("--first", type=int, default=400, help="test worlds below 400 were seen")
    parser.add_argument("--units", nargs="+", default=["tokens", "seconds"])
    parser.add_argument(
        "--arms",
        nargs="+",
        default=["uniform", "uniform_again", "size", "best_static", *ADAPTIVE],
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", default="1/1", help="which of how many parts of the worlds")
    parser.add_argument("--gather", type=Path, nargs="+", help="files of parts, put together")
    parser.add_argument("--page", type=Path, help="gather: page that gets the section")
    parser.add_argument("--section", default="mixture-simulator", help="page: name of its marks")
    given = parser.parse_args(arguments)
    if given.gather:
        told = summarise([json.loads(file.read_text(encoding="utf-8")) for file in given.gather])
        if given.page:
            replace_section(given.page, given.section, page_of(told))
    else:
        told = run_part(given)
        if "uniform" in given.arms:
            summarise([told])
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(told, indent=1 if given.gather else None) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
