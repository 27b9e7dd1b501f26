"""What an evaluation asks: a model behind any engine, with domains and scorers put around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from educe.config.settings import DomainSettings
from educe.core.protocols import Domain, Engine
from educe.core.types import JSON, Message
from educe.evaluation.runner import Sampler

if TYPE_CHECKING:
    from educe.models.chat import ChatFormat


class Subject(Protocol):
    """A model that can be asked the tasks of any domains.

    Attributes:
        label: name in reports.
        identity: what completions depend on besides tasks and settings (weights, template, system
            prompt, seed); rows of another identity are never used for this one.
        context_length: longest prompt plus completion in tokens, None when unknown.
    """

    @property
    def label(self) -> str: ...

    @property
    def identity(self) -> JSON: ...

    @property
    def context_length(self) -> int | None: ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the length of a prompt in the model's tokens, chat template included."""
        ...

    def open(
        self, settings: Mapping[str, DomainSettings], domains: Mapping[str, Domain]
    ) -> AbstractContextManager[Sampler]:
        """Return a sampler over these domains; ``settings`` are what scoring workers load."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSubject:
    """Any engine with a chat format, driven by the rollout runner with bounded concurrency.

    ``max_open`` bounds the completions in flight, ``score_workers`` the scoring processes.
    """

    label: str
    identity: JSON
    engine: Engine
    chat: ChatFormat
    seed: int
    context_length: int
    max_open: int = 256
    score_workers: int = 1
    score_timeout_s: float = 20.0
    sandbox_minimum: str = "namespaces"
    log_path: Path | None = None
    check: Callable[[], None] = lambda: None

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(self.chat.prompt_tokens(messages))

    @contextmanager
    def open(
        self, settings: Mapping[str, DomainSettings], domains: Mapping[str, Domain]
    ) -> Iterator[Sampler]:
        from educe.rollout.runner import RolloutRunner
        from educe.rollout.scoring import ScoringPool

        with ExitStack() as stack:
            sandbox = self._sandbox(domains, stack)
            scoring = stack.enter_context(
                ScoringPool(
                    settings,
                    num_workers=self.score_workers,
                    timeout_s=self.score_timeout_s,
                    sandbox=sandbox,
                    sandbox_minimum=self.sandbox_minimum,
                    log_path=self.log_path,
                )
            )
            yield RolloutRunner(
                self.engine,
                self.chat,
                domains,
                scoring,
                seed=self.seed,
                context_length=self.context_length,
                max_open=self.max_open,
                check=self.check,
            )

    def _sandbox(self, domains: Mapping[str, Domain], stack: ExitStack) -> Any:
        """Return one sandbox for all scoring workers; None where no domain runs code."""
        if not any(domain.spec.executes_code for domain in domains.values()):
            return None
        from educe.sandbox import open_sandbox

        return stack.enter_context(open_sandbox(minimum=self.sandbox_minimum))
