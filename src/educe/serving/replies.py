"""What is common to both endpoints: tickets, their events, and choices as they fill."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.core.seeds import derive
from educe.core.types import JSON, Message, StopReason
from educe.serving.engine_thread import EngineThread
from educe.serving.errors import ApiError
from educe.serving.metrics import ServeMetrics
from educe.serving.prompts import Prompt
from educe.serving.requests import ChatRequest, CompletionRequest
from educe.serving.review_gate import ReviewGate
from educe.serving.tickets import (
    AnyTicket,
    Ending,
    Event,
    Mailbox,
    Piece,
    Ticket,
    TokenRecord,
)
from educe.serving.token_text import TokenTexts

if TYPE_CHECKING:
    from educe.models.chat import ChatFormat

FINISH = {
    StopReason.END: "stop",
    StopReason.LENGTH: "length",
    StopReason.TOOL: "tool_calls",
    StopReason.CANCELLED: "stop",
}
WITHHELD = "content_filter"
LOWEST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients see it.

    Attributes:
        name: the id in ``/v1/models``; ``aliases`` are taken for it in requests.
        fingerprint: changes when the weights, the template or the engine's mode do.
        context_length: prompt plus completion never exceed it.
    """

    name: str
    chat: ChatFormat
    context_length: int
    fingerprint: str = ""
    aliases: tuple[str, ...] = ()
    created_s: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything an endpoint works with."""

    model: ServedModel
    thread: EngineThread
    texts: TokenTexts
    metrics: ServeMetrics
    gate: ReviewGate | None = None

    def check_model(self, wanted: str) -> None:
        if wanted and wanted not in (self.model.name, *self.model.aliases):
            raise ApiError(
                f"the model {wanted!r} is not served here; this server has {self.model.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def room(self, prompt: Prompt, wanted: int | None, param: str) -> int:
        """Return how many tokens may be sampled behind a prompt: ``wanted``, or all that fit.

        Raises:
            ApiError: the prompt alone, or with what is wanted, is longer than the context.
        """
        size, limit = len(prompt.token_ids), self.model.context_length
        least = 1 if wanted is None else wanted
        if size + least > limit:
            told = "" if wanted is None else f" and {wanted} tokens are wanted behind it"
            raise ApiError(
                f"the prompt has {size} tokens{told}; the model's context is {limit} tokens. "
                "Shorten the prompt or lower max_tokens",
                param=param if size >= limit or wanted is None else "max_tokens",
                code="context_length_exceeded",
            )
        return limit - size if wanted is None else wanted

    def tickets(
        self,
        request: ChatRequest | CompletionRequest,
        prompts: Sequence[Prompt],
        limits: Sequence[int],
        mailbox: Mailbox,
        *,
        answer_id: str,
        num_top: int | None,
    ) -> list[Ticket]:
        """Return a ticket for each choice: ``n`` of the first prompt, then of the next.

        With a seed, the draws are a function of seed, prompt and sample alone: the same prompt
        gives the same text wherever it stands in a list.
        """
        seed = secrets.randbits(63) if request.seed is None else request.seed
        found = []
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            own = derive("serve", seed, prompt.token_ids)
            for sample in range(request.n):
                parameters = SamplingParameters(
                    max_tokens=limit,
                    temperature=request.temperature,
                    top_k=max(0, request.top_k),
                    top_p=request.top_p,
                    seed_key=derive(own, sample),
                    ignore_end=request.ignore_eos,
                )
                choice = number * request.n + sample
                found.append(
                    Ticket(
                        GenerateRequest(
                            f"{answer_id}/{choice}",
                            prompt.token_ids,
                            parameters,
                            group_key=f"{answer_id}/{number}" if request.n > 1 else "",
                        ),
                        choice,
                        mailbox,
                        self.model.chat.decode,
                        tuple(request.stop),
                        num_top,
                        is_streamed=request.stream and self.gate is None,
                    )
                )
        return found

    def submit(
        self, tickets: Sequence[AnyTicket], num_prompt_tokens: int, *, param: str = "n"
    ) -> None:
        """Queue an answer's tickets; ``param`` is what makes them too many.

        Raises:
            ApiError: more than ever fit (400), too many waiting (429), no engine (503).
        """
        if len(tickets) > self.thread.capacity:
            raise ApiError(
                f"{len(tickets)} completions in one request are more than the "
                f"{self.thread.capacity} that this server takes at once; send them in parts",
                param=param,
            )
        self.thread.submit(tickets)
        self.metrics.prompt_tokens.add(num_prompt_tokens)


@dataclass(slots=True)
class Choice:
    """One choice, filled by events."""

    text: str = ""
    records: list[TokenRecord] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    finish: str = ""

    def take(self, event: Piece | Ending) -> None:
        if isinstance(event, Piece):
            self.text += event.text
            self.records += event.records
            self.token_ids += event.token_ids
        else:
            self.num_tokens = event.num_tokens
            self.finish = FINISH[event.reason]

    async def pass_gate(
        self, gate: ReviewGate, prompt: Sequence[Message], answer_id: str, metrics: ServeMetrics
    ) -> None:
        """Review a finished choice; what is withheld takes its tokens with it."""
        decision = await gate.judge(self.text, prompt, {"answer": answer_id})
        if not decision.is_allowed:
            metrics.withheld.add()
            self.text, self.finish = decision.text, WITHHELD
            self.records, self.token_ids = [], []


async def events_of(mailbox: Mailbox, num_events: int) -> AsyncIterator[Event]:
    """Yield events until ``num_events`` choices have ended or prompts were read."""
    while num_events:
        event = await mailbox.get()
        if not isinstance(event, Piece):
            num_events -= 1
        yield event


def usage(num_prompt: int, num_completion: int) -> dict[str, JSON]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(14)}"


def as_json(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)
