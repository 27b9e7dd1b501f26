"""What a report says, gathered once for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.evaluation.bands import BandGain, gain_by_difficulty
from educe.evaluation.compare import Comparison, Finding, compare
from educe.evaluation.multi_turn import (
    RepairComparison,
    RepairRates,
    compare_repair,
    multi_turn_domains,
    repair_rates,
)
from educe.evaluation.records import EvalResult
from educe.evaluation.report.examples import Example, pick_examples
from educe.evaluation.statistics import Estimate
from educe.evaluation.summary import HeadlineRule, Summary, summarise


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report shows. ``comparison``, ``repairs`` and ``bands`` (the gain by
    difficulty) are there with a before side."""

    title: str
    facts: Mapping[str, str]
    summary: Summary
    comparison: Comparison | None
    repairs: tuple[RepairComparison, ...]
    repair_rates: tuple[RepairRates, ...]
    examples: tuple[Example, ...]
    bands: tuple[BandGain, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        return {
            "title": self.title,
            "facts": dict(self.facts),
            "summary": self.summary.to_json(),
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "by_difficulty": [b.to_json() for b in self.bands],
            "multi_turn": [r.to_json() for r in self.repairs or self.repair_rates],
            "examples": [e.to_json() for e in self.examples],
        }


def build_report(
    after: EvalResult,
    before: EvalResult | None = None,
    *,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
    level: float = 0.95,
    false_discovery_rate: float = 0.05,
    relevant_difference: float = 0.1,
    rule: HeadlineRule | None = None,
    examples_per_domain: int = 3,
) -> Report:
    """Gather a report on one evaluation, or on two of the same tasks.

    Args:
        facts: lines for the top: model, command, wall time, machine.
    """
    comparison = None
    if before is not None:
        comparison = compare(
            before,
            after,
            level=level,
            false_discovery_rate=false_discovery_rate,
            relevant_difference=relevant_difference,
            rule=rule,
        )
    if comparison is not None and len(comparison.after.domains) == len(after.domains):
        summary = comparison.after
    else:
        summary = summarise(after, level=level, rule=rule)
    after_domains = multi_turn_domains(after)
    both = [] if before is None else sorted(set(after_domains) & set(multi_turn_domains(before)))
    return Report(
        title=title,
        facts={**_facts(after, before), **(facts or {})},
        summary=summary,
        comparison=comparison,
        repairs=tuple(compare_repair(before, after, d, level=level) for d in both if before),
        repair_rates=tuple(repair_rates(after, d, level=level) for d in after_domains),
        examples=tuple(pick_examples(after, before, per_domain=examples_per_domain)),
        bands=() if before is None else gain_by_difficulty(before, after, level=level),
    )


def _facts(after: EvalResult, before: EvalResult | None) -> dict[str, str]:
    names = {"evaluated": after.label} if before is None else {
        "before": before.label,
        "after": after.label,
    }  # fmt: skip
    settings = after.settings
    shown = {
        "split": settings.get("split"),
        "samples a task": settings.get("samples"),
        "temperature": settings.get("temperature"),
    }
    names.update({k: str(v) for k, v in shown.items() if v is not None})
    names["completions"] = f"{len(after.rows):,}"
    return {**names, **_isolation(after, before)}


def _isolation(after: EvalResult, before: EvalResult | None) -> dict[str, str]:
    """Say at which sandbox levels programs were judged, and whose tests shared their process."""
    rows = [*after.rows, *(before.rows if before is not None else ())]
    judged = [row for row in rows if "integrity" in row.proof]
    if not judged:
        return {}
    told = {"sandbox level": ", ".join(sorted({str(row.proof.get("level")) for row in judged}))}
    sharing = sorted({row.domain for row in judged if row.proof["integrity"] == "in_process"})
    if sharing:
        told["tests in the candidate's process"] = ", ".join(sharing)
    return told


BAND_HEADER = ("difficulty", "domains", "tasks", "before", "gain")
BAND_NOTE = (
    "Each half of a domain's tasks is banded by the start's chance-corrected score on the other "
    "half, so that luck at the start is no gain or loss here; levels are told where there are "
    "several."
)


def band_rows(report: Report) -> list[list[str]]:
    """Return the gain by difficulty as cells under ``BAND_HEADER``."""
    return [
        [
            b.band,
            str(b.num_domains),
            str(b.num_tasks),
            percent(b.before),
            with_signed_interval(b.difference),
        ]
        for b in report.bands
    ]


# --- wording shared by the formats -------------------------------------------------------------


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent, without the sign that would clutter tables."""
    return f"{100 * value:.{digits}f}"


def with_interval(estimate: Estimate | None, digits: int = 1) -> str:
    """Return ``41.2 [33.0, 49.9]`` in percent."""
    if estimate is None:
        return "–"
    low, high = percent(estimate.low, digits), percent(estimate.high, digits)
    return f"{percent(estimate.value, digits)} [{low}, {high}]"


def with_signed_interval(estimate: Estimate | None, digits: int = 1) -> str:
    """Return ``+8.0 [+1.5, +14.5]`` in percentage points."""
    if estimate is None:
        return "–"
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{100 * x:+.{digits}f}" for x in numbers)
    return f"{value} [{low}, {high}]"


def finding_text(finding: Finding, detectable: float) -> str:
    """Return the verdict in words, with the detectable effect beside every non-difference."""
    if finding is Finding.NO_DIFFERENCE:
        return f"no difference detectable below {100 * detectable:.1f} points"
    if finding is Finding.UNDERPOWERED:
        if detectable == float("inf"):
            return "underpowered"
        return f"underpowered (could show {100 * detectable:.0f} points or more)"
    return str(finding)


def headline_text(report: Report) -> str:
    """Return the sentence that stands at the top."""
    comparison = report.comparison
    if comparison is None:
        if report.summary.withheld:
            return f"No headline: {report.summary.withheld}."
        count = len(report.summary.domains)
        return f"Macro score {with_interval(report.summary.macro)} % over {count} domains."
    better, worse = comparison.count(Finding.BETTER), comparison.count(Finding.WORSE)
    rest = len(comparison.domains) - better - worse
    moved = (
        f"{better} of {len(comparison.domains)} domains better, {worse} worse, {rest} without a "
        f"shown difference (false discovery rate {comparison.false_discovery_rate:.0%})."
    )
    withheld = [
        f"{side.label}: {side.withheld}"
        for side in (comparison.before, comparison.after)
        if side.withheld
    ]
    before, after = comparison.before.macro, comparison.after.macro
    numbers = (
        f"{with_interval(before)} % before, {with_interval(after)} % after: "
        f"{with_signed_interval(comparison.macro_difference)} points. {moved}"
    )
    if withheld:
        return f"No headline: {'; '.join(withheld)}. With that caution, macro score {numbers}"
    return f"Macro score {numbers}"


def cautions(report: Report) -> list[str]:
    """Return what a reader must be told, one line a domain and side."""
    sides: Sequence[Summary] = (
        [report.summary]
        if report.comparison is None
        else [report.comparison.before, report.comparison.after]
    )
    lines = [
        f"{d.domain} ({side.label}): {'; '.join(d.cautions)}"
        for side in sides
        for d in side.domains
        if d.cautions
    ]
    notes = report.summary.notes if report.comparison is None else report.comparison.notes
    return [*notes, *lines]
