"""What one evaluation says: a score and interval per domain, macro averages, a headline or none."""

from __future__ import annotations

import statistics as builtin_statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from educe.core.types import JSON
from educe.evaluation.records import Counts, EvalResult, EvalRow, Outcome, item_scores
from educe.evaluation.statistics import (
    Estimate,
    chance_corrected,
    macro_average,
    macro_chance_corrected,
    pass_at_k,
    score_estimate,
)


@dataclass(frozen=True, slots=True)
class HeadlineRule:
    """When too much is neither right nor wrong for one number to stand at the top.

    Attributes:
        max_lost: share of completions without a score (errored, unscored).
        max_limited: share that ended at a token or time limit and was not right.
        max_refused: share that the model declined: its score says little of what it can do.
        max_unparseable: share without a recognisable answer; only a caution, as a model that
            cannot follow the format earns it.
    """

    max_lost: float = 0.05
    max_limited: float = 0.05
    max_refused: float = 0.25
    max_unparseable: float = 0.25

    def cautions(self, counts: Counts) -> list[str]:
        """Return what a reader of these counts must be told."""
        found = []
        if counts.lost_share > self.max_lost:
            found.append(f"{counts.lost_share:.0%} of completions have no score")
        limited = counts.share(Outcome.TRUNCATED, Outcome.TIMED_OUT)
        if limited > self.max_limited:
            found.append(f"{limited:.0%} ended at a token or time limit")
        refused = counts.share(Outcome.REFUSED)
        if refused > self.max_refused:
            found.append(f"{refused:.0%} were refused")
        unparseable = counts.share(Outcome.UNPARSEABLE)
        if unparseable > self.max_unparseable:
            found.append(f"{unparseable:.0%} hold no recognisable answer")
        return found

    def withholds(self, counts: Counts) -> str:
        """Return why no headline may be given, or an empty string."""
        if counts.lost_share > self.max_lost:
            return (
                f"{counts.lost_share:.1%} of completions have no score "
                f"(limit {self.max_lost:.0%}): {counts.by_outcome.get(Outcome.ERRORED, 0)} "
                f"errored, {counts.by_outcome.get(Outcome.UNSCORED, 0)} unscored"
            )
        limited = counts.share(Outcome.TRUNCATED, Outcome.TIMED_OUT)
        if limited > self.max_limited:
            return (
                f"{limited:.1%} of completions ended at a token or time limit "
                f"(limit {self.max_limited:.0%}): raise max_completion_tokens or the time limit"
            )
        refused = counts.share(Outcome.REFUSED)
        if refused > self.max_refused:
            return f"{refused:.1%} of tasks were refused (limit {self.max_refused:.0%})"
        return ""


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """One domain of one evaluation. ``score`` is None where no sample has a score."""

    domain: str
    kind: str
    floor: float
    score: Estimate | None
    corrected: Estimate | None
    pass_at_k: Mapping[int, float]
    counts: Counts
    num_tasks: int
    num_distinct: int
    num_lost_tasks: int
    mean_tokens: float
    cautions: tuple[str, ...]

    def to_json(self) -> dict[str, JSON]:
        return {
            "domain": self.domain,
            "kind": self.kind,
            "floor": self.floor,
            "score": None if self.score is None else self.score.to_json(),
            "chance_corrected": None if self.corrected is None else self.corrected.to_json(),
            "pass_at_k": {str(k): v for k, v in self.pass_at_k.items()},
            "counts": self.counts.to_json(),
            "num_tasks": self.num_tasks,
            "num_distinct": self.num_distinct,
            "num_lost_tasks": self.num_lost_tasks,
            "mean_tokens": self.mean_tokens,
            "cautions": list(self.cautions),
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """All domains of one evaluation, their macro averages, and the headline with its reason."""

    label: str
    domains: tuple[DomainSummary, ...]
    macro: Estimate | None
    macro_corrected: Estimate | None
    counts: Counts
    withheld: str
    notes: tuple[str, ...]

    @property
    def headline(self) -> Estimate | None:
        """The macro average, None where the rule withholds it."""
        return None if self.withheld else self.macro

    def to_json(self) -> dict[str, JSON]:
        return {
            "label": self.label,
            "domains": [d.to_json() for d in self.domains],
            "macro": None if self.macro is None else self.macro.to_json(),
            "macro_chance_corrected": None
            if self.macro_corrected is None
            else self.macro_corrected.to_json(),
            "counts": self.counts.to_json(),
            "headline_withheld": self.withheld,
            "notes": list(self.notes),
        }


def summarise(
    result: EvalResult, *, level: float = 0.95, rule: HeadlineRule | None = None
) -> Summary:
    """Return the summary of an evaluation.

    The macro average gives every domain the same weight, whatever its number of tasks; a domain
    without any score is left out of it and named in the notes.
    """
    rule = rule or HeadlineRule()
    domains = tuple(_summarise_domain(result, name, level, rule) for name in result.domains)
    scored = [d for d in domains if d.score is not None]
    notes = list(result.notes)
    notes += [
        f"{d.domain}: nothing was scored; left out of averages" for d in domains if not d.score
    ]
    counts = result.counts()
    return Summary(
        label=result.label,
        domains=domains,
        macro=macro_average([d.score for d in scored if d.score]) if scored else None,
        macro_corrected=macro_chance_corrected(
            [d.score for d in scored if d.score], [d.floor for d in scored]
        )
        if scored
        else None,
        counts=counts,
        withheld=rule.withholds(counts) if scored else "nothing was scored",
        notes=tuple(notes),
    )


def _summarise_domain(
    result: EvalResult, name: str, level: float, rule: HeadlineRule
) -> DomainSummary:
    rows = result.rows_in(name)
    items = item_scores(rows)
    floor = result.floors.get(name, 0.0)
    score = score_estimate(items.samples, items.clusters, level=level) if items.indices else None
    counts = result.counts(name)
    return DomainSummary(
        domain=name,
        kind=result.kinds.get(name, ""),
        floor=floor,
        score=score,
        corrected=None if score is None else chance_corrected(score, floor),
        pass_at_k=_pass_curve(rows),
        counts=counts,
        num_tasks=len({r.index for r in rows}),
        num_distinct=len({r.content_hash for r in rows}),
        num_lost_tasks=items.num_lost_items,
        mean_tokens=builtin_statistics.fmean(r.num_tokens for r in rows),
        cautions=tuple(rule.cautions(counts)),
    )


def _pass_curve(rows: Sequence[EvalRow]) -> dict[int, float]:
    """Return pass@k for k = 1, 2, 4 … up to the samples of every task; a right sample passes.

    Tasks with unscored samples are left out where they have fewer than k scored ones.
    """
    scored: dict[int, list[bool]] = {}
    for row in rows:
        if row.value is not None:
            scored.setdefault(row.index, []).append(row.outcome is Outcome.RIGHT)
    largest = max((len(v) for v in scored.values()), default=0)
    ks = sorted({1, largest} | {2**i for i in range(1, 20) if 2**i <= largest} - {0})
    by_size: dict[int, list[int]] = {}
    for votes in scored.values():
        by_size.setdefault(len(votes), []).append(sum(votes))
    curve = {}
    for k in ks:
        parts = [pass_at_k(right, size, k) for size, right in by_size.items() if size >= k >= 1]
        if parts:
            curve[k] = float(np.concatenate(parts).mean())
    return curve


def pool_seeds(results: Sequence[EvalResult], label: str) -> EvalResult:
    """Return several runs' evaluations of the same tasks as one, its seeds as further samples.

    The interval then speaks of the tasks, given these seeds; look at every seed's own result too,
    because a difference between seeds is shared by all tasks and no number of tasks averages it.
    """
    if not results:
        raise ValueError("pool_seeds needs at least one result")
    keys = {frozenset((r.domain, r.index, r.content_hash) for r in x.rows) for x in results}
    if len(keys) > 1:
        raise ValueError("pool_seeds needs results over the same tasks")
    rows: list[EvalRow] = []
    for number, result in enumerate(results):
        width = max(r.sample for r in result.rows) + 1
        rows += [replace(r, sample=number * width + r.sample) for r in result.rows]
    first = results[0]
    return replace(
        first,
        label=label,
        rows=tuple(sorted(rows, key=lambda r: r.key)),
        notes=tuple(dict.fromkeys(n for r in results for n in r.notes)),
        wall_time_s=sum(r.wall_time_s for r in results),
    )
