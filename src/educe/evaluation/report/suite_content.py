"""What a report on a suite says, gathered once for Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON
from educe.evaluation.compare import Finding
from educe.evaluation.measures import MeasureDifference, MeasureEstimate
from educe.evaluation.records import Outcome
from educe.evaluation.report.content import finding_text, with_interval, with_signed_interval
from educe.evaluation.report.examples import Example, pick_examples
from educe.evaluation.statistics import Estimate
from educe.evaluation.suite import DimensionResult, SuiteResult
from educe.evaluation.suite_compare import DimensionComparison, StrategyRow, SuiteComparison

Row = tuple[str, ...]
Cells = tuple[Row, Sequence[Row], Sequence[str]]
"""Header, rows, and a style for each row (better, worse or flat)."""

_STYLES = {Finding.BETTER: "better", Finding.WORSE: "worse"}


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Everything a report on a suite shows; ``comparison`` is there with a before side."""

    title: str
    facts: Mapping[str, str]
    after: SuiteResult
    comparison: SuiteComparison | None = None
    examples: tuple[Example, ...] = ()
    strategies: tuple[StrategyRow, ...] = field(default=())

    def to_json(self) -> dict[str, JSON]:
        shown = self.after if self.comparison is None else self.comparison
        return {
            "title": self.title,
            "facts": dict(self.facts),
            **shown.to_json(),
            "strategies": [
                {
                    "name": s.name,
                    "accuracy": s.accuracy,
                    "tokens": s.tokens,
                    "points_per_1000_tokens": s.points_per_1000_tokens,
                    "gain": None if s.score is None else s.score.to_json(),
                }
                for s in self.strategies
            ],
            "examples": [e.to_json() for e in self.examples],
        }


def build_suite_report(
    after: SuiteResult,
    comparison: SuiteComparison | None = None,
    *,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
    strategies: Sequence[StrategyRow] = (),
    examples_per_part: int = 1,
) -> SuiteReport:
    """Gather a report on one suite result, or on two of the same suite."""
    before = None if comparison is None else comparison.before.rows
    settings = after.rows.settings
    names = {"evaluated": after.label} if comparison is None else {
        "before": comparison.before.label,
        "after": after.label,
    }  # fmt: skip
    names |= {
        "suite": f"{settings.get('suite')}, {settings.get('tier')}",
        "tasks": f"{len({(r.domain, r.index) for r in after.rows.rows}):,}",
        "completions": f"{len(after.rows.rows):,}",
        "time": f"{after.rows.wall_time_s:.0f} s"
        + ("" if before is None else f", {before.wall_time_s:.0f} s before"),
    }
    return SuiteReport(
        title,
        {**names, **(facts or {})},
        after,
        comparison,
        tuple(pick_examples(after.rows, before, per_domain=examples_per_part)),
        tuple(strategies),
    )


# --- numbers as text ----------------------------------------------------------------------------


def value_text(measure: MeasureEstimate) -> str:
    """Return a measure with its interval: percent for shares, plain numbers otherwise."""
    if measure.unit == "share" or measure.estimate is None:
        return with_interval(measure.estimate)
    return _plain(measure.estimate, "")


def difference_text(measure: MeasureDifference) -> str:
    """Return the paired difference with its interval and signs."""
    if measure.after.unit == "share" or measure.difference is None:
        return with_signed_interval(measure.difference)
    return _plain(measure.difference, "+")


