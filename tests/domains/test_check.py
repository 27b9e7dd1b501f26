"""The self-check finds each kind of broken domain, and passes a sound one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import Any

import pytest

from educe.core.errors import UnscoredError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task
from educe.core.types import JSON, Fault, Message, Reply, Score, Split, Task, assistant, user
from educe.domains.check import (
    binomial_tail,
    check_domain,
    estimate_distinct,
    is_above_floor,
    play_demonstration,
)

SPEC = DomainSpec("sums", "sums", "arithmetic", "Add two numbers.", floor=0.02)


class Sums(DomainBase):
    """A sound domain; the broken ones below change one thing each."""

    spec = SPEC

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self.make, self.spec.name, split, index)

    def make(self, rng: random.Random) -> Task:
        first, second = rng.randrange(1000), rng.randrange(1000)
        prompt = (user(f"{first} + {second} ="),)
        return Task("", Split.TRAIN, 0, prompt, str(first + second), {"terms": [first, second]})

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        text = transcript[-1].content
        if not text:
            return Score.unparseable()
        return Score.right() if text == task.gold else Score.wrong()


def problems(domain: Any, **options: Any) -> str:
    report = check_domain(domain, **options)
    assert not report.is_ok
    return "\n".join(report.problems)


def test_a_sound_domain_passes() -> None:
    report = check_domain(Sums(), num_tasks=64)
    assert report.is_ok and report.problems == ()
    assert (report.gold, report.empty, report.other_gold, report.constant) == (1, 0, 0, 0)
    assert report.num_distinct_tasks is None
    assert report.max_gold_chars in (3, 4)
    assert report.to_json()["is_ok"] is True


def test_a_gold_that_does_not_score_one() -> None:
    class Half(Sums):
        def score(self, task: Task, *rest: Any) -> Score:
            return Score.graded(0.5 * (super().score(task, *rest).value or 0))

    assert "scores 0.5" in problems(Half())


def test_a_missing_parser_shows_as_zero_for_gold() -> None:
    class Deaf(Sums):
        def score(self, *arguments: Any) -> Score:
            return Score.wrong("nothing parsed")

    assert "nothing parsed" in problems(Deaf())


def test_an_unparseable_gold_that_pays_everything() -> None:
    class Generous(Sums):
        def score(self, *arguments: Any) -> Score:
            return Score.right()

    told = problems(Generous())
    assert "an empty completion scores 1.000" in told
    assert "the gold of another task scores 1.000" in told


def test_a_guessable_domain_needs_its_floor() -> None:
    class Parity(Sums):
        def make(self, rng: random.Random) -> Task:
            number = rng.randrange(10**6)
            return Task("", Split.TRAIN, 0, (user(f"Is {number} even?"),), str(number % 2 == 0))

    assert "a constant attempt scores" in problems(Parity(), num_tasks=128)
    honest = Parity()
    honest.spec = replace(SPEC, floor=0.5)
    report = check_domain(honest, num_tasks=128)
    assert report.is_ok, report.problems
    assert report.constant == pytest.approx(0.5, abs=0.15)


def test_a_judge_that_pays_for_a_magic_word() -> None:
    class Magic(Sums):
        def score(
            self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
        ) -> Score:
            if transcript[-1].content == "Yes":
                return Score.right()
            return super().score(task, state, transcript, services)

    told = problems(Magic())
    assert "a constant attempt scores 1.000" in told
    assert check_domain(Magic()).constant_attempt == "Yes"


def test_splits_that_meet() -> None:
    class Leaky(Sums):
        def task(self, split: Split, index: int) -> Task:
            made = super().task(Split.TRAIN, index)
            return replace(made, split=split)

    told = problems(Leaky(), num_tasks=32)
    assert "train and eval share 8 tasks" in told
    assert "train and screen share 4 tasks" in told


def test_a_task_that_changes() -> None:
    class Restless(Sums):
        def make(self, rng: random.Random) -> Task:
            return super().make(random.Random())

    assert "differs when made again" in problems(Restless())


def test_metadata_that_json_changes_or_refuses() -> None:
    class Tuples(Sums):
        def make(self, rng: random.Random) -> Task:
            return replace(super().make(rng), metadata={"terms": (1, 2)})

    class Sets(Sums):
        def make(self, rng: random.Random) -> Task:
            return replace(super().make(rng), metadata={"terms": {1, 2}})

    assert "changes on its way through JSON" in problems(Tuples(), num_tasks=4)
    assert "is not JSON" in problems(Sets(), num_tasks=4)


def test_scorers_that_do_not_score() -> None:
    class Shy(Sums):
        def score(self, task: Task, state: JSON, transcript: Any, services: Services) -> Score:
            if transcript[-1].content == task.gold:
                return Score.right()
            return Score.unscored(Fault.GRADER, "the judge is away")

    class Raising(Sums):
        def score(self, *arguments: Any) -> Score:
            raise UnscoredError("no judge configured")

    assert "an empty completion is unscored" in problems(Shy(), num_tasks=8)
    assert "no judge configured" in problems(Raising(), num_tasks=8)


def test_an_empty_split_and_a_failing_generator() -> None:
    class Empty(Sums):
        def size(self, split: Split) -> int | None:
            return 0 if split is Split.EVAL else None

    class Failing(Sums):
        def make(self, rng: random.Random) -> Task:
            raise ZeroDivisionError("by design")

    assert "the eval split is empty" in problems(Empty())
    assert "train tasks cannot be made: ZeroDivisionError: by design" in problems(Failing())


def test_domains_that_run_code_are_skipped_without_a_sandbox() -> None:
    domain = Sums()
    domain.spec = replace(SPEC, executes_code=True)
    report = check_domain(domain)
    assert not report.is_ok and not report.problems
    assert "sandbox" in report.skipped


class Guessing(DomainBase):
    """Two turns: a guess, a hint, and the number."""

    spec = DomainSpec("guess", "guess", "games", "Guess a number.", max_turns=2, floor=0.02)
    hint = "it is {}"

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self.make, "guess", split, index)

    def make(self, rng: random.Random) -> Task:
        return Task("", Split.TRAIN, 0, (user(f"Game {rng.random()}"),), str(rng.randrange(10**6)))

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        hint = Message("user", self.hint.format(task.gold))
        return assistant("tell me"), hint, assistant(task.gold or "")

    def initial_state(self, task: Task) -> JSON:
        return {"turns": 0}

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        reply = Message("user", f"it is {task.gold}")
        return Reply((reply,), done=False, state={"turns": state["turns"] + 1})

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        if state["turns"] != 1:
            return Score.wrong("asked nothing")
        return Score.right() if transcript[-1].content == task.gold else Score.wrong()


def test_demonstrations_run_through_the_environment() -> None:
    domain = Guessing()
    score, complaint = play_demonstration(domain, domain.task(Split.TRAIN, 0), Services())
    assert (score.value, complaint) == (1, "")
    report = check_domain(domain, num_tasks=16)
    assert report.is_ok, report.problems
    assert report.other_gold == 0


def test_a_demonstration_with_invented_replies() -> None:
    domain = Guessing()
    domain.hint = "perhaps {}"
    assert "but the environment replies" in problems(domain, num_tasks=4)


def test_binomial_tail_against_the_definition() -> None:
    exact = sum(comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(9, 21))
    assert binomial_tail(20, 9, 0.3) == pytest.approx(exact)
    assert binomial_tail(20, 0, 0.3) == pytest.approx(1)
    assert binomial_tail(10, 10, 1.0) == 1


def test_the_floor_rule_allows_noise_and_no_more() -> None:
    assert not is_above_floor(0.60, 64, 0.5)
    assert is_above_floor(0.85, 64, 0.5)
    assert not is_above_floor(1.0, 64, 1.0)
    assert not is_above_floor(0.1, 0, 0.0)
    assert is_above_floor(0.3, 64, 0.0)


def test_the_size_of_a_small_space_is_estimated() -> None:
    rng = random.Random(5)
    draws = [str(rng.randrange(200)) for _ in range(300)]
    estimate = estimate_distinct(draws)
    assert estimate is not None and 150 <= estimate <= 260
    assert estimate_distinct([str(i) for i in range(300)]) is None
