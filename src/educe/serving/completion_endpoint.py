"""``POST /v1/completions``: plain prompts, and the likelihood of given texts by ``echo``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON, Message
from educe.serving.errors import ApiError
from educe.serving.prompts import Prompt, read_prompts
from educe.serving.replies import LOWEST_LOGPROB, Choice, Desk, as_json, events_of, new_id, usage
from educe.serving.requests import CompletionRequest, parse_completion
from educe.serving.text_stream import TextStream
from educe.serving.tickets import (
    AnyTicket,
    Ending,
    Mailbox,
    Piece,
    PromptRead,
    ScoreTicket,
    TokenRecord,
)
from educe.serving.token_text import TokenTexts


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as text, and its tokens with their places in it."""

    text: str
    offsets: tuple[int, ...]


@dataclass(slots=True)
class CompletionAnswer:
    """An answer under way: submitted on creation by :func:`ask_completion`."""

    desk: Desk
    request: CompletionRequest
    prompts: Sequence[Prompt]
    tickets: Sequence[AnyTicket]
    mailbox: Mailbox
    answer_id: str
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(p.token_ids) for p in self.prompts)

    @property
    def is_streamed(self) -> bool:
        return self.request.stream

    @property
    def note(self) -> str:
        return self.request.note

    async def whole(self) -> dict[str, JSON]:
        """Return the body of the answer."""
        request = self.request
        choices = [Choice() for _ in range(len(self.prompts) * request.n)]
        reads: dict[int, PromptRead] = {}
        async for event in events_of(self.mailbox, len(self.tickets)):
            if isinstance(event, PromptRead):
                reads[event.prompt] = event
            elif isinstance(event, Piece | Ending):
                choices[event.choice].take(event)
        body = self._head()
        body["choices"] = [
            await self._finished(i, choice, reads.get(i // request.n))
            for i, choice in enumerate(choices)
        ]
        body["usage"] = usage(self.num_prompt_tokens, sum(c.num_tokens for c in choices))
        return body

    async def chunks(self) -> AsyncIterator[dict[str, JSON]]:
        """Yield the chunks of a streamed answer."""
        options = self.request.stream_options
        has_usage = options is not None and options.include_usage
        choices = [Choice() for _ in range(len(self.prompts) * self.request.n)]
        if self.request.echo:
            for i in range(len(choices)):
                text = self._echo(self.prompts[i // self.request.n]).text
                yield self._chunk(i, text, None, "", has_usage)
        async for event in events_of(self.mailbox, len(self.tickets)):
            if not isinstance(event, Piece | Ending):
                continue
            choice = choices[event.choice]
            choice.take(event)
            if isinstance(event, Ending):
                last = Piece(event.choice, "")
                if self.desk.gate is not None:
                    await self._pass_gate(event.choice, choice)
                    last = Piece(event.choice, choice.text, tuple(choice.records),
                                 tuple(choice.token_ids))  # fmt: skip
                yield self._chunk(event.choice, last.text, last, choice.finish, has_usage)
            elif self.desk.gate is None and self._is_worth_sending(event):
                yield self._chunk(event.choice, event.text, event, "", has_usage)
        if has_usage:
            counts = usage(self.num_prompt_tokens, sum(c.num_tokens for c in choices))
            yield {**self._head(), "choices": [], "usage": counts}

    def _is_worth_sending(self, piece: Piece) -> bool:
        has_ids = bool(piece.token_ids) and self.request.return_token_ids
        return bool(piece.text or piece.records) or has_ids

    async def _finished(
        self, index: int, choice: Choice, read: PromptRead | None
    ) -> dict[str, JSON]:
        request = self.request
        prompt = self.prompts[index // request.n]
        if self.desk.gate is not None and request.max_tokens:
            await self._pass_gate(index, choice)
        records: list[TokenRecord] = list(choice.records)
        text = choice.text
        if request.echo:
            echo = self._echo(prompt)
            text = echo.text + text
            records = [_moved(r, len(echo.text)) for r in records]
            if read is not None:
                records = [*_prompt_records(prompt, echo, read), *records]
        out: dict[str, JSON] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(records),
            "finish_reason": choice.finish or "length",
        }
        if request.return_token_ids:
            out["prompt_token_ids"] = list(prompt.token_ids)
            out["token_ids"] = choice.token_ids
        return out

    async def _pass_gate(self, index: int, choice: Choice) -> None:
        if self.desk.gate is None:
            return
        prompt = self.prompts[index // self.request.n]
        asked = Message("user", self._echo(prompt).text)
        await choice.pass_gate(self.desk.gate, (asked,), self.answer_id, self.desk.metrics)

    def _echo(self, prompt: Prompt) -> Echo:
        return echo_of(prompt, self.desk.texts)

    def _head(self) -> dict[str, JSON]:
        return {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.desk.model.name,
            "system_fingerprint": self.desk.model.fingerprint,
        }

    def _chunk(
        self, index: int, text: str, piece: Piece | None, finish: str, has_usage: bool
    ) -> dict[str, JSON]:
        choice: dict[str, JSON] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish or None,
        }
        if piece is not None and piece.records:
            choice["logprobs"] = self._logprobs(piece.records)
        if piece is not None and self.request.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        chunk = {**self._head(), "choices": [choice]}
        return {**chunk, "usage": None} if has_usage else chunk

    def _logprobs(self, records: Iterable[TokenRecord]) -> dict[str, JSON] | None:
        if self.request.logprobs is None:
            return None
        texts = self.desk.texts
        known = list(records)
        return {
            "tokens": [texts.name(r.token_id) for r in known],
            "token_logprobs": [as_json(r.logprob) for r in known],
            "top_logprobs": [_top_by_text(r, texts) for r in known],
            "text_offset": [r.offset for r in known],
        }


def ask_completion(desk: Desk, body: bytes) -> CompletionAnswer:
    """Check a request and queue its tickets.

    Raises:
        ApiError: a wrong request, a full queue, a broken engine.
    """
    request = parse_completion(body)
    desk.check_model(request.model)
    if request.stream and request.echo and request.logprobs is not None:
        raise ApiError("log-probabilities of an echoed prompt are not streamed", param="stream")
    prompts = read_prompts(
        request.prompt, desk.model.chat.tokenizer, add_special_tokens=request.add_special_tokens
    )
    limits = [desk.room(p, request.max_tokens, "prompt") for p in prompts]
    mailbox = Mailbox()
    answer_id = new_id("cmpl")
    tickets: list[AnyTicket] = []
    if request.echo and request.logprobs is not None:
        tickets += [
            ScoreTicket(i, p.token_ids, request.logprobs, mailbox) for i, p in enumerate(prompts)
        ]
    if request.max_tokens:
        tickets += desk.tickets(
            request, prompts, limits, mailbox, answer_id=answer_id, num_top=request.logprobs
        )
    num_tokens = sum(len(p.token_ids) for p in prompts)
    desk.submit(tickets, num_tokens, param="prompt" if len(prompts) > 1 else "n")
    return CompletionAnswer(desk, request, prompts, tickets, mailbox, answer_id)


def echo_of(prompt: Prompt, texts: TokenTexts) -> Echo:
    """Return a prompt's text and where in it each token begins.

    What the tokenizer added has no text; all other special tokens show theirs.
    """
    stream = TextStream(texts.plain)
    text = ""
    offsets = [0] * prompt.num_added
    for token_id in prompt.token_ids[prompt.num_added :]:
        offsets.append(stream.length)
        text += stream.push(token_id)
    return Echo(text + stream.finish(), tuple(offsets))


def _prompt_records(prompt: Prompt, echo: Echo, read: PromptRead) -> list[TokenRecord]:
    return [
        TokenRecord(token_id, logprob, top, offset)
        for token_id, logprob, top, offset in zip(
            prompt.token_ids, read.logprobs, read.top, echo.offsets, strict=True
        )
    ]


def _moved(record: TokenRecord, by: int) -> TokenRecord:
    return TokenRecord(record.token_id, record.logprob, record.top, record.offset + by)


def _top_by_text(record: TokenRecord, texts: TokenTexts) -> dict[str, float] | None:
    """Return the alternatives by their text, the token itself among them.

    None for a prompt's first token, which nothing predicts.
    """
    if record.logprob is None:
        return None
    found: dict[str, float] = {}
    for token_id, logprob in (*record.top, (record.token_id, record.logprob)):
        found.setdefault(texts.name(token_id), max(logprob, LOWEST_LOGPROB))
    return found
