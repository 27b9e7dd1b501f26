"""Numbers of a dimension with their intervals, alone and paired with another model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from educe.core.types import JSON
from educe.evaluation.compare import Finding
from educe.evaluation.dimensions.protocol import ItemValue, Measure
from educe.evaluation.statistics import (
    Estimate,
    PairedDifference,
    macro_average,
    macro_chance_corrected,
    macro_difference,
    minimum_detectable_effect,
    paired_difference,
    score_estimate,
    sign_flip_test,
)


@dataclass(frozen=True, slots=True)
class MeasureEstimate:
    """A measure with its interval; ``estimate`` is None where nothing could be measured."""

    name: str
    estimate: Estimate | None
    direction: Literal[-1, 0, 1]
    unit: str
    is_headline: bool
    note: str
    num_groups: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "name": self.name,
            "estimate": None if self.estimate is None else self.estimate.to_json(),
            "direction": self.direction,
            "unit": self.unit,
            "is_headline": self.is_headline,
            "note": self.note,
            "num_groups": self.num_groups,
        }


@dataclass(frozen=True, slots=True)
class MeasureDifference:
    """A measure of two models on the same items.

    Attributes:
        difference: after - before over items that both have; None where there is none.
        p_value: two-sided, of a sign-flip test over clusters; None without a difference.
        detectable: smallest true difference that this data would show with 80 % power.
        finding: better or worse by the measure's direction; a description that merely moved keeps
            ``no difference`` or ``underpowered`` and shows its interval.
    """

    name: str
    before: MeasureEstimate
    after: MeasureEstimate
    difference: Estimate | None
    p_value: float | None
    detectable: float
    finding: Finding
    num_pairs: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "name": self.name,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "difference": None if self.difference is None else self.difference.to_json(),
            "p_value": self.p_value,
            "detectable": self.detectable,
            "finding": str(self.finding),
            "num_pairs": self.num_pairs,
        }


def estimate_measure(measure: Measure, *, level: float = 0.95) -> MeasureEstimate:
    """Return the mean over groups of the mean over items, with the interval that suits it."""
    groups = _groups(measure.values)
    estimates = [
        score_estimate([[v.value] for v in values], [v.cluster for v in values], level=level)
        for values in groups.values()
    ]
    estimate = None
    if estimates:
        floors = [measure.floors.get(group, 0.0) for group in groups]
        estimate = (
            macro_chance_corrected(estimates, floors)
            if measure.floors
            else estimates[0]
            if len(estimates) == 1
            else macro_average(estimates)
        )
    return MeasureEstimate(
        measure.name, estimate, measure.direction, measure.unit, measure.is_headline, measure.note,
        len(groups),
    )  # fmt: skip


def compare_measures(
    before: Sequence[Measure],
    after: Sequence[Measure],
    *,
    level: float = 0.95,
    relevant_difference: float = 0.1,
) -> list[MeasureDifference]:
    """Compare the measures that both have, in the order of ``after``."""
    earlier = {m.name: m for m in before}
    return [
        _compare(earlier[m.name], m, level, relevant_difference) for m in after if m.name in earlier
    ]


def _compare(before: Measure, after: Measure, level: float, relevant: float) -> MeasureDifference:
    was = {v.item: v for v in _corrected(before)}
    pairs = [(was[v.item], v) for v in _corrected(after) if v.item in was]
    by_group: dict[str, list[tuple[ItemValue, ItemValue]]] = {}
    for old, new in pairs:
        by_group.setdefault(new.group, []).append((old, new))
    differences = [_paired(group, level) for group in by_group.values()]
    is_share = all(0 <= v.value <= 1 for pair in pairs for v in pair)
    sides = estimate_measure(before, level=level), estimate_measure(after, level=level)
    if not differences:
        return MeasureDifference(
            after.name, *sides, None, None, float("inf"), Finding.UNDERPOWERED, 0
        )
    p_value = _p_value(list(by_group.values()))
    estimate = macro_difference(differences)
    if is_share:
        estimate = replace(estimate, low=max(-1.0, estimate.low), high=min(1.0, estimate.high))
    detectable = minimum_detectable_effect(estimate.standard_error)
    gain = estimate.value * after.direction
    finding = finding_of(gain, p_value, 1 - level, detectable, relevant)
    return MeasureDifference(after.name, *sides, estimate, p_value, detectable, finding, len(pairs))


def _corrected(measure: Measure) -> Sequence[ItemValue]:
    """Return the values with the measure's floors taken off."""
    if not measure.floors:
        return measure.values
    floors = measure.floors
    return [
        replace(v, value=(v.value - floors.get(v.group, 0.0)) / (1 - floors.get(v.group, 0.0)))
        for v in measure.values
    ]


def _paired(pairs: Sequence[tuple[ItemValue, ItemValue]], level: float) -> PairedDifference:
    return paired_difference(
        [old.value for old, _ in pairs],
        [new.value for _, new in pairs],
        [new.cluster for _, new in pairs],
        level=level,
        samples_per_item=sum(new.num_samples for _, new in pairs) / len(pairs),
    )


def _p_value(groups: Sequence[Sequence[tuple[ItemValue, ItemValue]]]) -> float:
    """Return the two-sided p-value of the mean over groups: signs of whole clusters are flipped.

    A cluster's total counts with its group's weight, 1 / (groups x items of the group).
    """
    totals: list[float] = []
    for pairs in groups:
        by_cluster: dict[str, float] = {}
        for old, new in pairs:
            gain = (new.value - old.value) / (len(groups) * len(pairs))
            by_cluster[new.cluster] = by_cluster.get(new.cluster, 0.0) + gain
        totals += by_cluster.values()
    return float(sign_flip_test(totals)[0])


def finding_of(
    gain: float, p_value: float, rate: float, detectable: float, relevant: float
) -> Finding:
    """Return the verdict on a gain (positive is better): claimed where p (or q) is at most rate."""
    if p_value <= rate and gain:
        return Finding.BETTER if gain > 0 else Finding.WORSE
    return Finding.NO_DIFFERENCE if detectable <= relevant else Finding.UNDERPOWERED


def _groups(values: Sequence[ItemValue]) -> Mapping[str, list[ItemValue]]:
    found: dict[str, list[ItemValue]] = {}
    for value in values:
        found.setdefault(value.group, []).append(value)
    return found
