"""The report on a suite as Markdown, as one HTML page, and as files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from educe.evaluation.dimensions.protocol import Table
from educe.evaluation.report.charts import Mark, interval_chart
from educe.evaluation.report.content import with_interval
from educe.evaluation.report.examples import Example, shorten, transcript
from educe.evaluation.report.files import ReportPaths, to_json_text, write_whole
from educe.evaluation.report.markdown import table
from educe.evaluation.report.page import html_table, page
from educe.evaluation.report.suite_content import (
    READING,
    Cells,
    SuiteReport,
    caution_lines,
    lead_text,
    measure_table,
    outcome_table,
    overview,
    source_table,
    strategy_table,
)
from educe.evaluation.statistics import Estimate
from educe.evaluation.suite import DimensionResult

_EXAMPLE_CHARACTERS = 3000


def write_suite_report(report: SuiteReport, folder: Path, *, name: str = "report") -> ReportPaths:
    """Write NAME.md, NAME.html and NAME.json into ``folder`` (made if missing)."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = ReportPaths(*(folder / f"{name}.{end}" for end in ("md", "html", "json")))
    write_whole(paths.markdown, suite_to_markdown(report))
    write_whole(paths.html, suite_to_html(report))
    write_whole(paths.json, to_json_text(report.to_json()))
    return paths


def suite_to_markdown(report: SuiteReport) -> str:
    """Return the report as Markdown, without the completions."""
    parts = [f"# {report.title}", lead_text(report)]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report.facts.items()))
    parts.append(_markdown(overview(report), left=2))
    if report.strategies:
        parts.append("## Strategies\n\n" + _markdown(strategy_table(report.strategies)))
    for d in report.after.dimensions:
        parts.append(f"## {d.title}\n\n{d.question}")
        parts.append(_markdown(measure_table(report, d.name), _text_columns(report)))
        for title, shown in _tables(report, d):
            head = f"### {title}" + (f"\n\n{shown.note}" if shown.note else "")
            parts.append(f"{head}\n\n{table(shown.header, shown.rows, left=shown.left)}")
    parts.append("## What became of every completion\n\n" + _markdown(outcome_table(report), 2))
    sources = source_table(report)
    if sources[1]:
        parts.append("## Data read from packages\n\n" + _markdown(sources, 5))
    warned = caution_lines(report)
    if warned:
        parts.append("## Cautions\n\n" + "\n".join(f"- {line}" for line in warned))
    parts.append(f"## How to read this\n\n{READING}")
    return "\n\n".join(parts) + "\n"


def _text_columns(report: SuiteReport) -> int:
    return 1 if report.comparison is None else 2


def _markdown(cells: Cells, left: int = 1) -> str:
    header, rows, _ = cells
    return table(header, rows, left=left)


def _tables(report: SuiteReport, after: DimensionResult) -> list[tuple[str, Table]]:
    """Return a dimension's tables with their titles, the earlier model's first."""
    if report.comparison is None:
        return [(t.title, t) for t in after.tables if t.rows]
    before = next((d for d in report.comparison.before.dimensions if d.name == after.name), None)
    earlier = {t.title: t for t in before.tables} if before else {}
    found = []
    for shown in after.tables:
        old = earlier.get(shown.title)
        found += [(f"{shown.title}: before", old)] if old is not None and old.rows else []
        found += [(f"{shown.title}: after", shown)] if shown.rows else []
    return found


# --- HTML ---------------------------------------------------------------------------------------


