"""Chat rendering: the only place where messages become tokens and tokens become messages.

The rules that keep trained ids equal to sampled ids:

* The template writes all special tokens; the tokenizer adds nothing (``add_special_tokens=False``),
  and what a message says never becomes one (``message_text``), so no text opens or ends a turn.
* What was sampled is never decoded and encoded again. A later turn's context is the earlier
  context, the sampled ids as they are, and the tokens of what the template puts after them.
* A template that rewrites earlier turns (for example one that strips thinking) breaks that prefix;
  the context is then rendered afresh and the trajectory gives several training samples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from educe.core.errors import EduceError
from educe.core.types import Message, ToolCall
from educe.models.message_text import MessageText

_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_PLACEHOLDER = "\x02educe\x03"


@dataclass(frozen=True, slots=True)
class DemonstrationTokens:
    """A rendered conversation: ``mask`` is true on assistant tokens (and their end tokens)."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]


class ChatFormat:
    """Renders with a tokenizer's template.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        system_prompt: put first when a conversation has no system message; None adds none and
            leaves the template's own default.
        template: replaces the tokenizer's template.
    """

    def __init__(
        self, tokenizer: Any, system_prompt: str | None = None, template: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template or tokenizer.chat_template
        if not self.template:
            raise EduceError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '?')!r} has no chat template; "
                "name one with model.chat_template"
            )
        self.system_prompt = system_prompt
        self._text = MessageText(tokenizer)
        self._end = self._end_text()
        ids = self.encode(self._end)
        if len(ids) != 1:
            raise EduceError(f"the template's end-of-turn text {self._end!r} is not one token")
        self.end_token_id: int = ids[0]
        self._header = self._text.after_special(self._render([Message("user", "a")]))

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Token ids that end a turn."""
        eos = self.tokenizer.eos_token_id
        return frozenset({self.end_token_id} | ({eos} if eos is not None else set()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of template text: names of special tokens become those tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a turn's text as it stands behind its header: never a special token."""
        marked = self._text.mark(text)
        lead = self._behind_special(self._header)
        whole = self._behind_special(self._header + marked)
        # A first letter that merges with the header's last would be no text of the turn alone.
        return whole[len(lead) :] if whole[: len(lead)] == lead else self._behind_special(marked)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token's own text (for display)."""
        return [str(self.tokenizer.decode([i])) for i in token_ids]

    def prompt_text(self, messages: Sequence[Message], *, generate: bool = True) -> str:
        """Return the rendered conversation, by default with the header of the next turn.

        For reading: its names of special tokens no longer tell the template's from a message's.
        """
        return self._text.unmark(self._render(messages, generate=generate))

    def _render(self, messages: Sequence[Message], *, generate: bool = True) -> str:
        """Return the rendered conversation with marked messages."""
        rows = [_marked(m, self._text) for m in messages]
        if self.system_prompt is not None and (not rows or rows[0]["role"] != "system"):
            rows.insert(0, {"role": "system", "content": self._text.mark(self.system_prompt)})
        return str(
            self.tokenizer.apply_chat_template(
                rows, tokenize=False, add_generation_prompt=generate, chat_template=self.template
            )
        )

    def prompt_tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the context of the first turn."""
        return tuple(self._text.encode(self._render(messages)))

    def next_context(
        self,
        context: Sequence[int],
        completion: Sequence[int],
        transcript: Sequence[Message],
        replies: Sequence[Message],
    ) -> tuple[int, ...]:
        """Return the context of the next turn.

        Args:
            context: tokens before the completion.
            completion: tokens sampled, as they are.
            transcript: messages up to and with the assistant message of that completion.
            replies: what the environment answered.
        """
        after = self._after_turn(transcript, replies)
        if after is None:
            return self.prompt_tokens([*transcript, *replies])
        # A turn cut by its token limit has no end token; the template's stands in, untrained.
        is_ended = bool(completion) and completion[-1] in self.stop_token_ids
        end = () if is_ended else (self.end_token_id,)
        return (*context, *completion, *end, *self._behind_special(after))

    def demonstration(
        self, messages: Sequence[Message], turns: Sequence[Message]
    ) -> DemonstrationTokens:
        """Render a perfect attempt exactly as the engine would have produced it.

        Args:
            messages: the prompt.
            turns: assistant messages with the replies between them.
        """
        tokens: list[int] = []
        mask: list[bool] = []
        transcript = list(messages)
        context = self.prompt_tokens(messages)
        position = 0
        while position < len(turns):
            if turns[position].role != "assistant":
                raise EduceError(f"a demonstration's turn {position} is not the assistant's")
            completion = (*self.encode_text(turns[position].content), self.end_token_id)
            if tuple(tokens) != context[: len(tokens)]:
                raise EduceError(
                    "the chat template rewrites earlier turns; multi-turn demonstrations need a "
                    "template that keeps them (set model.chat_template)"
                )
            mask += [False] * (len(context) - len(tokens)) + [True] * len(completion)
            tokens = [*context, *completion]
            transcript.append(turns[position])
            replies = []
            position += 1
            while position < len(turns) and turns[position].role != "assistant":
                replies.append(turns[position])
                position += 1
            if position < len(turns):
                context = self.next_context(context, completion, transcript, replies)
                transcript += replies
        return DemonstrationTokens(tuple(tokens), tuple(mask))

    def parse(self, text: str) -> Message:
        """Return the assistant message of a completion; well-formed tool calls are parsed."""
        return Message("assistant", text, parse_tool_calls(text))

    def _after_turn(self, transcript: Sequence[Message], replies: Sequence[Message]) -> str | None:
        """Return what the template writes after the last assistant turn's end token, marked.

        None when the template changes what came before, so that the prefix would not hold.
        """
        marked = [*transcript[:-1], Message("assistant", _PLACEHOLDER)]
        head, found, _ = self._render(marked, generate=False).rpartition(_PLACEHOLDER)
        full = self._render([*marked, *replies])
        real = self._render([*transcript, *replies])
        prefix = head + _PLACEHOLDER
        if not found or not full.startswith(prefix):
            return None
        # As it stands, or without the white space around it, which some templates take off.
        said = transcript[-1].content
        known = (head + self._text.mark(said), head + self._text.mark(said.strip()))
        if not real.startswith(known):
            return None
        rest = full[len(prefix) :]
        end = rest.find(self._end)
        return None if end < 0 else rest[end + len(self._end) :]

    def _behind_special(self, marked: str) -> list[int]:
        """Return the ids of a text that stands behind a special token, not at a prompt's start."""
        return self._text.encode(self._end + marked)[1:]

    def _end_text(self) -> str:
        """Find the end-of-turn token by rendering a turn and looking at what follows its text."""
        rows = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": _PLACEHOLDER},
        ]
        text = str(
            self.tokenizer.apply_chat_template(rows, tokenize=False, chat_template=self.template)
        )
        rest = text.rpartition(_PLACEHOLDER)[2]
        ids = self.encode(rest)
        specials = set(self.tokenizer.all_special_ids)
        for token_id in ids:
            if token_id in specials:
                return str(self.tokenizer.convert_ids_to_tokens(token_id))
        if self.tokenizer.eos_token is None:
            raise EduceError("the chat template has no end-of-turn token and there is no eos_token")
        return str(self.tokenizer.eos_token)


def load_chat_format(folder: Path, system_prompt: str | None, template_path: str) -> ChatFormat:
    """Return the chat rendering of a model's folder; the weights are not touched."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    template = Path(template_path).read_text(encoding="utf-8") if template_path else None
    return ChatFormat(tokenizer, system_prompt, template)


def _marked(message: Message, text: MessageText) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": text.mark(message.content)}
    if message.name:
        row["name"] = text.mark(message.name)
    return row


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls in ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` blocks.

    A malformed block gives no call: the environment then answers with an error message.
    """
    calls = []
    for number, match in enumerate(_TOOL_CALL.finditer(text)):
        try:
            raw = json.loads(match.group(1))
        except (ValueError, RecursionError):  # huge numbers and deep nesting, too
            continue
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            continue
        arguments = raw.get("arguments", {})
        calls.append(ToolCall(raw["name"], json.dumps(arguments), f"call-{number}"))
    return tuple(calls)
