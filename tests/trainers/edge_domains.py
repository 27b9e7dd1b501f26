"""A user's domains at the edges: fading, never scored, solved, empty, of a single task."""

from __future__ import annotations

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Fault, Score, Split, Task, user
from tests.trainers.letters import Letters

FRESH = 1_000_000


class Named(Letters):
    """Lower-case letters, under a name of its own."""

    def task(self, split, index):
        name = self.spec.name
        return Task(name, split, index, (user(f"{name} {split} {index}: letters"),))


class Fading(Named):
    """Screen tasks are right as long as they are the first ones: fresh ones are all wrong."""

    spec = DomainSpec("fading", "fading", "text", "Fade.", has_gold=False)

    def score(self, task, state, transcript, services):
        if task.split is Split.SCREEN:
            return Score.right() if task.index < FRESH else Score.wrong()
        return super().score(task, state, transcript, services)


class Unscored(Named):
    """Its grader is broken."""

    spec = DomainSpec("unscored", "unscored", "text", "Broken.", has_gold=False)

    def score(self, task, state, transcript, services):
        return Score.unscored(Fault.GRADER, "broken")


class Silent(Named):
    """Nothing is ever right."""

    spec = DomainSpec("silent", "silent", "text", "Hopeless.", has_gold=False)

    def score(self, task, state, transcript, services):
        return Score.wrong()


class Solved(Named):
    """Everything is right."""

    spec = DomainSpec("solved", "solved", "text", "Easy.", has_gold=False)

    def score(self, task, state, transcript, services):
        return Score.right()


class Sized(DomainBase):
    """So many tasks and no more."""

    def __init__(self, size: int = 1) -> None:
        self._size = size
        self.spec = DomainSpec("sized", "sized", "text", "Few.", has_gold=False, num_tasks=size)

    def size(self, split):
        return self._size

    def task(self, split, index):
        if not 0 <= index < self._size:
            raise IndexError(index)
        return Task("sized", split, index, (user(f"{split} {index}"),))

    def score(self, task, state, transcript, services):
        text = transcript[-1].content
        return Score.graded(sum(c.isalpha() for c in text) / max(1, len(text)))


class LongPrompt(Named):
    """A prompt of many tokens."""

    spec = DomainSpec("long", "long", "long-document", "Long.", has_gold=False)

    def task(self, split, index):
        return Task("long", split, index, (user(f"{index} " + "words " * 30),))


class OtherLetters(Named):
    """The same wish under another name."""

    spec = DomainSpec("other-letters", "other-letters", "text", "As letters.", has_gold=False)


class NoLetters(Named):
    """The opposite wish."""

    spec = DomainSpec("no-letters", "no-letters", "text", "No lower-case letter.", has_gold=False)

    def score(self, task, state, transcript, services):
        right = super().score(task, state, transcript, services)
        return Score.graded(1.0 - right.value)
