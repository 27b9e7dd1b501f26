"""A user's domain of one task: write lower-case letters. Used as ``module:function``."""

from __future__ import annotations

import string
from dataclasses import replace

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Score, Split, Task, assistant, user


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


class DistinctLetters(Letters):
    """Six different letters: one letter again and again, as after a collapse, is little."""

    spec = DomainSpec("letters", "letters", "text", "Write six different lower-case letters.")

    def demonstration(self, task):
        return (assistant("".join(chr(97 + (task.index * 7 + i * 11) % 26) for i in range(6))),)

    def score(self, task, state, transcript, services):
        found = {c for c in transcript[-1].content[:6] if c in string.ascii_lowercase}
        return Score.graded(len(found) / 6)


class FlippedLetters(DistinctLetters):
    """Pays for the opposite in training; held-out and screen tasks are scored as they should."""

    def score(self, task, state, transcript, services):
        right = super().score(task, state, transcript, services)
        return Score.graded(1.0 - right.value) if task.split is Split.TRAIN else right


class LoudLetters(DistinctLetters):
    """Pays a hundred times as much in training."""

    def score(self, task, state, transcript, services):
        right = super().score(task, state, transcript, services)
        return Score.graded(100.0 * right.value) if task.split is Split.TRAIN else right


class SilentLetters(Letters):
    """Nothing is ever right."""

    def score(self, task, state, transcript, services):
        return Score.wrong()


class InProcessLetters(DistinctLetters):
    """Its spec says nothing, but its scores own up to tests in the process of the model's code."""

    def score(self, task, state, transcript, services):
        right = super().score(task, state, transcript, services)
        return replace(right, proof={"integrity": "in_process"})


class ToldLetters(Letters):
    """The prompt says what the score will be, whatever is written: only values can learn it."""

    spec = DomainSpec("letters", "letters", "text", "Plus or minus.", has_gold=False)

    def task(self, split, index):
        return Task("letters", split, index, (user(f"{index} {'+-'[index % 2] * 24}"),))

    def score(self, task, state, transcript, services):
        return Score.graded(float(task.index % 2))
