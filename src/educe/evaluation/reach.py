"""What a model can reach with several tries: pass@k before and after, and where a gain comes from.

Training may make sure what the start found now and then (*activated*), or bring answers that the
start never found (*new*). A task counts as found when any of the start's samples was right, so the
split is about the number of samples drawn: more of them find more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.statistics import (
    Estimate,
    macro_average,
    macro_difference,
    mean_estimate,
    paired_difference,
    pass_at_k,
)


@dataclass(frozen=True, slots=True)
class ReachDifference:
    """pass@k of two evaluations on the same tasks; every domain weighs the same.

    Attributes:
        num_tasks: tasks with at least k scored samples on both sides; the others are left out.
    """

    k: int
    before: Estimate
    after: Estimate
    difference: Estimate
    num_tasks: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "k": self.k,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "difference": self.difference.to_json(),
            "num_tasks": self.num_tasks,
        }


@dataclass(frozen=True, slots=True)
class GainSplit:
    """The gain in pass@1, split by whether the start found a task; the parts add up to ``total``.

    Attributes:
        activated, new: contributions to the gain, each over all tasks (not over its own).
        num_found, num_unfound: tasks of which some, or none, of the start's samples were right.
        tries: samples of the start a task (the fewest of any task).
        newly_right: unfound tasks of which some sample is right afterwards.
    """

    total: Estimate
    activated: Estimate
    new: Estimate
    num_found: int
    num_unfound: int
    newly_right: int
    tries: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "total": self.total.to_json(),
            "activated": self.activated.to_json(),
            "new": self.new.to_json(),
            "num_found": self.num_found,
            "num_unfound": self.num_unfound,
            "newly_right": self.newly_right,
            "tries": self.tries,
        }


@dataclass(frozen=True, slots=True)
class _Task:
    cluster: str
    right: int
    scored: int


def reach_difference(
    before: EvalResult, after: Sequence[EvalResult], k: int, *, level: float = 0.95
) -> ReachDifference:
    """Return pass@k before and after, paired by task.

    Args:
        after: one evaluation, or one of each seed: a task's pass@k is then the mean of theirs (k
            samples of one model, never of several). Numbers of samples may differ from ``before``:
            pass@k is estimated without bias from each.

    Raises:
        ValueError: no task has k scored samples on both sides.
    """
    own: list[tuple[list[float], list[float], list[str]]] = []
    for domain, was, runs in _common(before, after):
        known = [i for i in was if all(t[i].scored >= k for t in (was, *runs))]
        if known:
            own.append(
                (
                    [_pass(was[i], k) for i in known],
                    [fmean(_pass(run[i], k) for run in runs) for i in known],
                    [f"{domain}/{was[i].cluster}" for i in known],
                )
            )
    if not own:
        raise ValueError(f"no task has {k} scored samples in both evaluations")
    differences = [paired_difference(a, b, c, level=level, samples_per_item=k) for a, b, c in own]
    return ReachDifference(
        k,
        macro_average([mean_estimate(a, c, level=level) for a, _, c in own]),
        macro_average([mean_estimate(b, c, level=level) for _, b, c in own]),
        macro_difference(differences),
        sum(len(a) for a, _, _ in own),
    )


def split_gain(
    before: EvalResult, after: Sequence[EvalResult], *, level: float = 0.95
) -> GainSplit:
    """Split the gain in pass@1 into activated and new; every domain weighs the same.

    Args:
        after: as in :func:`reach_difference`; ``newly_right`` counts tasks that any of them found.

    Raises:
        ValueError: the evaluations have no task with scores in common.
    """
    parts: dict[str, list[tuple[list[float], list[str]]]] = {
        "total": [],
        "activated": [],
        "new": [],
    }
    found = unfound = newly = 0
    tries: list[int] = []
    for domain, was, runs in _common(before, after):
        gains = np.array([fmean(_pass(r[i], 1) for r in runs) - _pass(was[i], 1) for i in was])
        is_found = np.array([task.right > 0 for task in was.values()])
        clusters = [f"{domain}/{task.cluster}" for task in was.values()]
        for name, weight in (("total", 1.0), ("activated", is_found), ("new", ~is_found)):
            parts[name].append(((gains * weight).tolist(), clusters))
        found, unfound = found + int(is_found.sum()), unfound + int((~is_found).sum())
        newly += sum(any(r[i].right for r in runs) for i, task in was.items() if not task.right)
        tries += [task.scored for task in was.values()]
    if not tries:
        raise ValueError("the evaluations have no task with scores in common")
    return GainSplit(
        total=_macro(parts["total"], level),
        activated=_macro(parts["activated"], level),
        new=_macro(parts["new"], level),
        num_found=found,
        num_unfound=unfound,
        newly_right=newly,
        tries=min(tries),
    )


def _common(
    before: EvalResult, after: Sequence[EvalResult]
) -> Iterator[tuple[str, dict[int, _Task], list[dict[int, _Task]]]]:
    """Yield (domain, tasks before, tasks of each run after), tasks scored on all sides only."""
    names = set(before.domains).intersection(*(set(a.domains) for a in after))
    for domain in sorted(names):
        was, *runs = (_tasks(r.rows_in(domain)) for r in (before, *after))
        common = sorted(was.keys() & set.intersection(*(set(r) for r in runs)))
        if common:
            yield domain, {i: was[i] for i in common}, [{i: r[i] for i in common} for r in runs]


def _macro(domains: Sequence[tuple[list[float], list[str]]], level: float) -> Estimate:
    return macro_difference(
        [paired_difference([0.0] * len(g), g, c, level=level) for g, c in domains]
    )


def _tasks(rows: Sequence[EvalRow]) -> dict[int, _Task]:
    """Return right and scored samples of every task that has a score."""
    found: dict[int, _Task] = {}
    for row in rows:
        if row.value is not None:
            old = found.get(row.index, _Task(row.content_hash, 0, 0))
            is_right = int(row.outcome is Outcome.RIGHT)
            found[row.index] = _Task(old.cluster, old.right + is_right, old.scored + 1)
    return found


def _pass(task: _Task, k: int) -> float:
    return float(pass_at_k([task.right], task.scored, k)[0])
