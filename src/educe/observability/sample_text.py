"""Samples as text for a terminal: the transcript, or every token coloured by the training mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from educe.core.types import JSON
from educe.observability.run_reader import StoredSample
from educe.observability.terminal_text import format_number, printable
from educe.observability.token_record import Decode, marked_sequences

if TYPE_CHECKING:
    from rich.text import Text

_VERDICT_STYLES = {
    "right": "bold green",
    "partial": "bold yellow",
    "wrong": "bold red",
    "unparseable": "bold red",
    "refused": "bold red",
    "unscored": "bold magenta",
}
_ROLE_STYLES = {"assistant": "green", "system": "dim", "user": "cyan", "tool": "yellow"}


def sample_text(
    sample: StoredSample, *, by_token: bool, has_colour: bool, decode: Decode | None = None
) -> Text:
    """Return one sample, several lines.

    Args:
        by_token: show the token record instead of the messages.
        has_colour: without colours, trained tokens stand between ⟦ and ⟧.
        decode: text of a token id, for samples that hold ids only.
    """
    from rich.text import Text

    text = _head(sample)
    if by_token:
        text.append_text(_tokens(sample.body, has_colour, decode))
    else:
        for message in sample.body.get("messages") or []:
            role = str(message.get("role", "?"))
            text.append(f"  [{role}] ", style=_ROLE_STYLES.get(role, ""))
            text.append(_indented(str(message.get("content", ""))) + "\n")
            for call in message.get("tool_calls") or []:
                called = f"{call.get('name', '?')}({call.get('arguments', '')})"
                text.append(f"    -> {printable(called)}\n", style="yellow")
    return text.append_text(Text("\n"))


def _head(sample: StoredSample) -> Text:
    from rich.text import Text

    body = sample.body
    score = body.get("score") or {}
    verdict = "unscored" if score.get("value") is None else str(score.get("verdict") or "scored")
    text = Text()
    text.append(f"{sample.stage} {sample.step}  ", style="bold")
    text.append(f"{printable(str(body.get('task_id') or body.get('domain', '?')))}  ")
    text.append(f"#{body.get('request_id', '?')}.{body.get('sample_index', '?')}  ", style="dim")
    text.append(verdict, style=_VERDICT_STYLES.get(verdict, "bold"))
    numbers = {
        "score": score.get("value"),
        "reward": body.get("reward"),
        "advantage": body.get("advantage"),
    }
    for name, value in numbers.items():
        text.append(f"  {name} {format_number(value)}")
    text.append("\n")
    parts = score.get("parts") or {}
    if parts:
        shown = ", ".join(f"{printable(str(k))} {format_number(v)}" for k, v in parts.items())
        text.append(f"  parts: {shown}\n", style="dim")
    reason = " ".join(str(r) for r in (score.get("fault"), score.get("reason")) if r)
    if reason:
        text.append(f"  reason: {_indented(reason)}\n", style="dim")
    return text


def _indented(content: str) -> str:
    return printable(content).replace("\n", "\n    ")


def _tokens(body: Mapping[str, JSON], has_colour: bool, decode: Decode | None) -> Text:
    from rich.text import Text

    sequences = marked_sequences(body, decode)
    if not sequences:
        return _turns(body)
    text = Text()
    for sequence in sequences:
        text.append("  ")
        is_open = False
        for token, trained in sequence:
            if not has_colour and trained != is_open:
                text.append("⟦" if trained else "⟧")
                is_open = trained
            shown = printable(token).replace("\n", "\\n\n    ")
            text.append(shown, style="black on green" if trained else "dim")
        text.append("⟧\n" if is_open else "\n")
        num_trained = sum(trained for _, trained in sequence)
        text.append(f"  {len(sequence)} tokens, {num_trained} trained\n", style="dim")
    return text


def _turns(body: Mapping[str, JSON]) -> Text:
    """Token ids with their log-probabilities, where no tokenizer is at hand."""
    from rich.text import Text

    text = Text()
    for number, turn in enumerate(body.get("turns") or [], 1):
        ids, logprobs = turn["completion_token_ids"], turn["behaviour_logprobs"]
        text.append(
            f"  turn {number}: {len(turn['context_token_ids'])} context tokens, "
            f"{len(ids)} sampled, stopped by {turn['stop_reason']}\n",
            style="dim",
        )
        pairs = (f"{i}:{p:.2f}" for i, p in zip(ids, logprobs, strict=False))
        text.append(f"    {' '.join(pairs)}\n", style="green")
    return text if text else Text("  no tokens were recorded for this sample\n")
