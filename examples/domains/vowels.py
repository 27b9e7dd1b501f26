"""A domain of its own in forty lines: count the vowels of a made-up word."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task
from educe.core.types import Message, Score, Split, Task, user
from educe.domains.extraction import extract_answer, same_answer


class VowelCounting(DomainBase):
    """Words of ``length`` letters; the answer is their number of vowels."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.spec = DomainSpec(
            name="vowels",
            family="vowels",
            kind="text",
            description="Count the vowels of a made-up word.",
            floor=0.35,  # measured by `educe domains check`: always answering "2"
            max_completion_tokens=16,
        )

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self._make, self.spec.name, split, index)

    def _make(self, rng: random.Random) -> Task:
        word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=self._length))
        gold = str(sum(letter in "aeiou" for letter in word))
        prompt = f"How many vowels (a, e, i, o, u) has {word}? Give only the number."
        return Task("", split=Split.TRAIN, index=0, messages=(user(prompt),), gold=gold)

    def score(
        self, task: Task, state: Any, transcript: Sequence[Message], services: Services
    ) -> Score:
        answer = extract_answer(transcript[-1].content, is_numeric=True)
        if not answer:
            return Score.unparseable("no answer")
        return Score.right() if same_answer(answer, task.gold or "") else Score.wrong()


def create(length: int = 8) -> VowelCounting:
    """The recipe's ``function``; its ``options`` arrive as arguments."""
    return VowelCounting(length)
