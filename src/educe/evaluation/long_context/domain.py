"""A kind at one length as a domain: tasks are made where the tokenizer is, scored anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

from educe.core.errors import DomainError, EduceError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.seeds import derive, python_random
from educe.core.types import JSON, Message, Score, Split, Task
from educe.evaluation.long_context.draft import Control, Draft, Kind, messages_of, with_control
from educe.evaluation.long_context.fit import CountTokens, Fitted, fit
from educe.evaluation.long_context.kinds import load_kind
from educe.evaluation.long_context.scoring import judge

_MAX_KEPT = 32
_LEAST_SHARE = 0.3
DEPTHS: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)


class LongContextDomain(DomainBase):
    """Prompts whose length plus the room for a reply just fits ``length`` tokens.

    Task i has depth ``depths[i % len(depths)]`` and draws of its own, so every depth has equally
    many tasks. Controls of a task show the same question on other pieces.

    Args:
        kind: the generator.
        length: tokens of prompt and reply together; 0 makes a domain that only scores.
        count: length of a prompt in the model's tokens, template included.
        control: shows something else than the document (see ``draft.with_control``).
    """

    def __init__(
        self,
        kind: Kind,
        length: int,
        count: CountTokens | None = None,
        *,
        control: Control = "",
        depths: Sequence[float] = DEPTHS,
    ) -> None:
        self.kind, self.length, self.control = kind, length, control
        self.depths = tuple(depths)
        self._count = count
        self._start: int | None = None
        self._made: dict[tuple[Split, int], Task] = {}
        name = "/".join(p for p in ("long-context", kind.name, str(length), control) if p)
        self.spec = DomainSpec(
            name=name,
            family=f"long-context/{kind.name}",
            kind="long-context",
            description=f"{kind.description}, {length} tokens",
            licence=kind.licence,
            floor=kind.floor,
            max_completion_tokens=kind.reply_tokens,
            tags=("long-context",),
        )

    def task(self, split: Split, index: int) -> Task:
        """Make the task; the same for equal tokenizers.

        Raises:
            DomainError: no tokenizer here.
            EduceError: the length is too short for the kind.
        """
        key = (split, index)
        if key not in self._made:
            # A runner asks for a task more than once; making a long one costs seconds.
            while len(self._made) >= _MAX_KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[key] = self._make(split, index)
        return self._made[key]

    def _make(self, split: Split, index: int) -> Task:
        if self._count is None or self.length < 1:
            raise DomainError(f"{self.spec.name} can only score here: there is no tokenizer")
        depth = self.depths[index % len(self.depths)]
        seed = derive("long-context", self.kind.name, self.length, str(split), index)
        if self._start is None:
            # One prompt of its own, so that no task depends on which was made before it.
            self._start = self._fitted(derive("long-context-probe", self.kind.name), 0.5, 0).size
        fitted = self._fitted(seed, depth, self._start)
        draft = with_control(fitted.built, self.control, python_random("control", seed))
        messages = messages_of(draft)
        metadata: dict[str, JSON] = {
            "answers": list(draft.answers),
            "check": dict(draft.check),
            "depth": depth if self.kind.has_depth else fitted.built.depth,
            "num_pieces": len(draft.pieces),
            "num_tokens": self._count(messages) if self.control else fitted.num_tokens,
            **draft.facts,
        }
        return Task(self.spec.name, split, index, messages, draft.gold_text, metadata)

    def _fitted(self, seed: int, depth: float, start: int) -> Fitted[Draft]:
        count = self._count
        assert count is not None

        def build(size: int) -> Draft:
            return self.kind.write(random.Random(seed), size, depth)

        what = f"{self.kind.name} at {self.length} tokens"
        limit = self.length - self.kind.reply_tokens
        fitted = fit(build, lambda draft: count(messages_of(draft)), limit, what=what, start=start)
        if fitted.num_tokens < _LEAST_SHARE * limit:
            raise EduceError(
                f"{what}: its text suffices for {fitted.num_tokens} tokens only; ask a shorter "
                f"length of this kind"
            )
        return fitted

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        replies = [m for m in transcript[len(task.messages) :] if m.role == "assistant"]
        completion = replies[-1].content if replies else ""
        return judge(completion, task.metadata["answers"], task.metadata["check"])


def scoring_domain(kind: str, control: str = "") -> LongContextDomain:
    """Return a domain that scores tasks made elsewhere; what scoring workers load."""
    return LongContextDomain(load_kind(kind), 0, control=cast(Control, control))
