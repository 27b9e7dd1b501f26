"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from educe.evaluation.compare import Comparison
from educe.evaluation.records import Counts, Outcome
from educe.evaluation.report.content import (
    BAND_HEADER,
    BAND_NOTE,
    Report,
    band_rows,
    cautions,
    finding_text,
    headline_text,
    percent,
    with_interval,
    with_signed_interval,
)
from educe.evaluation.report.examples import Example, shorten, transcript
from educe.evaluation.summary import DomainSummary, Summary

_EXAMPLE_CHARACTERS = 600


def to_markdown(report: Report, *, examples_per_domain: int = 2) -> str:
    """Return the report as one Markdown text."""
    parts = [f"# {report.title}", headline_text(report)]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report.facts.items()))
    if report.comparison is None:
        parts.append(_summary_table(report.summary))
    else:
        parts.append(_comparison_table(report.comparison))
    if report.bands:
        bands = table(BAND_HEADER, band_rows(report))
        parts.append(f"## Gain by difficulty\n\n{BAND_NOTE}\n\n{bands}")
    parts.append(_counts_section(report))
    if report.repairs or report.repair_rates:
        parts.append(_multi_turn_section(report))
    warned = cautions(report)
    if warned:
        parts.append("## Cautions\n\n" + "\n".join(f"- {line}" for line in warned))
    if report.examples and examples_per_domain:
        parts.append(_examples_section(report.examples, examples_per_domain))
    parts.append(_reading(report))
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table; the first ``left`` columns are text, the others numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    lines = [header, rule, *[[_cell(c) for c in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _comparison_table(comparison: Comparison) -> str:
    rows = []
    for d in comparison.domains:
        difference = None if d.difference is None else d.difference.estimate
        rows.append(
            [
                d.domain,
                finding_text(d.finding, d.detectable),
                str(d.num_pairs),
                with_interval(d.before.score),
                with_interval(d.after.score),
                with_signed_interval(difference),
                f"{d.q_value:.2g}",
                f"{d.flow.learned} / {d.flow.forgotten}",
            ]
        )
    flow = comparison.flow
    rows.append(
        [
            "**macro average**",
            f"**{comparison.macro_finding}**",
            str(sum(d.num_pairs for d in comparison.domains)),
            with_interval(comparison.before.macro),
            with_interval(comparison.after.macro),
            with_signed_interval(comparison.macro_difference),
            "",
            f"{flow.learned} / {flow.forgotten}",
        ]
    )
    header = [
        "domain",
        "verdict",
        "tasks",
        "before",
        "after",
        "difference",
        "q",
        "learned / forgotten",
    ]
    title = (
        f"## Per domain\n\nScores in percent with {comparison.level:.0%} intervals; "
        f"differences in points, paired by task.\n\n"
    )
    return title + table(header, rows, left=2)


def _summary_table(summary: Summary) -> str:
    rows = [
        [
            d.domain,
            str(d.num_tasks),
            with_interval(d.score),
            percent(d.floor, 0),
            with_interval(d.corrected),
            _pass_curve(d),
            f"{d.mean_tokens:.0f}",
        ]
        for d in summary.domains
    ]
    total = str(sum(d.num_tasks for d in summary.domains))
    rows.append(
        ["**macro average**", total, with_interval(summary.macro), "",
         with_interval(summary.macro_corrected), "", ""]
    )  # fmt: skip
    header = ["domain", "tasks", "score", "floor", "chance-corrected", "pass@k", "tokens"]
    return "## Per domain\n\nScores in percent.\n\n" + table(header, rows)


def _pass_curve(d: DomainSummary) -> str:
    if len(d.pass_at_k) < 2:
        return "–"
    return ", ".join(f"@{k} {percent(v)}" for k, v in d.pass_at_k.items())


def _counts_section(report: Report) -> str:
    sides = (
        [report.summary]
        if report.comparison is None
        else [report.comparison.before, report.comparison.after]
    )
    rows = []
    for name in [d.domain for d in sides[-1].domains]:
        for side in sides:
            d = next(x for x in side.domains if x.domain == name)
            rows.append([name, side.label, *_count_cells(d.counts), with_interval(d.corrected)])
    rows += [["**all**", side.label, *_count_cells(side.counts),
              with_interval(side.macro_corrected)] for side in sides]  # fmt: skip
    header = ["domain", "run", *[str(o).replace("_", " ") for o in Outcome], "chance-corrected"]
    return "## What became of every completion\n\n" + table(header, rows, left=2)


def _count_cells(counts: Counts) -> list[str]:
    return [str(counts.by_outcome.get(o, 0)) for o in Outcome]


def _multi_turn_section(report: Report) -> str:
    header = ["domain", "run", "first attempt", "final", "failed first", "of these repaired",
              "attempts"]  # fmt: skip
    rows = []
    pairs = [(r.before, "before") for r in report.repairs] + [
        (r.after, "after") for r in report.repairs
    ]
    shown = pairs or [(r, "") for r in report.repair_rates]
    for rates, side in sorted(shown, key=lambda p: (p[0].domain, p[1] == "after")):
        rows.append(
            [
                rates.domain,
                side or report.summary.label,
                with_interval(rates.first_attempt),
                with_interval(rates.final),
                str(rates.num_failed_first),
                with_interval(rates.repaired),
                f"{rates.mean_attempts:.2f}",
            ]
        )
    text = (
        "## Multi-turn code\n\nA failed first attempt is repaired when the model, having seen the "
    )
    text += "test output, ends right.\n\n" + table(header, rows, left=2)
    for r in report.repairs:
        text += (
            f"\n\n{r.before.domain}: first attempt {with_signed_interval(r.first_difference)} "
            f"points, final {with_signed_interval(r.final_difference)} points (paired)."
        )
    return text


def _examples_section(examples: Sequence[Example], per_domain: int) -> str:
    parts = ["## Completions side by side", "Chosen to show what changed; not a random sample."]
    seen: dict[str, int] = {}
    for example in examples:
        seen[example.domain] = seen.get(example.domain, 0) + 1
        if seen[example.domain] > per_domain:
            continue
        parts.append(f"### {example.domain}, task {example.index}: {example.move}")
        parts.append(_fence(shorten(example.prompt, _EXAMPLE_CHARACTERS)))
        if example.gold is not None:
            parts.append(f"Reference: `{shorten(example.gold, 120)}`" if "\n" not in example.gold
                         else "Reference:\n\n" + _fence(shorten(example.gold, 300)))  # fmt: skip
        for name, row in (("Before", example.before), ("After", example.after)):
            if row is not None:
                text = shorten(transcript(row.completion), _EXAMPLE_CHARACTERS)
                label = name if example.before is not None else "Completion"
                parts.append(f"{label} ({row.outcome}):\n\n{_fence(text)}")
    return "\n\n".join(parts)


def _fence(text: str) -> str:
    """Return a code fence longer than any run of backticks in the text."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}text\n{text}\n{ticks}"


def _reading(report: Report) -> str:
    return "\n\n".join(["## How to read this", *reading_lines(report)])


def reading_lines(report: Report) -> list[str]:
    """Return the paragraphs that say what the numbers mean."""
    lines = [
        "Intervals: Wilson's on the effective number of tasks for 0/1 scores, cluster bootstrap "
        "for graded ones; tasks of equal content are one cluster. The macro average gives every "
        "domain the same weight. Chance-corrected: (score - floor) / (1 - floor). Errored and "
        "unscored completions are in no mean.",
    ]
    if report.comparison is not None:
        lines.append(
            "Verdicts: sign-flip test on the paired differences (McNemar's mid-p for one 0/1 "
            "sample a task), q-values by Benjamini-Hochberg over the domains. 'No difference "
            "detectable below x': a true difference of x points would have shown with 80 % power. "
            f"'Underpowered': not even {100 * report.comparison.relevant_difference:.0f} points "
            "would have."
        )
    return lines
