"""Rows that train without being tasks: TRL's formats for SFT and preferences, as they are.

Supervised rows, by their columns (the first that fits):

* ``messages`` (or ``conversations`` with from/value): a conversation with at least one assistant
  turn;
* ``prompt`` and ``completion``, text or lists of messages;
* ``text``: plain text, trained on as a whole.

Preference rows:

* ``chosen`` and ``rejected``, with ``prompt`` or with the prompt implicit in what both begin with;
* ``prompt``, ``completion`` and ``label`` (true: wanted), for KTO.

Every complaint starts with the row's place, ``file:line``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from educe.config.settings import DataSettings
from educe.core.errors import DomainError, did_you_mean
from educe.core.types import JSON, Message, user
from educe.domains.rows import Row, lookup

Part = str | tuple[Message, ...]
"""Plain text, or messages."""

COLUMNS = (
    "messages",
    "conversations",
    "prompt",
    "completion",
    "text",
    "chosen",
    "rejected",
    "label",
)
"""What rows may bring; a data set's ``columns`` say which are called otherwise."""

_ROLES = ("system", "user", "assistant", "tool")
_SHARE_GPT = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_SHARE_GPT |= {"system": "system", "tool": "tool", "observation": "tool"}


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt and what follows it; both are text, or both are messages.

    Messages of the completion begin with the assistant's first turn and may hold several, with
    replies between them. A plain text has an empty prompt.
    """

    prompt: Part
    completion: Part

    @property
    def is_text(self) -> bool:
        return isinstance(self.completion, str)

    @property
    def num_characters(self) -> int:
        return _length(self.prompt) + _length(self.completion)

    def key(self) -> str:
        """Return the content as text: equal rows are equal keys."""
        return json.dumps([_plain(self.prompt), _plain(self.completion)], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two completions of one prompt, the better one first. ``gap`` is how much, where known."""

    chosen: Written
    rejected: Written
    gap: float | None = None

    @property
    def num_characters(self) -> int:
        return max(self.chosen.num_characters, self.rejected.num_characters)

    def key(self) -> str:
        return json.dumps([self.chosen.key(), self.rejected.key()], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Labelled:
    """One completion that is wanted or not."""

    written: Written
    is_wanted: bool

    @property
    def num_characters(self) -> int:
        return self.written.num_characters

    def key(self) -> str:
        return json.dumps([self.written.key(), self.is_wanted], ensure_ascii=False)


Example = Written | Pair | Labelled


def read_supervised(row: Row, place: str, settings: DataSettings) -> Written:
    """Return the example of a supervised row.

    Raises:
        DomainError: no known format, or a column of the wrong type; starts with ``place``.
    """
    cells = _Cells(row, place, settings)
    cells.refuse_tools()
    for column in ("messages", "conversations"):
        if cells.has(column):
            return _split(cells.messages(column), place, column)
    if cells.has("prompt") and cells.has("completion"):
        return cells.written(cells.part("prompt"), "completion")
    if cells.has("text"):
        text = cells.value("text")
        if not isinstance(text, str):
            raise DomainError(f"{place}: column 'text' must be text, got {type(text).__name__}")
        return Written("", text)
    if cells.has("chosen"):
        raise DomainError(
            f"{place}: this is a row of preferences (column 'chosen'); it belongs under "
            f'[preference.data], or name its column: columns = {{ completion = "chosen" }}'
        )
    raise cells.unknown("'messages', 'prompt' with 'completion', or 'text'")


def read_preference(row: Row, place: str, settings: DataSettings) -> Pair | Labelled:
    """Return the example of a preference row.

    Raises:
        DomainError: no known format, or two completions that are the same; starts with ``place``.
    """
    cells = _Cells(row, place, settings)
    cells.refuse_tools()
    if cells.has("chosen") and cells.has("rejected"):
        return _pair(cells)
    if cells.has("prompt") and cells.has("completion"):
        return Labelled(cells.written(cells.part("prompt"), "completion"), _label(cells))
    raise cells.unknown(
        "'chosen' with 'rejected' (and 'prompt'), or 'prompt', 'completion' and 'label'"
    )


def _pair(cells: _Cells) -> Pair:
    if cells.has("prompt"):
        prompt = cells.part("prompt")
        chosen = cells.written(prompt, "chosen")
        rejected = cells.written(prompt, "rejected")
    else:
        chosen, rejected = _implicit(cells)
    if chosen == rejected:
        raise DomainError(
            f"{cells.place}: 'chosen' and 'rejected' are the same: nothing is preferred"
        )
    return Pair(chosen, rejected)


def _implicit(cells: _Cells) -> tuple[Written, Written]:
    """The prompt is what both completions begin with.

    Of text: up to the last white space in it. A blank there belongs to the completions, as
    tokenizers join it with the word behind it (and as TRL cuts).
    """
    both = cells.value("chosen"), cells.value("rejected")
    if all(isinstance(value, str) for value in both):
        chosen, rejected = both
        same = _common(chosen, rejected)
        if same and same == min(len(chosen), len(rejected)):
            same -= 1  # each completion keeps something of its own
        while same and not chosen[same - 1].isspace():
            same -= 1
        same -= same > 0 and chosen[same - 1] == " "
        prompt = chosen[:same]
        return (
            cells.as_written(prompt, chosen[same:], "chosen"),
            cells.as_written(prompt, rejected[same:], "rejected"),
        )
    first, second = cells.messages("chosen"), cells.messages("rejected")
    same = min(_common(first, second), len(first) - 1, len(second) - 1)
    while same and first[same - 1].role == "assistant":
        same -= 1  # a prompt stops where the model begins
    return (
        _written(first[:same], first[same:], cells.place, "chosen"),
        _written(second[:same], second[same:], cells.place, "rejected"),
    )


def _label(cells: _Cells) -> bool:
    if not cells.has("label"):
        raise cells.unknown("'label' (true or false)")
    value = cells.value("label")
    if value in (0, 1):  # True and False, too
        return bool(value)
    raise DomainError(f"{cells.place}: column 'label' must be true or false, got {value!r:.60}")


class _Cells:
    """A row's columns under their canonical names."""

    def __init__(self, row: Row, place: str, settings: DataSettings) -> None:
        self.row, self.place, self.settings = row, place, settings

    def name(self, column: str) -> str:
        return self.settings.columns.get(column, column)

    def has(self, column: str) -> bool:
        try:
            value = lookup(self.row, self.name(column))
        except KeyError:
            if column in self.settings.columns:
                raise DomainError(
                    f"{self.place}: column {self.name(column)!r} (for {column!r}) is missing."
                    f"{did_you_mean(self.name(column), self.row)} The row has "
                    f"{', '.join(self.row) or 'no columns'}."
                ) from None
            return False
        return value is not None

    def value(self, column: str) -> Any:
        value = lookup(self.row, self.name(column))
        if value in ("", []):
            raise DomainError(f"{self.place}: column {self.name(column)!r} is empty")
        return value

    def messages(self, column: str) -> tuple[Message, ...]:
        return _messages(self.value(column), self.place, self.name(column))

    def part(self, column: str) -> Part:
        value = self.value(column)
        return value if isinstance(value, str) else self.messages(column)

    def written(self, prompt: Part, column: str) -> Written:
        """Return the prompt with the completion in ``column``, in one form."""
        completion = self.part(column)
        if isinstance(completion, str):
            return self.as_written(prompt, completion, column)
        if isinstance(prompt, str):
            prompt = (user(prompt),)
        if completion[: len(prompt)] == prompt:  # some data sets repeat the prompt there
            completion = completion[len(prompt) :]
        return _written(prompt, completion, self.place, self.name(column))

    def as_written(self, prompt: Part, completion: str, column: str) -> Written:
        """Return a completion of text after its prompt, as the data set's template wants it."""
        if isinstance(prompt, str) and self.settings.template == "none":
            return Written(prompt, completion)
        if prompt == "":
            raise DomainError(
                f"{self.place}: 'chosen' and 'rejected' do not begin with the same words, so "
                f"there is no prompt. Give a column 'prompt', or template = \"none\"."
            )
        messages = (user(prompt),) if isinstance(prompt, str) else prompt
        turns = (Message("assistant", completion.strip()),)
        return _written(messages, turns, self.place, self.name(column))

    def refuse_tools(self) -> None:
        if self.row.get("tools"):
            raise DomainError(
                f"{self.place}: column 'tools': tool descriptions are not put into the template "
                f"here. Write them into the system message, as the rollouts will show them."
            )

    def unknown(self, expected: str) -> DomainError:
        return DomainError(
            f"{self.place}: expected the columns {expected}; the row has "
            f"{', '.join(self.row) or 'no columns'}. Name columns that are called otherwise: "
            f'columns = {{ prompt = "question" }}.'
        )


def _messages(value: Any, place: str, column: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise DomainError(
            f"{place}: column {column!r} must be text or a list of messages, got "
            f"{type(value).__name__}"
        )
    return tuple(_message(raw, place, column) for raw in value)


def _message(raw: Any, place: str, column: str) -> Message:
    if not isinstance(raw, Mapping):
        raise DomainError(f"{place}: column {column!r}: a message must be a table, got {raw!r:.80}")
    if "from" in raw and "value" in raw:
        raw = {"role": _SHARE_GPT.get(str(raw["from"]), raw["from"]), "content": raw["value"]}
    role, content = raw.get("role"), raw.get("content")
    calls = raw.get("tool_calls") or []
    if role not in _ROLES:
        raise DomainError(
            f"{place}: column {column!r}: role must be one of {', '.join(_ROLES)}, got {role!r}"
        )
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise DomainError(
            f"{place}: column {column!r}: a message needs a content of text, got {raw!r:.120}"
        )
    blocks = [_call_text(call, place, column) for call in calls]
    return Message(role, "\n".join(filter(None, [content, *blocks])), name=raw.get("name") or "")


def _call_text(call: Any, place: str, column: str) -> str:
    """A tool call as the model writes it (``models.chat.parse_tool_calls`` reads it back)."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DomainError(f"{place}: column {column!r}: a tool call needs a name, got {call!r:.80}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise DomainError(
                f"{place}: column {column!r}: the arguments of a tool call are not JSON: {error}"
            ) from error
    body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _split(messages: tuple[Message, ...], place: str, column: str) -> Written:
    """A conversation: its prompt ends before the first assistant turn."""
    first = next((i for i, m in enumerate(messages) if m.role == "assistant"), None)
    if first is None:
        raise DomainError(f"{place}: column {column!r} has no assistant message to learn from")
    return _written(messages[:first], messages[first:], place, column)


def _written(
    prompt: tuple[Message, ...], completion: tuple[Message, ...], place: str, column: str
) -> Written:
    if not prompt:
        raise DomainError(f"{place}: column {column!r} begins with the assistant: give a prompt")
    if prompt[-1].role == "assistant":
        raise DomainError(
            f"{place}: the prompt ends with an assistant message; it must stop where the model "
            f"begins"
        )
    last = max((i for i, m in enumerate(completion) if m.role == "assistant"), default=-1)
    if not completion or completion[0].role != "assistant":
        role = completion[0].role if completion else "nothing"
        raise DomainError(
            f"{place}: column {column!r}: what follows the prompt must begin with an assistant "
            f"message, got {role}"
        )
    # What comes after the last assistant turn is nothing to learn from.
    return Written(prompt, completion[: last + 1])


def _common(a: Any, b: Any) -> int:
    """Return the length of the longest common prefix of two sequences."""
    for number, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return number
    return min(len(a), len(b))


def _length(part: Part) -> int:
    return len(part) if isinstance(part, str) else sum(len(m.content) for m in part)


def _plain(part: Part) -> JSON:
    return part if isinstance(part, str) else [m.to_json() for m in part]
