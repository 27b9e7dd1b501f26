"""One HTML file about a run: curves, domains, alarms, samples, answers before and after.

Everything is inside the file: no scripts, styles or pictures from elsewhere, so it can be mailed or
opened offline. What models wrote is escaped.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from educe.core.types import JSON
from educe.observability.comparisons import (
    AnswerComparison,
    DomainComparison,
    DomainResult,
    compare_answers,
    compare_domains,
)
from educe.observability.efficiency import efficiency_text, run_efficiency
from educe.observability.history import History
from educe.observability.interference_view import (
    interference_svg,
    interference_text,
    newest_interference,
)
from educe.observability.plots import Curve, alarm_marks, domain_curves, overall_curves
from educe.observability.run_reader import RunReader, SampleFilter, StoredEvent, StoredSample
from educe.observability.svg import curve_svg
from educe.observability.terminal_text import format_number, printable
from educe.observability.token_record import Decode, marked_sequences

_MAX_TEXT = 4000
_TEMPLATE = Path(__file__).with_name("run_page.html")


def write_page(
    store: RunReader, path: str | Path, *, max_samples: int = 200, decode: Decode | None = None
) -> Path:
    """Write the page of a run and return its path.

    Args:
        max_samples: newest samples that are put in the page.
        decode: text of a token id, for samples that hold ids only.
    """
    history = History(store.metrics())
    evaluations = store.events("eval")
    samples = store.samples(SampleFilter(limit=max_samples, newest_first=True))
    info = store.info()
    facts = [
        f"status {info.status}",
        f"started {time.strftime('%Y-%m-%d %H:%M', time.localtime(info.created))}",
        f"{info.num_attempts} attempt{'s' if info.num_attempts > 1 else ''}",
        *(f"{stage} step {step}" for stage, step in info.last_steps.items()),
        f"educe {info.educe_version}",
    ]
    content = {
        "title": _text(store.name),
        "facts": _text(" · ".join(facts)),
        "overall": _curves(overall_curves(history, alarm_marks(store))),
        "domains": _curves(domain_curves(history), limits=(0.0, 1.0)),
        "interference": _interference(store),
        "evaluation": _evaluation(compare_domains(evaluations)) + _efficiency(store),
        "answers": _answers(compare_answers(evaluations)),
        "alarms": _alarms(store.events("alarm")),
        "samples": _samples(samples, decode),
        "recipe": _text(json.dumps(store.recipe, indent=2, ensure_ascii=False)),
    }
    page = _TEMPLATE.read_text(encoding="utf-8")
    # One pass over the template: text that came from models is never searched for placeholders.
    pieces = page.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        filled += [content[name.strip()], rest]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(filled), encoding="utf-8", errors="replace")
    return path


def _text(text: JSON, max_length: int = _MAX_TEXT) -> str:
    shown = printable(str(text))
    if len(shown) > max_length:
        shown = f"{shown[:max_length]}… ({len(shown) - max_length} more characters)"
    return html.escape(shown)


def _none(what: str) -> str:
    return f'<p class="none">{what}</p>'


def _curves(curves: Sequence[Curve], limits: tuple[float, float] | None = None) -> str:
    drawn = [curve_svg(c.title, c.series, marks=c.alarm_steps, limits=limits) for c in curves]
    return "".join(drawn) or _none("No metrics yet.")


def _interference(store: RunReader) -> str:
    view = newest_interference(store)
    if view is None:
        return _none("Gradients were not measured (balance.measure_every).")
    return interference_svg(view) + f"<pre>{_text(interference_text(view))}</pre>"


def _result(result: DomainResult | None) -> str:
    if result is None or result.score is None:
        return "-"
    if result.low is None or result.high is None:
        return f"{result.score:.3f}"
    return f"{result.score:.3f} <small>[{result.low:.3f}, {result.high:.3f}]</small>"


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "<td>-</td>"
    kind = "up" if after > before else "down" if after < before else ""
    return f'<td class="{kind}">{after - before:+.3f}</td>'


def _evaluation(rows: Iterable[DomainComparison]) -> str:
    body = "".join(
        f"<tr><td>{_text(r.domain)}</td><td>{_result(r.before)}</td><td>{_result(r.after)}</td>"
        f"{_change(r.before.score if r.before else None, r.after.score)}</tr>"
        for r in rows
    )
    if not body:
        return _none("No evaluation was recorded.")
    head = "<tr><th>domain</th><th>before</th><th>after</th><th>change</th></tr>"
    return f"<table>{head}{body}</table>"


def _efficiency(store: RunReader) -> str:
    """Return what the gain cost, nothing where there is no before and after."""
    gained = run_efficiency(store)
    return "" if gained is None else f"<p>{_text(efficiency_text(gained))}</p>"


def _answers(rows: Iterable[AnswerComparison]) -> str:
    def side(label: str, text: str, score: float | None) -> str:
        shown = "unscored" if score is None else format_number(score)
        return f"<div><h4>{label}: {shown}</h4><pre>{_text(text)}</pre></div>"

    blocks = [
        f"<details open><summary>{_text(r.domain)} <small>{_text(r.task_id)}</small></summary>"
        f"<pre>{_text(r.prompt)}</pre>"
        + (f"<p>gold: <code>{_text(r.gold)}</code></p>" if r.gold else "")
        + f'<div class="pair">{side("before", r.before, r.score_before)}'
        f"{side('after', r.after, r.score_after)}</div></details>"
        for r in rows
    ]
    return "".join(blocks) or _none("No answers were recorded both before and after.")


def _alarms(events: Iterable[StoredEvent]) -> str:
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_text(e.payload.get(k, ''))}</td>" for k in ("stage", "step", "kind"))
        + f"<td>{_text(e.payload.get('domain') or 'all')}</td>"
        f"<td>{_text(e.payload.get('cause', ''))}</td></tr>"
        for e in events
    )
    if not body:
        return _none("No alarms.")
    head = "<tr><th>stage</th><th>step</th><th>alarm</th><th>domain</th><th>cause</th></tr>"
    return f"<table>{head}{body}</table>"


def _samples(samples: Iterable[StoredSample], decode: Decode | None) -> str:
    body = "".join(_sample(sample, decode) for sample in samples)
    if not body:
        return _none("No samples were recorded.")
    head = "<tr><th>stage</th><th>step</th><th>domain</th><th>verdict</th><th>score</th>"
    return (
        f'<table id="samples">{head}<th>reward</th><th>advantage</th><th>transcript</th></tr>'
        f"{body}</table>"
    )


def _sample(sample: StoredSample, decode: Decode | None) -> str:
    body = sample.body
    score = body.get("score") or {}
    value = score.get("value")
    verdict = "unscored" if value is None else str(score.get("verdict") or "")
    domain = str(body.get("domain", ""))
    messages = [m for m in body.get("messages") or [] if isinstance(m, Mapping)]
    last = str(messages[-1].get("content", "")) if messages else ""
    transcript = "".join(
        f'<div class="message"><b>{_text(m.get("role", "?"))}</b>'
        f"<pre>{_text(m.get('content', ''))}</pre></div>"
        for m in messages
    )
    reason = f"<p>{_text(score['reason'])}</p>" if score.get("reason") else ""
    numbers = (value, body.get("reward"), body.get("advantage"))
    cells = "".join(
        f"<td>{format_number(n if isinstance(n, (int, float)) else None)}</td>" for n in numbers
    )
    return (
        f'<tr data-domain="{_text(domain)}" data-verdict="{_text(verdict)}"><td>'
        f"{_text(sample.stage)}</td><td>{sample.step}</td><td>{_text(domain)}</td>"
        f'<td class="{_text(verdict)}">{_text(verdict)}</td>{cells}<td><details><summary>'
        f"{_text(last, 80)}</summary>{reason}{transcript}{_tokens(body, decode)}"
        "</details></td></tr>"
    )


def _tokens(body: Mapping[str, JSON], decode: Decode | None) -> str:
    """Return the tokens, trained ones marked, when their texts are known."""
    shown = []
    for sequence in marked_sequences(body, decode):
        spans = "".join(
            f'<span class="{"trained" if trained else "context"}">{_text(token, 200)}</span>'
            for token, trained in sequence
        )
        shown.append(f'<pre class="tokens">{spans}</pre>')
    return "".join(shown)
