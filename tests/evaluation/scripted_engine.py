"""A real engine that returns given text, and the subject around it: suites without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from educe.config.settings import DomainSettings
from educe.core.protocols import Completion, Domain, GenerateRequest
from educe.core.types import Group, Message, StopReason, Task, TaskRequest
from educe.models.chat import ChatFormat
from educe.models.tiny import byte_tokenizer
from educe.rollout.inline_scoring import InlineScoring
from educe.rollout.runner import RolloutRunner

Answer = Callable[[Domain, Task, int, int], str]
"""(domain, task, sample, turn) to text."""

END = 2  # of the byte tokenizer


def gold(domain: Domain, task: Task, sample: int, turn: int) -> str:
    """The demonstration's own turns; nothing where the set ships no gold."""
    if not domain.spec.has_gold or (task.gold is None and domain.spec.max_turns == 1):
        return ""
    said = [m.content for m in domain.demonstration(task) if m.role == "assistant"]
    return said[min(turn, len(said) - 1)]


class ScriptedEngine:
    """Implements ``core.protocols.Engine``: up to ``max_rows`` completions a step, in any order."""

    def __init__(self, chat: ChatFormat, *, max_rows: int = 64, backwards: bool = False) -> None:
        self.chat, self.max_rows, self.backwards = chat, max_rows, backwards
        self.reply: Callable[[str], str] = lambda _: ""
        self.requests: list[GenerateRequest] = []
        self._open: list[GenerateRequest] = []

    def submit(self, request: GenerateRequest) -> None:
        self.requests.append(request)
        self._open.append(request)

    def cancel(self, request_id: str) -> None:
        self._open = [r for r in self._open if r.request_id != request_id]

    def step(self) -> list[Completion]:
        if self.backwards:
            self._open.reverse()
        batch, self._open = self._open[: self.max_rows], self._open[self.max_rows :]
        if self.backwards:
            self._open.reverse()
        return [self._complete(r) for r in batch]

    def _complete(self, request: GenerateRequest) -> Completion:
        tokens = [*self.chat.encode(self.reply(request.request_id)), END]
        limit = request.parameters.max_tokens * 100  # bytes are no tokens: a generous exchange rate
        stop = StopReason.END if len(tokens) <= limit else StopReason.LENGTH
        tokens = tokens[:limit]
        text = self.chat.decode(tokens)
        return Completion(request.request_id, tuple(tokens), (-0.5,) * len(tokens), 0, stop, text)

    @property
    def num_unfinished(self) -> int:
        return len(self._open)

    def release(self, request_id: str) -> None: ...

    def publish(self, version: int) -> None: ...


@dataclass
class ScriptedSubject:
    """A subject whose every turn is a function of the task; scores inline."""

    answer: Answer
    label: str = "scripted"
    max_rows: int = 64
    backwards: bool = False
    max_open: int = 256
    sandbox_minimum: str = "namespaces"
    identity: Any = None
    context_length: int = 1 << 20
    stop_after: int = 0
    asked: list[TaskRequest] = field(default_factory=list)
    chat: ChatFormat = field(default_factory=lambda: ChatFormat(byte_tokenizer()))

    def __post_init__(self) -> None:
        self.identity = self.identity or ["scripted", self.label]

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """About what a real tokenizer would count; bytes are four times as many."""
        return len(self.chat.prompt_tokens(messages)) // 4

    @contextmanager
    def open(
        self, settings: Mapping[str, DomainSettings], domains: Mapping[str, Domain]
    ) -> Iterator[Any]:
        engine = ScriptedEngine(self.chat, max_rows=self.max_rows, backwards=self.backwards)
        scoring = InlineScoring(settings, sandbox_minimum=self.sandbox_minimum)
        runner = RolloutRunner(
            engine, self.chat, domains, scoring, seed=0, context_length=4 * self.context_length,
            max_open=self.max_open,
        )  # fmt: skip
        try:
            yield _Recording(self, runner, engine, domains)
        finally:
            scoring.close()


class _Recording:
    def __init__(self, subject: ScriptedSubject, runner: RolloutRunner, engine: Any, domains: Any):
        self.subject, self.runner, self.engine, self.domains = subject, runner, engine, domains

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterator[Group]:
        known = {r.request_id: r for r in requests}
        assert len(known) == len(requests), "two requests share an id"

        def reply(key: str) -> str:
            request_id, sample, turn = key.split("/")
            request = known[int(request_id)]
            domain = self.domains[request.domain]
            task = domain.task(request.split, request.index)
            return self.subject.answer(domain, task, int(sample), int(turn))

        self.engine.reply = reply
        for number, group in enumerate(self.runner.run_requests(requests)):
            if self.subject.stop_after and number >= self.subject.stop_after:
                raise KeyboardInterrupt
            self.subject.asked.append(group.request)
            yield group
