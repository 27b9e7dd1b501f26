"""Two models on one suite: every measure paired item by item, one false-discovery rate over all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.compare import Comparison, compare
from educe.evaluation.dimensions.protocol import Measure
from educe.evaluation.measures import MeasureDifference, compare_measures, finding_of
from educe.evaluation.records import EvalResult
from educe.evaluation.statistics import benjamini_hochberg
from educe.evaluation.suite import DimensionResult, SuiteResult


@dataclass(frozen=True, slots=True)
class DimensionComparison:
    """One dimension of two models; ``q_values`` are by measure, over all measures of the suite."""

    name: str
    title: str
    before: DimensionResult
    after: DimensionResult
    measures: tuple[MeasureDifference, ...]
    q_values: Mapping[str, float]

    @property
    def headline(self) -> MeasureDifference | None:
        """The difference of the headline measure, None where either side withholds it."""
        if self.before.withheld or self.after.withheld:
            return None
        return next((m for m in self.measures if m.after.is_headline), None)

    def to_json(self) -> dict[str, JSON]:
        return {
            "name": self.name,
            "title": self.title,
            "withheld": self.before.withheld or self.after.withheld,
            "measures": [{**m.to_json(), "q_value": self.q_values[m.name]} for m in self.measures],
        }


@dataclass(frozen=True, slots=True)
class SuiteComparison:
    """Two models on one suite; ``domains`` compares the parts (learned, forgotten, verdicts)."""

    before: SuiteResult
    after: SuiteResult
    dimensions: tuple[DimensionComparison, ...]
    domains: Comparison
    level: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "dimensions": [d.to_json() for d in self.dimensions],
            "domains": self.domains.to_json(),
            "level": self.level,
            "notes": list(self.notes),
        }


def compare_suites(
    before: SuiteResult,
    after: SuiteResult,
    *,
    level: float = 0.95,
    relevant_difference: float = 0.1,
) -> SuiteComparison:
    """Compare two models that were asked the same suite.

    A measure is called better or worse where its q-value over all directed measures of the suite
    (Benjamini-Hochberg) is at most 1 - level. Measures without a direction are shown, not judged.

    Raises:
        EduceError: no common dimension, or tasks or settings that differ.
    """
    earlier = {d.name: d for d in before.dimensions}
    pairs = [(earlier[d.name], d) for d in after.dimensions if d.name in earlier]
    if not pairs:
        raise EduceError(
            f"nothing to compare: {before.label!r} has the dimensions {', '.join(earlier)}, "
            f"{after.label!r} has {', '.join(d.name for d in after.dimensions)}"
        )
    _check_same(before.rows, after.rows)
    found = [
        compare_measures(
            old.findings.measures,
            new.findings.measures,
            level=level,
            relevant_difference=relevant_difference,
        )
        for old, new in pairs
    ]
    flat = [m for measures in found for m in measures]
    tested = [(m, m.p_value) for m in flat if m.after.direction and m.p_value is not None]
    adjusted = benjamini_hochberg([p for _, p in tested]).tolist() if tested else []
    q_by_id = {id(m): q for (m, _), q in zip(tested, adjusted, strict=True)}
    dimensions = []
    for (old, new), measures in zip(pairs, found, strict=True):
        q_values = {m.name: q_by_id.get(id(m), 1.0) for m in measures}
        judged = tuple(_judge(m, q_values[m.name], 1 - level, relevant_difference)
                       for m in measures)  # fmt: skip
        dimensions.append(DimensionComparison(new.name, new.title, old, new, judged, q_values))
    names = [new.name for _, new in pairs]
    domains = compare(
        _only(before.rows, names),
        _only(after.rows, names),
        level=level,
        relevant_difference=relevant_difference,
    )
    return SuiteComparison(before, after, tuple(dimensions), domains, level, domains.notes)


def _judge(
    measure: MeasureDifference, q_value: float, rate: float, relevant: float
) -> MeasureDifference:
    difference = measure.difference
    if difference is None:
        return measure
    gain = difference.value * measure.after.direction
    return replace(measure, finding=finding_of(gain, q_value, rate, measure.detectable, relevant))


def _check_same(before: EvalResult, after: EvalResult) -> None:
    for key in ("suite", "tier", "strategy"):
        ours, theirs = before.settings.get(key), after.settings.get(key)
        if ours != theirs:
            raise EduceError(
                f"the two evaluations differ in {key}: {before.label!r} used {ours!r}, "
                f"{after.label!r} used {theirs!r}; a difference would not be the model's"
            )


def _only(rows: EvalResult, dimensions: list[str]) -> EvalResult:
    keep = set(dimensions)
    kept = tuple(r for r in rows.rows if r.domain.partition("/")[0] in keep)
    return replace(rows, rows=kept)


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One strategy on the tasks of another: its score, its tokens, and what they bought.

    ``gain`` is paired by task against the first strategy; ``points_per_1000_tokens`` divides it by
    the extra tokens, NaN where it spent no more.
    """

    name: str
    score: MeasureDifference | None
    accuracy: float
    tokens: float
    points_per_1000_tokens: float


def strategy_board(
    results: Mapping[str, SuiteResult], *, measure: str = "accuracy", level: float = 0.95
) -> list[StrategyRow]:
    """Set strategies side by side: the measure of the first dimension that has it, and its cost.

    The first result is what the others are compared with.

    Raises:
        EduceError: a result lacks the measure.
    """
    rows: list[StrategyRow] = []
    first = next(iter(results))
    for name, result in results.items():
        ours = _strategy_measures(result, measure)
        base = _strategy_measures(results[first], measure)
        pair = {m.name: m for m in compare_measures(base, ours, level=level)}
        score = pair[measure]
        accuracy = score.after.estimate.value if score.after.estimate else math.nan
        spent = pair["tokens"].after.estimate
        base_spent = pair["tokens"].before.estimate
        tokens = spent.value if spent else math.nan
        extra = tokens - (base_spent.value if base_spent else math.nan)
        gain = score.difference.value if score.difference else math.nan
        rows.append(
            StrategyRow(
                name, None if name == first else score, accuracy, tokens,
                100_000 * gain / extra if name != first and extra > 0 else math.nan,
            )
        )  # fmt: skip
    return rows


def _strategy_measures(result: SuiteResult, name: str) -> list[Measure]:
    for dimension in result.dimensions:
        found = {m.name: m for m in dimension.findings.measures}
        if name in found and "tokens" in found:
            return [found[name], found["tokens"]]
    raise EduceError(f"{result.label!r} has no dimension with the measures {name} and tokens")
