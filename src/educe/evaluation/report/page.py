"""The report as one HTML page that needs nothing else: styles and charts are inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from educe.evaluation.compare import Comparison, DomainComparison, Finding
from educe.evaluation.records import EvalRow, Outcome
from educe.evaluation.report.charts import Mark, interval_chart
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
from educe.evaluation.report.markdown import reading_lines
from educe.evaluation.statistics import Estimate
from educe.evaluation.summary import Summary

_STYLE = """
:root{--ink:#1c2330;--soft:#667085;--line:#e3e7ee;--bg:#fff;--card:#f7f8fa;--before:#98a2b3;
--after:#2563eb;--better:#067647;--worse:#b42318;--flat:#667085}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa4b5;--line:#2c3340;--bg:#12161d;
--card:#1a2029;--before:#7d8798;--after:#6ea0ff;--better:#4cc38a;--worse:#ff8577;--flat:#9aa4b5}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1280px;padding:32px 20px 64px;color:var(--ink);
background:var(--bg);font:15px/1.55 system-ui,sans-serif}h1{font-size:26px;margin:0 0 8px}
h2{font-size:19px;margin:40px 0 10px}h3{font-size:15px;margin:18px 0 6px}
.lead{font-size:17px}.facts{color:var(--soft)}.facts span{margin-right:18px;white-space:nowrap}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{padding:6px 9px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600}td.t,th.t{text-align:left}tr.total td{font-weight:600}
.better{color:var(--better)}.worse{color:var(--worse)}.flat{color:var(--flat)}
.chart{width:100%;max-width:760px;display:block}.chart text{font-size:12px;fill:var(--ink)}
.chart .tick{fill:var(--soft);text-anchor:middle;font-size:11px}.chart .label{text-anchor:end}
.chart .grid{stroke:var(--line)}.chart .zero{stroke:var(--soft);stroke-dasharray:3 3}
.chart g line{stroke-width:2}.mb line{stroke:var(--before)}.mb circle{fill:var(--before)}
.ma line{stroke:var(--after)}.ma circle{fill:var(--after)}.mg line{stroke:var(--better)}
.mg circle{fill:var(--better)}.mw line{stroke:var(--worse)}.mw circle{fill:var(--worse)}
.mf line{stroke:var(--flat)}.mf circle{fill:var(--flat)}
.key i{display:inline-block;width:10px;height:10px;border-radius:5px;margin:0 5px 0 14px}
details{border:1px solid var(--line);border-radius:8px;margin:8px 0;background:var(--card)}
summary{cursor:pointer;padding:8px 12px}.pair{display:grid;gap:12px;padding:0 12px 12px;
grid-template-columns:repeat(auto-fit,minmax(260px,1fr))}pre{white-space:pre-wrap;
overflow-wrap:anywhere;background:var(--bg);border:1px solid var(--line);border-radius:6px;
padding:8px;margin:4px 0;font:12.5px/1.5 ui-monospace,monospace}.tag{color:var(--soft)}
"""


def to_html(report: Report) -> str:
    """Return the whole page as one text; it loads nothing from anywhere."""
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="lead">{escape(headline_text(report))}</p>',
    ]
    facts = "".join(f"<span>{escape(k)}: {escape(v)}</span> " for k, v in report.facts.items())
    body.append(f'<p class="facts">{facts}</p>')
    if report.comparison is not None:
        body += [_score_chart(report.comparison), _difference_chart(report.comparison)]
        body.append(_comparison_table(report.comparison))
    else:
        body.append(_summary_table(report.summary))
    if report.bands:
        bands = html_table(BAND_HEADER, band_rows(report))
        body.append(f"<h2>Gain by difficulty</h2><p>{escape(BAND_NOTE)}</p>{bands}")
    body.append(_counts(report))
    if report.repairs or report.repair_rates:
        body.append(_multi_turn(report))
    warned = cautions(report)
    if warned:
        items = "".join(f"<li>{escape(line)}</li>" for line in warned)
        body.append(f"<h2>Cautions</h2><ul>{items}</ul>")
    body.append(_examples(report.examples))
    body.append(_reading(report))
    return page(report.title, body)


def page(title: str, body: Sequence[str]) -> str:
    """Return parts of HTML as a whole page with the styles of reports."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


_COLOURS = {Finding.BETTER: "better", Finding.WORSE: "worse"}
_MAX_CHARTED = 60


