"""Code over several turns: how often the first attempt passes, the last one, and what repairs.

Reads what the scorer put into ``Score.proof``: ``first_attempt_right``, ``num_attempts`` and
``fixed_after_feedback``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.statistics import Estimate, paired_difference, score_estimate


@dataclass(frozen=True, slots=True)
class RepairRates:
    """Rates over the completions of one domain that could see test output.

    ``repaired`` is the share of failed first attempts that ended right after test output was seen,
    None where no first attempt failed.
    """

    domain: str
    first_attempt: Estimate
    final: Estimate
    repaired: Estimate | None
    num_failed_first: int
    num_repaired: int
    mean_attempts: float

    def to_json(self) -> dict[str, JSON]:
        return {
            "domain": self.domain,
            "first_attempt": self.first_attempt.to_json(),
            "final": self.final.to_json(),
            "repaired": None if self.repaired is None else self.repaired.to_json(),
            "num_failed_first": self.num_failed_first,
            "num_repaired": self.num_repaired,
            "mean_attempts": self.mean_attempts,
        }


@dataclass(frozen=True, slots=True)
class RepairComparison:
    """Repair rates before and after, with paired differences of the two pass rates."""

    before: RepairRates
    after: RepairRates
    first_difference: Estimate
    final_difference: Estimate

    def to_json(self) -> dict[str, JSON]:
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "first_difference": self.first_difference.to_json(),
            "final_difference": self.final_difference.to_json(),
        }


def multi_turn_domains(result: EvalResult) -> list[str]:
    """Return the domains that allow several turns and whose rows record attempts."""
    limits = result.settings.get("limits") or {}
    return [
        domain
        for domain in result.domains
        if limits.get(domain, [0, 2])[1] > 1 and any(map(_has_attempts, result.rows_in(domain)))
    ]


def _has_attempts(row: EvalRow) -> bool:
    return "first_attempt_right" in row.proof and row.value is not None


def repair_rates(result: EvalResult, domain: str, *, level: float = 0.95) -> RepairRates:
    """Return the rates of one domain; raises ValueError when its rows record no attempts."""
    rows = [r for r in result.rows_in(domain) if _has_attempts(r)]
    if not rows:
        raise ValueError(f"{domain} in {result.label!r} has no scored rows with recorded attempts")
    failed = [r for r in rows if not r.proof["first_attempt_right"]]
    repaired = [_is_repaired(r) for r in failed]
    first, final = _by_task(rows)
    return RepairRates(
        domain=domain,
        first_attempt=score_estimate(first[1], first[0], level=level),
        final=score_estimate(final[1], final[0], level=level),
        # A share of attempts, not of tasks: each failed attempt weighs the same.
        repaired=score_estimate(
            [[float(x)] for x in repaired], [r.content_hash for r in failed], level=level
        )
        if failed
        else None,
        num_failed_first=len(failed),
        num_repaired=sum(repaired),
        mean_attempts=float(np.mean([float(r.proof.get("num_attempts", 1)) for r in rows])),
    )


def _is_repaired(row: EvalRow) -> bool:
    recorded = row.proof.get("fixed_after_feedback")
    return row.outcome is Outcome.RIGHT if recorded is None else bool(recorded)


_Items = tuple[list[str], list[list[float]]]


def _by_task(rows: Sequence[EvalRow]) -> tuple[_Items, _Items]:
    """Return (clusters, samples) of first attempts and of final results, by task."""
    hashes: dict[int, str] = {}
    first: dict[int, list[float]] = {}
    final: dict[int, list[float]] = {}
    for row in rows:
        hashes[row.index] = row.content_hash
        first.setdefault(row.index, []).append(float(bool(row.proof["first_attempt_right"])))
        final.setdefault(row.index, []).append(float(row.outcome is Outcome.RIGHT))
    clusters = [hashes[i] for i in first]
    return (clusters, list(first.values())), (clusters, [final[i] for i in first])


def compare_repair(
    before: EvalResult, after: EvalResult, domain: str, *, level: float = 0.95
) -> RepairComparison:
    """Compare one domain's repair rates; tasks are paired for the two pass rates."""
    rates = (
        repair_rates(before, domain, level=level),
        repair_rates(after, domain, level=level),
    )
    sides = [
        {
            i: [r for r in result.rows_in(domain) if r.index == i and _has_attempts(r)]
            for i in _indices(result, domain)
        }
        for result in (before, after)
    ]
    common = [i for i in sorted(set(sides[0]) & set(sides[1])) if sides[0][i] and sides[1][i]]
    if not common:
        raise ValueError(f"{domain}: no task has recorded attempts on both sides")
    clusters = [sides[0][i][0].content_hash for i in common]
    samples = float(np.mean([len(side[i]) for side in sides for i in common]))
    differences = []
    for pick in (0, 1):
        means = [[float(np.mean(_by_task(side[i])[pick][1][0])) for i in common] for side in sides]
        differences.append(
            paired_difference(
                means[0], means[1], clusters, level=level, samples_per_item=samples
            ).estimate
        )
    return RepairComparison(rates[0], rates[1], differences[0], differences[1])


def _indices(result: EvalResult, domain: str) -> list[int]:
    return sorted({r.index for r in result.rows_in(domain)})
