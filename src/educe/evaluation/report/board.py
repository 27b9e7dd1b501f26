"""The forgetting board on one page: what was lost, what kind of loss, and the trend."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from educe.evaluation.forgetting import DomainLoss, ForgettingBoard
from educe.evaluation.records import EvalResult
from educe.evaluation.report.charts import sparkline
from educe.evaluation.report.content import percent, with_signed_interval
from educe.evaluation.report.markdown import table
from educe.evaluation.report.page import html_table, page
from educe.evaluation.summary import Summary, summarise

_HEADER = ["domain", "found", "kind of loss", "difference", "q", "learned", "forgotten"]


def board_text(board: ForgettingBoard) -> str:
    """Return the sentence at the top of the board."""
    lost = board.lost
    text = (
        f"{len(lost)} of {board.num_domains} domains lost, out of {len(board.suspects)} suspects "
        f"confirmed on fresh tasks (false discovery rate {board.false_discovery_rate:.0%}, "
        f"{board.num_tasks:,} tasks in all)."
    )
    kinds = [loss.kind for loss in lost]
    counted = [f"{kinds.count(k)} {k}" for k in ("knowledge", "format", "unclear") if k in kinds]
    return text + (f" By kind: {', '.join(counted)}." if counted else "")


def board_to_markdown(board: ForgettingBoard, history: Sequence[EvalResult] = ()) -> str:
    """Return the board as Markdown; ``history``: screens of earlier checkpoints, oldest first."""
    parts = ["# What was forgotten", board_text(board)]
    if board.suspects:
        rows = [_cells(s) for s in board.suspects]
        parts.append("## Suspects\n\nDifferences in points.\n\n" + table(_HEADER, rows, left=3))
    if history:
        summaries = [summarise(r) for r in history]
        header = ["domain", *[s.label for s in summaries]]
        parts.append("## Trend\n\nScores in percent.\n\n" + table(header, _trend(board, summaries)))
    return "\n\n".join(parts) + "\n"


def board_to_html(board: ForgettingBoard, history: Sequence[EvalResult] = ()) -> str:
    """Return the board as one self-contained page."""
    body = ["<h1>What was forgotten</h1>", f'<p class="lead">{escape(board_text(board))}</p>']
    body.append(_domain_map(board))
    if board.suspects:
        classes = ["worse" if s.is_lost else "flat" for s in board.suspects]
        rows = [_cells(s) for s in board.suspects]
        body.append("<h2>Suspects</h2>" + html_table(_HEADER, rows, left=3, classes=classes))
    if history:
        summaries = [summarise(r) for r in history]
        header = ["domain", *[s.label for s in summaries]]
        body.append("<h2>Trend, percent</h2>" + html_table(header, _trend(board, summaries)))
        lines = [
            f"<p>{escape(name)} {sparkline(_series(name, summaries))}</p>"
            for name in ("macro average", *[s.domain for s in board.lost])
        ]
        body += lines
    return page("What was forgotten", body)


def _domain_map(board: ForgettingBoard) -> str:
    """Return one small square a domain, by kind: all of them at a glance, names on hovering."""
    lost = {loss.domain: loss for loss in board.suspects}
    by_kind: dict[str, list[str]] = {}
    for d in board.screen.domains:
        suspect = lost.get(d.domain)
        style, found = "flat", "no suspicion"
        if suspect is not None:
            style, found = ("worse", "lost") if suspect.is_lost else ("flat", "not confirmed")
        moved = "" if d.difference is None else f"{100 * d.difference.estimate.value:+.0f} points, "
        sign = "■" if suspect is not None and suspect.is_lost else "▪" if suspect else "·"
        title = escape(f"{d.domain}: screen {moved}{found}", quote=True)
        cell = f'<span class="{style}" title="{title}">{sign}</span>'
        by_kind.setdefault(d.kind or "other", []).append(cell)
    lines = [
        f"<p>{escape(kind)} ({len(cells)}) {''.join(cells)}</p>"
        for kind, cells in sorted(by_kind.items())
    ]
    key = "<p>■ lost, ▪ a suspect that was not confirmed, · nothing seen by the screen</p>"
    return f"<h2>All {board.num_domains} domains</h2>" + "".join(lines) + key


def _cells(loss: DomainLoss) -> list[str]:
    return [
        loss.domain,
        "lost" if loss.is_lost else "not confirmed",
        loss.kind if loss.is_lost else "",
        with_signed_interval(loss.difference),
        f"{loss.q_value:.2g}",
        str(loss.learned),
        str(loss.forgotten),
    ]


def _series(name: str, summaries: Sequence[Summary]) -> list[float | None]:
    if name == "macro average":
        return [None if s.macro is None else s.macro.value for s in summaries]
    found: list[float | None] = []
    for summary in summaries:
        score = next((d.score for d in summary.domains if d.domain == name), None)
        found.append(None if score is None else score.value)
    return found


def _trend(board: ForgettingBoard, summaries: Sequence[Summary]) -> list[list[str]]:
    names = ["macro average", *[s.domain for s in board.suspects]]
    return [
        [name, *["–" if v is None else percent(v) for v in _series(name, summaries)]]
        for name in names
    ]