def _charted(comparison: Comparison) -> tuple[list[DomainComparison], str]:
    """Return the domains to draw, greatest gain first, and a note where some are left out.

    Of hundreds, the largest moves in either direction: claims first, then the largest others.
    """

    def gain(d: DomainComparison) -> float:
        return 0.0 if d.difference is None else d.difference.estimate.value

    chosen = list(comparison.domains)
    note = ""
    if len(chosen) > _MAX_CHARTED:
        chosen.sort(key=lambda d: (d.finding not in _COLOURS, -abs(gain(d))))
        chosen = chosen[:_MAX_CHARTED]
        note = (
            f"<p>{_MAX_CHARTED} of {len(comparison.domains)} domains: those called better or "
            f"worse, then the largest differences. The table below has all.</p>"
        )
    return sorted(chosen, key=lambda d: (-gain(d), d.domain)), note


def _score_chart(comparison: Comparison) -> str:
    rows = []
    charted, note = _charted(comparison)
    for d in charted:
        marks = [
            _mark(e, style, label)
            for e, style, label in (
                (d.before.score, "mb", comparison.before.label),
                (d.after.score, "ma", comparison.after.label),
            )
            if e is not None
        ]
        rows.append((d.domain, marks))
    key = (
        f'<p class="key"><i style="background:var(--before)"></i>{escape(comparison.before.label)}'
        f'<i style="background:var(--after)"></i>{escape(comparison.after.label)}</p>'
    )
    chart = interval_chart(rows, low=0, high=100, unit=" %")
    return f"<h2>Scores, {comparison.level:.0%} intervals</h2>{note}{key}{chart}"


def _difference_chart(comparison: Comparison) -> str:
    styles = {Finding.BETTER: "mg", Finding.WORSE: "mw"}
    rows = [
        (
            d.domain,
            [_mark(d.difference.estimate, styles.get(d.finding, "mf"), "after - before")],
        )
        for d in _charted(comparison)[0]
        if d.difference is not None
    ]
    if comparison.macro_difference is not None:
        style = styles.get(comparison.macro_finding, "mf")
        rows.append(("macro average", [_mark(comparison.macro_difference, style, "macro")]))
    reach = max((max(abs(m.low), abs(m.high)) for _, marks in rows for m in marks), default=10)
    edge = min(100.0, max(10.0, math.ceil(reach / 10) * 10))
    chart = interval_chart(rows, low=-edge, high=edge, unit="", zero_line=True)
    return f"<h2>Paired differences, points</h2>{chart}"


def _mark(estimate: Estimate, style: str, label: str) -> Mark:
    return Mark(
        100 * estimate.value,
        100 * estimate.low,
        100 * estimate.high,
        style,
        f"{label}: {with_interval(estimate)}",
    )


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    classes: Sequence[str] | None = None,
    num_totals: int = 0,
) -> str:
    """Return a table; cells are escaped here. ``classes`` colours the second column of a row."""

    def cell(tag: str, text: str, column: int, style: str = "") -> str:
        names = " ".join(n for n in ("t" if column < left else "", style) if n)
        return (
            f"<{tag}{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{escape(text)}</{tag}>"
        )

    head = "".join(cell("th", text, i) for i, text in enumerate(header))
    lines = []
    for number, row in enumerate(rows):
        style = classes[number] if classes else ""
        cells = "".join(cell("td", t, i, style if i == 1 else "") for i, t in enumerate(row))
        total = ' class="total"' if number >= len(rows) - num_totals else ""
        lines.append(f"<tr{total}>{cells}</tr>")
    body = "".join(lines)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def _comparison_table(comparison: Comparison) -> str:
    rows, classes = [], []
    for d in comparison.domains:
        difference = None if d.difference is None else d.difference.estimate
        classes.append(_COLOURS.get(d.finding, "flat"))
        rows.append(
            [d.domain, finding_text(d.finding, d.detectable), str(d.num_pairs),
             with_interval(d.before.score), with_interval(d.after.score),
             with_signed_interval(difference), f"{d.q_value:.2g}",
             str(d.flow.learned), str(d.flow.forgotten)]
        )  # fmt: skip
    classes.append(_COLOURS.get(comparison.macro_finding, "flat"))
    rows.append(
        ["macro average", str(comparison.macro_finding),
         str(sum(d.num_pairs for d in comparison.domains)),
         with_interval(comparison.before.macro), with_interval(comparison.after.macro),
         with_signed_interval(comparison.macro_difference), "",
         str(comparison.flow.learned), str(comparison.flow.forgotten)]
    )  # fmt: skip
    header = ["domain", "verdict", "tasks", "before %", "after %", "difference", "q", "learned",
              "forgotten"]  # fmt: skip
    table = html_table(header, rows, left=2, classes=classes, num_totals=1)
    return f"<h2>Per domain</h2>{table}"


