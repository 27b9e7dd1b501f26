"""What a family of generated problems is, and the domain that asks them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from educe.core.errors import DomainError, UnscoredError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.seeds import derive
from educe.core.splits import draw_task
from educe.core.types import JSON, Message, Score, Split, Task, user

LEVELS = ("tiny", "easy", "medium", "hard")

REPLIES: Mapping[str, str] = {
    "number": "Reply with the number only.",
    "fraction": "Reply with the fraction in lowest terms only.",
    "text": "Reply with the answer only.",
    "list": "Reply with the numbers only, separated by commas.",
    "any": "Reply with the final answer only.",
    "solved": "Reply with the final answer only.",
    "expanded": "Reply with the result only.",
    "factored": "Reply with the result only.",
}
"""The closing sentence of a prompt, for each way of checking an answer."""

WORKED_REPLY = "Show your work, then end with a line 'Answer: ' followed by the result."


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its answer.

    ``steps`` is a short worked solution without the closing answer line; ``check`` is a key of
    :data:`REPLIES`.
    """

    question: str
    answer: str
    steps: str = ""
    check: str = "number"


_FORMS: Mapping[str, Literal["any", "number", "expanded", "factored", "solved"]] = {
    "any": "any",
    "solved": "solved",
    "fraction": "number",
    "expanded": "expanded",
    "factored": "factored",
}

Make = Callable[[random.Random, str], Problem]


@dataclass(frozen=True, slots=True)
class Family:
    """A generator of problems at several levels.

    Attributes:
        name: ``group/family``; domains are ``group/family/level``.
        description: one sentence.
        make: returns a problem of a level, using only the given generator.
        levels: which of :data:`LEVELS` it has.
        chance: per level, what guessing among the values *in the question* earns; the floor is
            the larger of this and the measured score of the best constant.
        tags: for search.
    """

    name: str
    description: str
    make: Make
    levels: tuple[str, ...] = LEVELS
    chance: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def pick_phrase(key: object, phrases: Sequence[str]) -> str:
    """Return one of the phrases, decided by the problem itself.

    A problem thus has one wording: were it drawn at random, the same sum could stand in the train
    split under one wording and in the eval split under another.
    """
    return phrases[derive("phrase", key) % len(phrases)]


class ProblemDomain(DomainBase):
    """Single-turn domain over one level of a family.

    Args:
        worked: the prompt asks for, and the gold shows, a short worked solution that ends in
            ``Answer: N``. The tasks and their splits are the same as without it.
    """

    def __init__(self, spec: DomainSpec, family: Family, *, worked: bool = False) -> None:
        self.spec = spec
        self._family = family
        self._level = spec.name.rsplit("/", 1)[1]
        self._is_worked = worked

    def _candidate(self, rng: random.Random) -> Task:
        problem = self._family.make(rng, self._level)
        prompt = f"{problem.question} {REPLIES[problem.check]}"
        metadata = {"check": problem.check, "answer": problem.answer, "steps": problem.steps}
        return Task("", Split.TRAIN, 0, (user(prompt),), problem.answer, metadata)

    def task(self, split: Split, index: int) -> Task:
        task = draw_task(self._candidate, self.spec.name, split, index)
        if not self._is_worked:
            return task
        # Changed only after the draw, so that worked and plain tasks share their splits.
        reply = REPLIES[task.metadata["check"]]
        prompt = task.messages[0].content.removesuffix(reply) + WORKED_REPLY
        steps = task.metadata["steps"]
        gold = f"{steps}\nAnswer: {task.gold}" if steps else f"Answer: {task.gold}"
        return replace(task, messages=(user(prompt),), gold=gold)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        from educe.rewards.outcome.copying import after_question

        check = task.metadata["check"]
        prompt = task.messages[-1].content
        said = after_question(last_completion(task, transcript), prompt)
        said = after_question(said, prompt.removesuffix(WORKED_REPLY).removesuffix(REPLIES[check]))
        return check_answer(said, task.metadata["answer"], check)


def last_completion(task: Task, transcript: Sequence[Message]) -> str:
    """Return the text of the last assistant message behind the prompt, "" when there is none."""
    for message in reversed(transcript[len(task.messages) :]):
        if message.role == "assistant":
            return message.content
    return ""


def check_answer(completion: str, answer: str, check: str) -> Score:
    """Score a completion against an answer in one of the ways that :data:`REPLIES` names."""
    if check == "number":
        from educe.rewards.outcome.numeric import numeric_match

        return numeric_match(completion, answer)
    if check == "text":
        from educe.rewards.outcome.text import exact_match

        return exact_match(completion, answer)
    if check == "list":
        return _check_list(completion, answer)
    from educe.rewards.outcome.math import check_math
    from educe.rewards.outcome.math_equality import MathPolicy

    return check_math(completion, answer, MathPolicy(form=_FORMS[check]))


def _check_list(completion: str, answer: str) -> Score:
    """Numbers in the given order, nothing else but separators and the word 'and'."""
    import re

    from educe.rewards.outcome.extraction import final_answer
    from educe.rewards.outcome.numeric import parse_number

    wanted = [parse_number(w) for w in answer.split(",")]
    if None in wanted:
        raise UnscoredError(f"expected a list of numbers as gold, got {answer!r}")
    text = final_answer(completion)[-2000:].strip().strip("[]().")
    items = [i for i in re.split(r"\s*(?:,|;|\band\b|<|×|\*|\s)\s*", text) if i]
    found = [parse_number(i) for i in items]
    if not found or None in found:
        return Score.unparseable("no list of numbers found")
    return Score.right() if found == wanted else Score.wrong(f"expected {answer}, got {text[:80]}")


def make_specs(
    families: Sequence[Family], floors: Mapping[str, float], kind: str
) -> tuple[DomainSpec, ...]:
    """Return one spec for each level of each family; ``floors`` maps domain names."""
    return tuple(
        DomainSpec(
            name=f"{family.name}/{level}",
            family=family.name,
            kind=kind,
            description=f"{family.description} ({level})",
            floor=max(floors.get(f"{family.name}/{level}", 0.0), family.chance.get(level, 0.0)),
            max_completion_tokens=16 if level == "tiny" else 48,
            tags=(level, *family.tags),
        )
        for family in families
        for level in family.levels
    )


def find_family(families: Sequence[Family], name: str) -> Family:
    """Return the family of a domain name; raises DomainError for an unknown one."""
    for family in families:
        if name.rpartition("/")[0] == family.name and name.rpartition("/")[2] in family.levels:
            return family
    raise DomainError(f"expected a domain of {len(families)} families, got {name!r}")
