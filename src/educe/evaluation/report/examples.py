"""Completions to read side by side: what was learned, what was forgotten, what stayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from educe.core.types import JSON, Message
from educe.evaluation.compare import right_tasks
from educe.evaluation.records import EvalResult, EvalRow


@dataclass(frozen=True, slots=True)
class Example:
    """One task with the first completion of each side (``before`` is None without a comparison).

    ``move`` says what happened to the task: learned, forgotten, kept right, kept wrong, or, without
    a comparison, right or wrong.
    """

    domain: str
    index: int
    move: str
    prompt: str
    gold: str | None
    before: EvalRow | None
    after: EvalRow

    def to_json(self) -> dict[str, JSON]:
        return {
            "domain": self.domain,
            "index": self.index,
            "move": self.move,
            "prompt": self.prompt,
            "gold": self.gold,
            "before": None if self.before is None else self.before.to_json(),
            "after": self.after.to_json(),
        }


_MOVES = {
    (False, True): "learned",
    (True, False): "forgotten",
    (True, True): "kept right",
    (False, False): "kept wrong",
}
# One of each kind first, then more of what changed.
_ORDER = ("learned", "forgotten", "kept wrong", "kept right", "right", "wrong")


def pick_examples(
    after: EvalResult, before: EvalResult | None = None, *, per_domain: int = 3
) -> list[Example]:
    """Return up to ``per_domain`` tasks a domain: one of each kind of move in turn, lowest index
    first. Chosen to show changes, so not a sample that rates could be read from."""
    chosen: list[Example] = []
    for domain in after.domains:
        found = _candidates(after, before, domain)
        queues = [[e for e in found if e.move == move] for move in _ORDER]
        picked: list[Example] = []
        while len(picked) < per_domain and any(queues):
            for queue in queues:
                if queue and len(picked) < per_domain:
                    picked.append(queue.pop(0))
        chosen += picked
    return chosen


def _candidates(after: EvalResult, before: EvalResult | None, domain: str) -> list[Example]:
    now, now_rows = right_tasks(after.rows_in(domain)), _first_rows(after, domain)
    was = {} if before is None else right_tasks(before.rows_in(domain))
    was_rows = {} if before is None else _first_rows(before, domain)
    examples = []
    for index in sorted(now):
        row = now_rows[index]
        if before is None:
            move = "right" if now[index] else "wrong"
        elif index in was:
            move = _MOVES[was[index], now[index]]
        else:
            continue
        prompt = "\n\n".join(_one(m, len(row.prompt)) for m in row.prompt)
        examples.append(Example(domain, index, move, prompt, row.gold, was_rows.get(index), row))
    return examples


def _first_rows(result: EvalResult, domain: str) -> dict[int, EvalRow]:
    rows: dict[int, EvalRow] = {}
    for row in result.rows_in(domain):
        rows.setdefault(row.index, row)
    return rows


def _one(message: Message, count: int) -> str:
    return message.content if count == 1 else f"[{message.role}] {message.content}"


def transcript(messages: Sequence[Message]) -> str:
    """Return what came after the prompt as text: plain for one turn, with roles for several."""
    if len(messages) == 1 and not messages[0].tool_calls:
        return messages[0].content
    lines = []
    for message in messages:
        lines.append(f"[{message.role}{' ' + message.name if message.name else ''}]")
        if message.content:
            lines.append(message.content)
        lines += [f"→ {call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(lines)


def shorten(text: str, limit: int) -> str:
    """Return text of at most about ``limit`` characters, its middle left out and said so."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit * 2 // 3], text[-limit // 3 :]
    return f"{head}\n[… {len(text) - len(head) - len(tail)} characters left out …]\n{tail}"