def _summary_table(summary: Summary) -> str:
    rows = [
        [d.domain, str(d.num_tasks), with_interval(d.score), percent(d.floor, 0),
         with_interval(d.corrected), f"{d.mean_tokens:.0f}"]
        for d in summary.domains
    ]  # fmt: skip
    rows.append(["macro average", "", with_interval(summary.macro), "",
                 with_interval(summary.macro_corrected), ""])  # fmt: skip
    header = ["domain", "tasks", "score %", "floor", "chance-corrected", "tokens"]
    marks = [
        (d.domain, [_mark(d.score, "ma", summary.label)])
        for d in summary.domains
        if d.score is not None
    ]
    chart = interval_chart(marks, low=0, high=100, unit=" %")
    return f"<h2>Per domain</h2>{chart}{html_table(header, rows, num_totals=1)}"


def _counts(report: Report) -> str:
    sides = (
        [report.summary]
        if report.comparison is None
        else [report.comparison.before, report.comparison.after]
    )
    rows = []
    for name in [d.domain for d in sides[-1].domains]:
        for side in sides:
            d = next(x for x in side.domains if x.domain == name)
            cells = [str(d.counts.by_outcome.get(o, 0)) for o in Outcome]
            rows.append([name, side.label, *cells, with_interval(d.corrected)])
    for side in sides:
        cells = [str(side.counts.by_outcome.get(o, 0)) for o in Outcome]
        rows.append(["all", side.label, *cells, with_interval(side.macro_corrected)])
    header = ["domain", "run", *[str(o).replace("_", " ") for o in Outcome], "chance-corrected"]
    table = html_table(header, rows, left=2, num_totals=len(sides))
    return f"<h2>What became of every completion</h2>{table}"


def _multi_turn(report: Report) -> str:
    shown = [(r.before, "before") for r in report.repairs]
    shown += [(r.after, "after") for r in report.repairs]
    shown = shown or [(r, report.summary.label) for r in report.repair_rates]
    rows = [
        [r.domain, side, with_interval(r.first_attempt), with_interval(r.final),
         str(r.num_failed_first), with_interval(r.repaired), f"{r.mean_attempts:.2f}"]
        for r, side in sorted(shown, key=lambda p: (p[0].domain, p[1] == "after"))
    ]  # fmt: skip
    header = ["domain", "run", "first attempt %", "final %", "failed first", "of these repaired %",
              "attempts"]  # fmt: skip
    lines = [
        f"<p>{escape(r.before.domain)}: first attempt "
        f"{with_signed_interval(r.first_difference)} points, final "
        f"{with_signed_interval(r.final_difference)} points (paired).</p>"
        for r in report.repairs
    ]
    return f"<h2>Multi-turn code</h2>{html_table(header, rows, left=2)}{''.join(lines)}"


def _examples(examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    parts = ["<h2>Completions side by side</h2>",
             "<p>Chosen to show what changed; not a random sample.</p>"]  # fmt: skip
    domain = ""
    for example in examples:
        if example.domain != domain:
            domain = example.domain
            parts.append(f"<h3>{escape(domain)}</h3>")
        style = {"learned": "better", "forgotten": "worse"}.get(example.move, "flat")
        gold = "" if example.gold is None else f"<b>Reference</b><pre>{_text(example.gold)}</pre>"
        sides = "".join(
            _side(name, row)
            for name, row in (("Before", example.before), ("After", example.after))
            if row is not None
        )
        parts.append(
            f'<details><summary>Task {example.index}: <span class="{style}">{example.move}</span> '
            f'<span class="tag">{escape(_first_line(example.prompt))}</span></summary>'
            f'<div class="pair"><div><b>Prompt</b><pre>{_text(example.prompt)}</pre>{gold}</div>'
            f"{sides}</div></details>"
        )
    return "".join(parts)


def _side(name: str, row: EvalRow) -> str:
    note = f"{row.outcome}, {row.num_tokens} tokens" + (f", {row.reason}" if row.reason else "")
    return (
        f'<div><b>{name}</b> <span class="tag">{escape(shorten(note, 200))}</span>'
        f"<pre>{_text(transcript(row.completion))}</pre></div>"
    )


def _text(text: str) -> str:
    return escape(shorten(text, 4000))


def _first_line(text: str) -> str:
    line = next((part for part in text.splitlines() if part.strip()), "")
    return line if len(line) <= 90 else line[:89] + "…"


def _reading(report: Report) -> str:
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in reading_lines(report))
    return f"<h2>How to read this</h2>{paragraphs}"
