"""A copy of the prompt is no answer; an answer behind a copy of the question is one."""

from __future__ import annotations

import pytest

from educe.config.settings import DomainSettings
from educe.core.protocols import Services
from educe.core.types import Split, assistant
from educe.domains.registry import load_domain
from educe.rewards.outcome.copying import after_question, is_dump

QUESTION = "What is 25 percent of 8?"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("2", "2"),
        (QUESTION, ""),
        (f"{QUESTION} 2", " 2"),
        ("what is  25\npercent of 8? It is 2", " It is 2"),
        (f"{QUESTION} 8. No: {QUESTION} 2", " 2"),
        ("25 percent of 8 is 2", "25 percent of 8 is 2"),
        ("", ""),
    ],
)
def test_the_answer_stands_behind_the_question(text: str, rest: str) -> None:
    assert after_question(text, QUESTION) == rest


def test_an_empty_question_hides_nothing() -> None:
    assert after_question("a b", "  ") == "a b"


LOG = "Log\n" + " ".join(f"{h:02d}:10 The valve B{h} was set to {h * 31}." for h in range(9))


@pytest.mark.parametrize(
    ("said", "is_copy"),
    [
        (LOG, True),
        (LOG[len(LOG) // 2 :], True),
        (f"<think>{LOG}</think>14", False),
        ("08:10 The valve B8 was set to 248.", False),
        (f"{LOG}\nAnswer: 248", False),
        (f"{LOG}\n\\boxed{{248}}", False),
        ("The entries go on and on, but the one for B8 comes last and it says 248.", False),
        ("", False),
    ],
)
def test_dumps(said: str, is_copy: bool) -> None:
    assert is_dump(said, f"Read this.\n\n{LOG}\n\nQuestion: To which value?") is is_copy


def test_an_answer_behind_its_question_counts_in_the_domains() -> None:
    """In all ways of checking an answer, worked or not."""
    for name in ("arithmetic/percent/tiny", "algebra/derivative/tiny", "arithmetic/sort/tiny"):
        for options in ({}, {"worked": True}):
            domain = load_domain(name, DomainSettings(options=options))
            for i in range(4):
                task = domain.task(Split.TRAIN, i)
                prompt = task.messages[0].content
                for text, value in ((f"{prompt}\n{task.gold}", 1.0), (prompt, 0.0)):
                    said = [*task.messages, assistant(text)]
                    assert domain.score(task, None, said, Services()).value == value, text
