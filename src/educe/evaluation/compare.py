"""Two evaluations on the same tasks: per domain a verdict that the statistics support.

Paired by task, clustered by content, with the false discovery rate held over domains and a minimum
detectable effect beside everything that is not a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

import numpy as np

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow, Outcome, item_scores
from educe.evaluation.statistics import (
    Estimate,
    PairedDifference,
    benjamini_hochberg,
    macro_difference,
    minimum_detectable_effect,
    paired_difference,
)
from educe.evaluation.summary import DomainSummary, HeadlineRule, Summary, summarise


class Finding(StrEnum):
    """What a comparison may claim."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    UNDERPOWERED = "underpowered"


@dataclass(frozen=True, slots=True)
class Flow:
    """How tasks moved. A task is right when more than half of its scored samples are right."""

    learned: int
    forgotten: int
    kept_right: int
    kept_wrong: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "learned": self.learned,
            "forgotten": self.forgotten,
            "kept_right": self.kept_right,
            "kept_wrong": self.kept_wrong,
        }


@dataclass(frozen=True, slots=True)
class DomainComparison:
    """One domain before and after.

    Attributes:
        difference: paired; None where no task has a score on both sides.
        q_value: p-value adjusted over domains (Benjamini-Hochberg).
        detectable: smallest true difference that this data would show with 80 % power.
        finding, reason: the verdict and why, in words.
        num_pairs: tasks with a score on both sides; ``num_lost_pairs`` have not.
    """

    domain: str
    kind: str
    before: DomainSummary
    after: DomainSummary
    difference: PairedDifference | None
    q_value: float
    detectable: float
    finding: Finding
    reason: str
    flow: Flow
    num_pairs: int
    num_lost_pairs: int

    def to_json(self) -> dict[str, JSON]:
        d = self.difference
        return {
            "domain": self.domain,
            "kind": self.kind,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "difference": None if d is None else d.estimate.to_json(),
            "p_value": None if d is None else d.p_value,
            "q_value": self.q_value,
            "test": None if d is None else d.method,
            "detectable": self.detectable,
            "finding": str(self.finding),
            "reason": self.reason,
            "flow": self.flow.to_json(),
            "num_pairs": self.num_pairs,
            "num_lost_pairs": self.num_lost_pairs,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything ``compare`` found. ``macro_difference`` gives every domain the same weight."""

    before: Summary
    after: Summary
    domains: tuple[DomainComparison, ...]
    macro_difference: Estimate | None
    macro_finding: Finding
    macro_reason: str
    flow: Flow
    relevant_difference: float
    false_discovery_rate: float
    level: float
    notes: tuple[str, ...]

    def count(self, finding: Finding) -> int:
        return sum(d.finding is finding for d in self.domains)

    def to_json(self) -> dict[str, JSON]:
        macro = self.macro_difference
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "domains": [d.to_json() for d in self.domains],
            "macro_difference": None if macro is None else macro.to_json(),
            "macro_finding": str(self.macro_finding),
            "macro_reason": self.macro_reason,
            "flow": self.flow.to_json(),
            "findings": {str(f): self.count(f) for f in Finding},
            "relevant_difference": self.relevant_difference,
            "false_discovery_rate": self.false_discovery_rate,
            "level": self.level,
            "notes": list(self.notes),
        }


def compare(
    before: EvalResult,
    after: EvalResult,
    *,
    level: float = 0.95,
    false_discovery_rate: float = 0.05,
    relevant_difference: float = 0.1,
    rule: HeadlineRule | None = None,
) -> Comparison:
    """Compare two evaluations of the same tasks.

    Args:
        level: coverage of the intervals.
        false_discovery_rate: expected share of false ones among the domains called better or worse.
        relevant_difference: a difference worth knowing. Where the data could not have shown one of
            this size, the finding is "underpowered", not "no difference".

    Raises:
        EduceError: no common domain, a common task whose content differs, or rows sampled under
            different settings (temperature, samples, limits).
    """
    names, notes = _common_domains(before, after)
    _check_settings(before, after)
    first, second = _only(before, names), _only(after, names)
    summaries = summarise(first, level=level, rule=rule), summarise(second, level=level, rule=rule)
    paired = [_pair(first, second, name, level) for name in names]
    tested = [p for p in paired if p.difference is not None]
    adjusted = benjamini_hochberg([p.difference.p_value for p in tested if p.difference])
    q_values = dict(zip((p.domain for p in tested), adjusted.tolist(), strict=True))
    by_name = [{d.domain: d for d in s.domains} for s in summaries]
    domains = []
    for pair in paired:
        q = q_values.get(pair.domain, 1.0)
        finding, reason, detectable = _judge(
            pair.difference, q, false_discovery_rate, relevant_difference
        )
        domains.append(
            DomainComparison(
                pair.domain, after.kinds.get(pair.domain, ""), by_name[0][pair.domain],
                by_name[1][pair.domain], pair.difference, q, detectable, finding, reason,
                pair.flow, pair.num_pairs, pair.num_lost_pairs,
            )
        )  # fmt: skip
    macro = _macro(tested)
    macro_finding, macro_reason = _judge_macro(macro, relevant_difference)
    return Comparison(
        *summaries, tuple(domains), macro, macro_finding, macro_reason,
        _sum_flows([d.flow for d in domains]), relevant_difference, false_discovery_rate, level,
        tuple(dict.fromkeys([*notes, *summaries[0].notes, *summaries[1].notes])),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pair:
    domain: str
    difference: PairedDifference | None
    flow: Flow
    num_pairs: int
    num_lost_pairs: int


def _common_domains(before: EvalResult, after: EvalResult) -> tuple[list[str], list[str]]:
    common = sorted(set(before.domains) & set(after.domains))
    if not common:
        raise EduceError(
            f"nothing to compare: {before.label!r} has domains {before.domains[:5]}, "
            f"{after.label!r} has {after.domains[:5]}; evaluate both with the same recipe"
        )
    notes = []
    for one, other in ((before, after), (after, before)):
        alone = sorted(set(one.domains) - set(other.domains))
        if alone:
            notes.append(f"only in {one.label}, left out: {', '.join(alone)}")
    return common, notes


def _check_settings(before: EvalResult, after: EvalResult) -> None:
    for key in ("split", "samples", "temperature"):
        ours, theirs = before.settings.get(key), after.settings.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            raise EduceError(
                f"the two evaluations differ in {key}: {before.label!r} used {ours!r}, "
                f"{after.label!r} used {theirs!r}; a difference would not be the model's"
            )
    ours, theirs = before.settings.get("limits") or {}, after.settings.get("limits") or {}
    for name in sorted(set(ours) & set(theirs)):
        if list(ours[name]) != list(theirs[name]):
            raise EduceError(
                f"{name}: token and turn limits differ, {list(ours[name])} in {before.label!r} "
                f"and {list(theirs[name])} in {after.label!r}"
            )


def _only(result: EvalResult, names: Sequence[str]) -> EvalResult:
    from dataclasses import replace

    keep = set(names)
    return replace(result, rows=tuple(r for r in result.rows if r.domain in keep))


def _pair(before: EvalResult, after: EvalResult, name: str, level: float) -> _Pair:
    rows = before.rows_in(name), after.rows_in(name)
    _check_contents(rows, (before.label, after.label))
    items = [item_scores(r) for r in rows]
    positions = [{index: p for p, index in enumerate(i.indices)} for i in items]
    common = sorted(set(positions[0]) & set(positions[1]))
    everything = {r.index for r in rows[0]} | {r.index for r in rows[1]}
    difference = None
    if common:
        means = [
            np.array([fmean(i.samples[p[index]]) for index in common])
            for i, p in zip(items, positions, strict=True)
        ]
        samples = [
            len(i.samples[p[c]]) for i, p in zip(items, positions, strict=True) for c in common
        ]
        difference = paired_difference(
            means[0],
            means[1],
            [items[0].clusters[positions[0][index]] for index in common],
            level=level,
            samples_per_item=float(np.mean(samples)),
        )
    flow = _flow(rows[0], rows[1], common)
    return _Pair(name, difference, flow, len(common), len(everything) - len(common))


def _check_contents(rows: tuple[list[EvalRow], list[EvalRow]], labels: tuple[str, str]) -> None:
    hashes = [{r.index: r.content_hash for r in side} for side in rows]
    for index in sorted(set(hashes[0]) & set(hashes[1])):
        if hashes[0][index] != hashes[1][index]:
            raise EduceError(
                f"{rows[0][0].domain} task {index} is not the same task in {labels[0]!r} and "
                f"{labels[1]!r} (content {hashes[0][index]} and {hashes[1][index]}): the domain "
                f"changed between the two evaluations"
            )


def _flow(before: Sequence[EvalRow], after: Sequence[EvalRow], indices: Sequence[int]) -> Flow:
    was, now = right_tasks(before), right_tasks(after)
    pairs = [(was[i], now[i]) for i in indices]
    return Flow(
        learned=pairs.count((False, True)),
        forgotten=pairs.count((True, False)),
        kept_right=pairs.count((True, True)),
        kept_wrong=pairs.count((False, False)),
    )


def right_tasks(rows: Sequence[EvalRow]) -> dict[int, bool]:
    """Return for every task whether more than half of its scored samples are right."""
    votes: dict[int, list[bool]] = {}
    for row in rows:
        if row.value is not None:
            votes.setdefault(row.index, []).append(row.outcome is Outcome.RIGHT)
    return {index: sum(v) * 2 > len(v) for index, v in votes.items()}


def _sum_flows(flows: Sequence[Flow]) -> Flow:
    return Flow(
        sum(f.learned for f in flows), sum(f.forgotten for f in flows),
        sum(f.kept_right for f in flows), sum(f.kept_wrong for f in flows),
    )  # fmt: skip


def _judge(
    difference: PairedDifference | None, q_value: float, rate: float, relevant: float
) -> tuple[Finding, str, float]:
    if difference is None:
        return Finding.UNDERPOWERED, "no task has a score on both sides", float("inf")
    detectable = minimum_detectable_effect(difference.estimate.standard_error)
    value = difference.estimate.value
    if q_value <= rate and value != 0:
        finding = Finding.BETTER if value > 0 else Finding.WORSE
        return finding, f"q = {q_value:.2g} at a false discovery rate of {rate:.0%}", detectable
    if detectable <= relevant:
        reason = f"a true difference of {100 * detectable:.1f} points would have shown (80 % power)"
        return Finding.NO_DIFFERENCE, reason, detectable
    reason = (
        f"only differences of {100 * detectable:.0f} points or more would have shown; "
        f"{100 * relevant:.0f} matter: more tasks are needed"
    )
    return Finding.UNDERPOWERED, reason, detectable


def _macro(paired: Sequence[_Pair]) -> Estimate | None:
    differences = [p.difference for p in paired if p.difference is not None]
    return macro_difference(differences) if differences else None


def _judge_macro(macro: Estimate | None, relevant: float) -> tuple[Finding, str]:
    if macro is None:
        return Finding.UNDERPOWERED, "no task has a score on both sides"
    if macro.excludes(0.0):
        side = "above" if macro.value > 0 else "below"
        finding = Finding.BETTER if macro.value > 0 else Finding.WORSE
        return finding, f"the {macro.level:.0%} interval lies {side} zero"
    detectable = minimum_detectable_effect(macro.standard_error)
    finding = Finding.NO_DIFFERENCE if detectable <= relevant else Finding.UNDERPOWERED
    return finding, f"differences below {100 * detectable:.1f} points would not have shown"


def findings_by_domain(comparison: Comparison) -> Mapping[str, Finding]:
    """Return the finding of every domain."""
    return {d.domain: d.finding for d in comparison.domains}
