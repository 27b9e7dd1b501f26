"""A user's domain of one task: write lower-case letters. Used as ``module:function``."""

from __future__ import annotations

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Score, Task, user


class Letters(DomainBase):
    spec = DomainSpec("letters", "letters", "text", "Write lower-case letters.", has_gold=False)

    def task(self, split, index):
        return Task("letters", split, index, (user(f"{split} {index}: letters"),))

    def score(self, task, state, transcript, services):
        text = transcript[-1].content
        kept = sum(c.islower() for c in text)
        return Score.graded(kept / max(1, len(text)))


def domain() -> Letters:
    return Letters()