def _plain(estimate: Estimate, sign: str) -> str:
    digits = 0 if abs(estimate.value) >= 100 else 2
    value, low, high = (
        f"{x:{sign}.{digits}f}" for x in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def verdict_text(measure: MeasureDifference) -> str:
    """Return the verdict; a measure without a direction is described, not judged."""
    if not measure.after.direction:
        return "–"
    if measure.after.unit != "share" and measure.finding not in _STYLES:
        return "no difference shown"
    return finding_text(measure.finding, measure.detectable)


def style_of(measure: MeasureDifference) -> str:
    return _STYLES.get(measure.finding, "flat") if measure.after.direction else "flat"


def lead_text(report: SuiteReport) -> str:
    """Return the sentence at the top."""
    if report.comparison is None:
        parts = []
        for d in report.after.dimensions:
            top = d.headline
            parts.append(f"{d.title} {value_text(top)} %" if top else f"{d.title}: no headline")
        return "; ".join(parts) + "."
    pairs = [(d, d.headline) for d in report.comparison.dimensions]
    groups = {
        word: [d.title.lower() for d, m in pairs if m is not None and m.finding is finding]
        for word, finding in (("Better", Finding.BETTER), ("Worse", Finding.WORSE))
    }
    open_ = [
        d.title.lower()
        for d, m in pairs
        if m is not None and m.finding not in (Finding.BETTER, Finding.WORSE)
    ]
    none = [d.title.lower() for d, m in pairs if m is None]
    texts = [f"{word}: {', '.join(names)}." for word, names in groups.items() if names]
    texts += [f"No difference shown: {', '.join(open_)}."] if open_ else []
    texts += [f"No headline: {', '.join(none)}."] if none else []
    return " ".join(texts)


# --- tables -------------------------------------------------------------------------------------


def overview(report: SuiteReport) -> Cells:
    """Return one row a dimension: its headline, or why there is none."""
    if report.comparison is None:
        header: Row = ("dimension", "measure", "value", "completions", "tokens each")
        rows = [_overview_row(d) for d in report.after.dimensions]
        return header, rows, ["flat"] * len(rows)
    header = ("dimension", "verdict", "measure", "before", "after", "difference")
    rows, styles = [], []
    for d in report.comparison.dimensions:
        row, style = _overview_pair(d)
        rows.append(row)
        styles.append(style)
    return header, rows, styles


def _overview_row(d: DimensionResult) -> Row:
    top = next((m for m in d.measures if m.is_headline), None)
    value = f"no headline: {d.withheld}" if d.withheld else value_text(top) if top else "–"
    name = top.name if top else "–"
    return (d.title, name, value, f"{d.counts.total:,}", f"{d.mean_tokens:.0f}")


def _overview_pair(d: DimensionComparison) -> tuple[Row, str]:
    top = next((m for m in d.measures if m.after.is_headline), None)
    if top is None:
        return (d.title, "–", "–", "–", "–", "–"), "flat"
    numbers = (top.name, value_text(top.before), value_text(top.after), difference_text(top))
    if d.headline is None:
        return (d.title, "no headline (see cautions)", *numbers), "flat"
    return (d.title, verdict_text(top), *numbers), style_of(top)


def measure_table(report: SuiteReport, name: str) -> Cells:
    """Return all measures of a dimension."""
    if report.comparison is None:
        found = next(d for d in report.after.dimensions if d.name == name)
        rows: list[Row] = [
            (m.name, value_text(m), _items(m.estimate), m.note) for m in found.measures
        ]
        return ("measure", "value", "tasks", "note"), rows, ["flat"] * len(rows)
    compared = next(d for d in report.comparison.dimensions if d.name == name)
    rows = [
        (m.name, verdict_text(m), value_text(m.before), value_text(m.after), difference_text(m),
         _q(compared.q_values[m.name]) if m.after.direction else "–", str(m.num_pairs),
         m.after.note)
        for m in compared.measures
    ]  # fmt: skip
    header = ("measure", "verdict", "before", "after", "difference", "q", "tasks", "note")
    return header, rows, [style_of(m) for m in compared.measures]


def _items(estimate: Estimate | None) -> str:
    return "0" if estimate is None else str(estimate.num_items)


def _q(value: float) -> str:
    return f"{value:.2g}"


def outcome_table(report: SuiteReport) -> Cells:
    """Return what became of every completion, by dimension and side."""
    sides = [("", report.after)] if report.comparison is None else [
        ("before", report.comparison.before),
        ("after", report.comparison.after),
    ]  # fmt: skip
    rows: list[Row] = []
    for d in report.after.dimensions:
        for side, result in sides:
            own = next((x for x in result.dimensions if x.name == d.name), None)
            if own is not None:
                cells = [str(own.counts.by_outcome.get(o, 0)) for o in Outcome]
                rows.append((d.title, side or result.label, *cells))
    header = ("dimension", "run", *[str(o).replace("_", " ") for o in Outcome])
    return header, rows, ["flat"] * len(rows)


def strategy_table(rows: Sequence[StrategyRow]) -> Cells:
    """Return score against tokens, one row a strategy."""
    cells = [
        (
            s.name, f"{100 * s.accuracy:.1f}", f"{s.tokens:.0f}",
            "–" if s.score is None else difference_text(s.score),
            "–" if math.isnan(s.points_per_1000_tokens) else f"{s.points_per_1000_tokens:+.1f}",
        )
        for s in rows
    ]  # fmt: skip
    header = ("strategy", "accuracy %", "tokens a task", "gain, points", "points per 1,000 tokens")
    return header, cells, ["flat"] * len(cells)


def source_table(report: SuiteReport) -> Cells:
    """Return the packages that data was read from, with licence and checksum."""
    parts: Mapping[str, Mapping[str, JSON]] = report.after.rows.settings.get("parts") or {}
    rows = [
        (name, str(f["package"]), str(f.get("licence", "")), str(f.get("sha256", ""))[:16],
         ", ".join(f"{count} {why}" for why, count in (f.get("left_out") or {}).items()))
        for name, f in sorted(parts.items())
        if f.get("package")
    ]  # fmt: skip
    return ("part", "package", "licence", "sha256", "rows left out"), rows, ["flat"] * len(rows)


def caution_lines(report: SuiteReport) -> list[str]:
    """Return what a reader must be told."""
    lines = list(report.after.rows.notes)
    sides = [report.after] if report.comparison is None else [
        report.comparison.before,
        report.comparison.after,
    ]  # fmt: skip
    for result in sides:
        for d in result.dimensions:
            where = f"{d.title} ({result.label})"
            lines += [f"{where}: {d.withheld}"] if d.withheld else []
            lines += [f"{where}: {note}" for note in d.findings.notes]
    return list(dict.fromkeys(lines))


READING = (
    "Every number is a mean over parts that weigh the same, of the mean over their tasks, with its "
    "interval; differences are paired by task. Verdicts hold the false discovery rate over all "
    "directed measures of the suite. 'No difference detectable below x': a true difference of x "
    "points would have shown with 80 % power; 'underpowered': not even 10 points would have. "
    "Errored and unscored completions are in no mean; refused, cut and timed-out ones are counted "
    "apart from wrong answers, and where they are many no headline is given."
)
