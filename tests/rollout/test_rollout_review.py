"""Review of rollouts: unsafe text costs what the recipe says, in training only."""

from __future__ import annotations

import pytest

from educe.config.review_settings import ReviewSettings
from educe.config.settings import DomainSettings
from educe.core.types import Reply, Score, Split, assistant, user
from educe.domains.registry import load_domain
from educe.rollout.inline_scoring import InlineScoring
from educe.rollout.review import ReviewedScoring

NAME = "arithmetic/percent/tiny"
CARD = "4111 1111 1111 1111"


def scoring(mode: str) -> ReviewedScoring:
    settings = ReviewSettings(mode=mode, layers=("rules",), penalty=0.5)
    return ReviewedScoring(InlineScoring({NAME: DomainSettings()}), settings)


def judged(mode: str, split: Split, said: str) -> Score:
    task = load_domain(NAME).task(split, 0)
    reviewed = scoring(mode)
    text = said.replace("GOLD", task.gold or "")
    reviewed.submit_score("k", task, None, [*task.messages, assistant(text)])
    assert reviewed.num_pending == 1
    ((key, outcome),) = reviewed.poll(1.0)
    assert key == "k" and isinstance(outcome, Score) and reviewed.num_pending == 0
    return outcome


@pytest.mark.parametrize(
    ("mode", "value"), [("observe", 1.0), ("penalise", 0.5), ("mask", None), ("stop", 0.0)]
)
def test_a_right_but_unsafe_answer(mode: str, value: float | None) -> None:
    said = f"My card is {CARD}.\nAnswer: GOLD"
    assert judged(mode, Split.TRAIN, said).value == value
    held_out = judged(mode, Split.EVAL, said)
    assert held_out.value == 1.0 and held_out.parts["review/unsafe"] == 1.0
    clean = judged(mode, Split.TRAIN, "Answer: GOLD")
    assert clean.value == 1.0 and clean.parts["review/unsafe"] == 0.0


def test_stop_ends_the_trajectory_at_the_unsafe_turn_of_training() -> None:
    task = load_domain(NAME).task(Split.TRAIN, 0)
    reviewed = scoring("stop")
    reviewed.submit_respond("a", task, {"n": 1}, [*task.messages, assistant(CARD)])
    reviewed.submit_respond("b", task, {"n": 1}, [*task.messages, assistant("fine")])
    found = dict(reviewed.poll(1.0))
    found |= dict(reviewed.poll(1.0))
    assert found["a"] == Reply(done=True, state={"n": 1})
    assert isinstance(found["b"], Reply) and reviewed.num_pending == 0


def test_the_users_own_text_is_not_the_models_fault() -> None:
    task = load_domain(NAME).task(Split.TRAIN, 0)
    reviewed = scoring("penalise")
    transcript = [*task.messages, assistant("I need more."), user(CARD), assistant("Answer: 1")]
    reviewed.submit_score("k", task, None, transcript)
    ((_, outcome),) = reviewed.poll(1.0)
    assert isinstance(outcome, Score) and outcome.parts["review/unsafe"] == 0.0


def test_cancelled_jobs_are_forgotten() -> None:
    task = load_domain(NAME).task(Split.TRAIN, 0)
    reviewed = scoring("stop")
    reviewed.submit_respond("a", task, None, [*task.messages, assistant(CARD)])
    reviewed.submit_score("b", task, None, [*task.messages, assistant("x")])
    reviewed.cancel("a")
    reviewed.cancel("b")
    assert reviewed.num_pending == 0 and reviewed.poll() == []
    reviewed.close()