def suite_to_html(report: SuiteReport) -> str:
    """Return one page that loads nothing from anywhere; details are folded away."""
    facts = "".join(f"<span>{escape(k)}: {escape(v)}</span> " for k, v in report.facts.items())
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="lead">{escape(lead_text(report))}</p>',
        f'<p class="facts">{facts}</p>',
        _headline_chart(report),
        _html(overview(report), left=2),
    ]
    if report.strategies:
        body.append(
            "<h2>Score against tokens spent</h2>" + _html(strategy_table(report.strategies))
        )
    body += [_dimension(report, d) for d in report.after.dimensions]
    outcomes = _html(outcome_table(report), left=2)
    body.append(f"<h2>What became of every completion</h2>{outcomes}")
    warned = caution_lines(report)
    if warned:
        items = "".join(f"<li>{escape(line)}</li>" for line in warned)
        body.append(f"<h2>Cautions</h2><ul>{items}</ul>")
    sources = source_table(report)
    if sources[1]:
        body.append(f"<h2>Data read from packages</h2>{_html(sources, left=5)}")
    body.append(_examples(report.examples))
    body.append(f"<h2>How to read this</h2><p>{escape(READING)}</p>")
    return page(report.title, body)


def _html(cells: Cells, left: int = 1) -> str:
    header, rows, styles = cells
    return html_table(header, rows, left=left, classes=styles)


def _headline_chart(report: SuiteReport) -> str:
    """Draw the dimensions' headlines, both sides; withheld ones are left out of the picture."""
    rows = []
    if report.comparison is None:
        rows = [
            (d.title, [_mark(d.headline.estimate, "ma", report.after.label)])
            for d in report.after.dimensions
            if d.headline is not None and d.headline.estimate is not None
        ]
    else:
        for c in report.comparison.dimensions:
            top = c.headline
            if top is None or top.before.estimate is None or top.after.estimate is None:
                continue
            rows.append(
                (c.title, [_mark(top.before.estimate, "mb", "before"),
                           _mark(top.after.estimate, "ma", "after")])
            )  # fmt: skip
    if not rows:
        return ""
    key = ""
    if report.comparison is not None:
        names = (("before", report.comparison.before.label), ("after", report.after.label))
        key = '<p class="key">' + "".join(
            f'<i style="background:var(--{side})"></i>{escape(label)}' for side, label in names
        ) + "</p>"  # fmt: skip
    return key + interval_chart(rows, low=0, high=100, unit=" %")


def _mark(estimate: Estimate, style: str, label: str) -> Mark:
    low, high = max(0.0, 100 * estimate.low), min(100.0, 100 * estimate.high)
    return Mark(100 * estimate.value, low, high, style, f"{label}: {with_interval(estimate)}")


def _dimension(report: SuiteReport, d: DimensionResult) -> str:
    tables = "".join(
        f"<h3>{escape(title)}</h3>"
        + (f"<p>{escape(shown.note)}</p>" if shown.note else "")
        + html_table(shown.header, shown.rows, left=shown.left)
        for title, shown in _tables(report, d)
    )
    folded = f"<details><summary>Tables</summary>{tables}</details>" if tables else ""
    header, rows, styles = measure_table(report, d.name)
    # Notes would push the numbers out of sight: they stand below the table.
    measures = _html(
        (header[:-1], [row[:-1] for row in rows], styles), _text_columns(report)
    ) + "".join(f'<p class="tag">{escape(r[0])}: {escape(r[-1])}</p>' for r in rows if r[-1])
    return f"<h2>{escape(d.title)}</h2><p>{escape(d.question)}</p>{measures}{folded}"


def _examples(examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    parts = ["<h2>Completions side by side</h2>",
             "<p>Chosen to show what changed; not a random sample.</p>"]  # fmt: skip
    for e in examples:
        sides = "".join(
            f'<div><b>{name}</b> <span class="tag">{row.outcome}, {row.num_tokens} tokens</span>'
            f"<pre>{_text(transcript(row.completion))}</pre></div>"
            for name, row in (("Before", e.before), ("After", e.after))
            if row is not None
        )
        gold = "" if e.gold is None else f"<b>Reference</b><pre>{_text(e.gold)}</pre>"
        parts.append(
            f"<details><summary>{escape(e.domain)}, task {e.index}: {e.move}</summary>"
            f'<div class="pair"><div><b>Prompt</b><pre>{_text(e.prompt)}</pre>{gold}</div>'
            f"{sides}</div></details>"
        )
    return "".join(parts)


def _text(text: str) -> str:
    return escape(shorten(text, _EXAMPLE_CHARACTERS))
