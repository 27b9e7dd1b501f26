"""A domain under another name, as a recipe may call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Message, Reply, Score, Split, Task


class RenamedDomain:
    """Passes everything to ``domain``, but calls itself and its tasks ``name``.

    The inner domain sees tasks under its own name, so what it keeps by name still works.
    """

    def __init__(self, domain: Domain, name: str) -> None:
        self._inner = domain
        self.spec = replace(domain.spec, name=name)

    def _own(self, task: Task) -> Task:
        return replace(task, domain=self._inner.spec.name)

    def task(self, split: Split, index: int) -> Task:
        return replace(self._inner.task(split, index), domain=self.spec.name)

    def size(self, split: Split) -> int | None:
        return self._inner.size(split)

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        return self._inner.demonstration(self._own(task))

    def initial_state(self, task: Task) -> JSON:
        return self._inner.initial_state(self._own(task))

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        return self._inner.respond(self._own(task), state, transcript, services)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        return self._inner.score(self._own(task), state, transcript, services)
