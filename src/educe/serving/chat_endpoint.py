"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON, Message, ToolCall
from educe.serving.prompts import chat_prompt, read_messages
from educe.serving.replies import Choice, Desk, as_json, events_of, new_id, usage
from educe.serving.requests import ChatRequest, parse_chat
from educe.serving.tickets import Ending, Mailbox, Piece, Ticket, TokenRecord
from educe.serving.token_text import TokenTexts
from educe.serving.tool_text import ContentStream, Spoken, read_tools, split_calls


@dataclass(slots=True)
class ChatAnswer:
    """An answer under way: submitted on creation by :func:`ask_chat`."""

    desk: Desk
    request: ChatRequest
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    has_tools: bool
    tickets: Sequence[Ticket]
    mailbox: Mailbox
    answer_id: str
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_streamed(self) -> bool:
        return self.request.stream

    @property
    def note(self) -> str:
        return self.request.note

    async def whole(self) -> dict[str, JSON]:
        """Return the body of the answer."""
        choices = [Choice() for _ in self.tickets]
        async for event in events_of(self.mailbox, len(choices)):
            if isinstance(event, Piece | Ending):
                choices[event.choice].take(event)
        body = self._head("chat.completion")
        body["choices"] = [await self._finished(i, choice) for i, choice in enumerate(choices)]
        body["usage"] = usage(len(self.prompt_ids), sum(c.num_tokens for c in choices))
        if self.request.return_token_ids:
            body["prompt_token_ids"] = list(self.prompt_ids)
        return body

    async def chunks(self) -> AsyncIterator[dict[str, JSON]]:
        """Yield the chunks of a streamed answer."""
        options = self.request.stream_options
        has_usage = options is not None and options.include_usage
        choices = [Choice() for _ in self.tickets]
        contents = [ContentStream() for _ in self.tickets] if self.has_tools else None
        for i in range(len(choices)):
            yield self._chunk(i, {"role": "assistant", "content": ""}, has_usage)
        async for event in events_of(self.mailbox, len(choices)):
            if not isinstance(event, Piece | Ending):
                continue
            choice = choices[event.choice]
            choice.take(event)
            if isinstance(event, Ending):
                content = None if contents is None else contents[event.choice]
                for chunk in await self._last_chunks(event.choice, choice, content, has_usage):
                    yield chunk
            elif self.desk.gate is None:
                text = event.text if contents is None else contents[event.choice].push(event.text)
                if text or event.records or (event.token_ids and self.request.return_token_ids):
                    yield self._chunk(event.choice, {"content": text}, has_usage, event)
        if has_usage:
            tail = self._head("chat.completion.chunk")
            tail["usage"] = usage(len(self.prompt_ids), sum(c.num_tokens for c in choices))
            yield {**tail, "choices": []}

    async def _last_chunks(
        self, index: int, choice: Choice, content: ContentStream | None, has_usage: bool
    ) -> list[dict[str, JSON]]:
        """Return the chunks that end a choice: what was held back, the calls, the reason."""
        found = []
        spoken = Spoken("") if content is None else content.finish()
        piece = None
        if self.desk.gate is not None:
            await choice.pass_gate(self.desk.gate, self.messages, self.answer_id,
                                   self.desk.metrics)  # fmt: skip
            spoken = self._spoken(choice)
            piece = Piece(index, "", tuple(choice.records), tuple(choice.token_ids))
        if spoken.content or (piece and piece.records):
            found.append(self._chunk(index, {"content": spoken.content}, has_usage, piece))
        for number, call in enumerate(spoken.calls):
            delta = {"tool_calls": [{"index": number, **_call_json(call)}]}
            found.append(self._chunk(index, delta, has_usage))
        last = self._chunk(index, {}, has_usage)
        last["choices"][0]["finish_reason"] = _finish(choice, spoken)
        return [*found, last]

    async def _finished(self, index: int, choice: Choice) -> dict[str, JSON]:
        if self.desk.gate is not None:
            await choice.pass_gate(self.desk.gate, self.messages, self.answer_id,
                                   self.desk.metrics)  # fmt: skip
        spoken = self._spoken(choice)
        message: dict[str, JSON] = {
            "role": "assistant",
            "content": spoken.content if spoken.content or not spoken.calls else None,
            "refusal": None,
        }
        if spoken.calls:
            message["tool_calls"] = [_call_json(call) for call in spoken.calls]
        out: dict[str, JSON] = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.records),
            "finish_reason": _finish(choice, spoken),
        }
        if self.request.return_token_ids:
            out["token_ids"] = choice.token_ids
        return out

    def _spoken(self, choice: Choice) -> Spoken:
        return split_calls(choice.text) if self.has_tools else Spoken(choice.text)

    def _head(self, kind: str) -> dict[str, JSON]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_s,
            "model": self.desk.model.name,
            "system_fingerprint": self.desk.model.fingerprint,
        }

    def _chunk(
        self, index: int, delta: dict[str, JSON], has_usage: bool, piece: Piece | None = None
    ) -> dict[str, JSON]:
        choice: dict[str, JSON] = {"index": index, "delta": delta, "finish_reason": None}
        if piece is not None and piece.records:
            choice["logprobs"] = self._logprobs(piece.records)
        if piece is not None and self.request.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if has_usage else chunk

    def _logprobs(self, records: Sequence[TokenRecord]) -> dict[str, JSON] | None:
        if not self.request.logprobs:
            return None
        return {"content": [_record_json(r, self.desk.texts) for r in records], "refusal": None}


def ask_chat(desk: Desk, body: bytes) -> ChatAnswer:
    """Check a request and queue its tickets.

    Raises:
        ApiError: a wrong request, a full queue, a broken engine.
    """
    request = parse_chat(body)
    desk.check_model(request.model)
    tools = read_tools(request.tools, request.tool_choice)
    messages = read_messages(request.messages, tools)
    prompt = chat_prompt(desk.model.chat, messages)
    limit = desk.room(prompt, request.max_completion_tokens or request.max_tokens, "messages")
    mailbox = Mailbox()
    answer_id = new_id("chatcmpl")
    num_top = (request.top_logprobs or 0) if request.logprobs else None
    tickets = desk.tickets(
        request, [prompt], [limit], mailbox, answer_id=answer_id, num_top=num_top
    )
    desk.submit(tickets, len(prompt.token_ids))
    return ChatAnswer(
        desk, request, messages, prompt.token_ids, bool(tools), tickets, mailbox, answer_id
    )


def _finish(choice: Choice, spoken: Spoken) -> str:
    return "tool_calls" if spoken.calls and choice.finish == "stop" else choice.finish


def _call_json(call: ToolCall) -> dict[str, JSON]:
    return {
        "id": new_id("call"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _record_json(record: TokenRecord, texts: TokenTexts) -> dict[str, JSON]:
    def shown(token_id: int, logprob: float | None) -> dict[str, JSON]:
        return {
            "token": texts.text(token_id),
            "logprob": as_json(logprob),
            "bytes": texts.bytes_of(token_id),
        }

    top = [shown(token_id, logprob) for token_id, logprob in record.top]
    return {**shown(record.token_id, record.logprob), "top_logprobs": top}
