"""Instructions: demonstrations hold, each check can fail, nothing constant scores."""

from __future__ import annotations

import random
from typing import Any

import pytest

from educe.core.errors import DomainError
from educe.core.protocols import Services
from educe.core.types import Split, assistant
from educe.domains.builtin import instructions
from educe.domains.builtin.instructions.constraints import CATEGORIES, KINDS
from educe.domains.builtin.instructions.domain import InstructionDomain, Level, held_parts
from educe.domains.builtin.instructions.reading import sentences_of, words_of
from educe.domains.builtin.instructions.vocabulary import ANCHORS
from educe.domains.check import check_domain
from educe.domains.copies import copied_parts

NAMES = [s.name for s in instructions.specs()]


def score(domain: Any, task: Any, text: str) -> Any:
    return domain.score(task, None, [*task.messages, assistant(text)], Services())


def test_the_offer() -> None:
    assert len(KINDS) >= 40
    assert {k.category for k in KINDS.values()} == set(CATEGORIES)
    assert "instructions/1-constraints/tiny" in NAMES and len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_domain_proves_itself(name: str) -> None:
    report = check_domain(instructions.create(name), num_tasks=8)
    assert report.problems == ()
    assert report.gold == 1.0 and report.empty == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_domain_proves_itself_on_many_tasks(name: str) -> None:
    assert check_domain(instructions.create(name), num_tasks=300).problems == ()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_is_met_by_its_demonstrations_and_broken_by_others(kind: str) -> None:
    spec = instructions.specs()[0]
    domain = InstructionDomain(spec, Level(1, (kind,), 1, 30))
    tasks = [domain.task(Split.TRAIN, i) for i in range(12)]
    assert all(score(domain, t, t.gold or "").value == 1.0 for t in tasks)
    for task in tasks:
        assert [r["kind"] for r in task.metadata["rules"]] == [kind]
        assert score(domain, task, "").value == 0.0
        assert score(domain, task, task.messages[0].content).parts[kind] in (0.0, 1.0)
    rule = tasks[0].metadata["rules"][0]
    assert not KINDS[kind].check(BROKEN[kind](rule), rule), "the check accepts a broken text"


BROKEN: dict[str, Any] = {
    "word-times": lambda p: f"The {p['word']}s and the {p['word']}.",
    "exclude-word": lambda p: f"Say {p['word']}.",
    "start-word": lambda p: f"So {p['word']} it is.",
    "end-word": lambda p: f"The {p['word']} glows.",
    "end-sentence": lambda p: f"{p['text']} Bye.",
    "copy-line": lambda p: p["line"],
    "word-order": lambda p: f"The {p['second']} and the {p['first']}.",
    "include-number": lambda p: f"It is {p['n']}7 or 1{p['n']}.",
    "words-exact": lambda p: "word " * (p["low"] + 1),
    "words-range": lambda p: "word " * (p["high"] + 1),
    "words-at-most": lambda p: "word " * (p["high"] + 1),
    "words-at-least": lambda p: "word " * (p["low"] - 1),
    "sentences": lambda p: "It is. " * (p["n"] + 1),
    "sentence-words": lambda p: "one " * (p["n"] + 1) + ".",
    "bullets": lambda p: "* a b\n" * p["n"] + "more",
    "numbered": lambda p: "1. a\n" * p["n"],
    "paragraphs": lambda p: "a\n" * p["n"],
    "lines": lambda p: "a\n" * (p["n"] + 1),
    "parts": lambda p: "a *** b",
    "sections": lambda p: f"{p['head']} 1\na\n{p['head']} 3\nb",
    "json": lambda p: '{"' + p["keys"][0] + '": "x"}',
    "acrostic": lambda p: p["word"],
    "sorted-words": lambda p: "zebra, apple, " * p["n"],
    "title": lambda p: f"<<{p['title']}>>",
    "postscript": lambda p: f"P.S. the {p['word']}",
    "quoted": lambda p: 'He said "yes".',
    "braces": lambda p: "{yes}",
    "placeholders": lambda p: "[a] " * (p["n"] + 1),
    "lowercase": lambda p: "yes No",
    "uppercase": lambda p: "YES no",
    "title-case": lambda p: "Yes no",
    "capital-words": lambda p: "YES " * (p["n"] + 1),
    "no-commas": lambda p: "yes, no",
    "commas": lambda p: "a, " * (p["n"] + 1),
    "exclamations": lambda p: "a! " * (p["n"] + 1),
    "no-full-stops": lambda p: "Yes.",
    "question": lambda p: "Why? So.",
    "letter-at-least": lambda p: p["letter"] * (p["n"] - 1),
    "letter-absent": lambda p: f"say {p['letter'].upper()}",
    "short-words": lambda p: "a" * (p["n"] + 1),
    "long-words": lambda p: "seventh",
}


def test_every_kind_has_a_broken_example() -> None:
    assert set(BROKEN) == set(KINDS)


def test_combinations_never_share_a_slot_and_cover_all_kinds() -> None:
    seen: set[str] = set()
    for name in NAMES:
        domain = instructions.create(name)
        expected = int(name.split("/")[1].split("-")[0])
        for index in range(20):
            rules = domain.task(Split.TRAIN, index).metadata["rules"]
            assert len(rules) == expected
            slots = [s for r in rules for s in KINDS[r["kind"]].slots]
            assert len(slots) == len(set(slots))
            seen |= {r["kind"] for r in rules}
    assert len(seen) >= 38


def test_one_broken_rule_is_enough_and_parts_name_it() -> None:
    domain = instructions.create("instructions/3-constraints/mixed")
    task = domain.task(Split.TRAIN, 3)
    anchor = task.metadata["words"][0]
    broken = (task.gold or "").replace(anchor, "thing").replace(anchor.upper(), "THING")
    result = score(domain, task, broken.replace(anchor.capitalize(), "Thing"))
    assert result.value == 0.0 and result.parts[f"word:{anchor}"] == 0.0
    assert "broken" in result.reason


def test_thinking_is_not_judged() -> None:
    domain = instructions.create("instructions/1-constraints/style")
    for index in range(20):
        task = domain.task(Split.TRAIN, index)
        thought = "<think>Hmm, NO. Commas, all of them! Why?\n\n</think>\n"
        assert score(domain, task, thought + (task.gold or "")).value == 1.0
        assert score(domain, task, "<think>" + (task.gold or "")).value == 0.0


def test_loose_mode_forgives_a_greeting() -> None:
    name = "instructions/1-constraints/layout"
    strict, loose = instructions.create(name), instructions.create(name, mode="loose")
    forgiven = 0
    for index in range(20):
        task = strict.task(Split.TRAIN, index)
        assert loose.task(Split.TRAIN, index) == task
        greeted = "Sure, here it is: A, b. C!\n" + (task.gold or "")
        assert score(loose, task, task.gold or "").value == 1.0
        assert score(loose, task, greeted).value == 1.0
        forgiven += score(strict, task, greeted).value == 0.0
    assert forgiven >= 10


@pytest.mark.parametrize("name", NAMES)
def test_attempts_that_ignore_the_task_stay_at_the_floor(name: str) -> None:
    """Constants stuffed with as many of the words as the limit allows; any part of the prompt."""
    domain = instructions.create(name)
    tasks = [domain.task(Split.TRAIN, i) for i in range(40)]
    rng = random.Random(0)
    stuffed = " ".join(rng.sample(ANCHORS, 30)) + "."
    short = "The " + " ".join(rng.sample(ANCHORS, 7)) + "."
    limit = domain.spec.floor + 0.12  # 40 tasks: three standard errors above the floor
    for text in (stuffed, stuffed.lower(), short):
        assert sum(score(domain, t, text).value for t in tasks) / len(tasks) <= limit, text
    for task in tasks:
        for part, text in copied_parts(task.messages[0].content).items():
            assert score(domain, task, text).value == 0, (part, text)
        # Its words in an order, spelling or number of one's own are still only its words.
        told = " ".join(words_of(task.messages[0].content)[:8])
        named = task.metadata["words"]
        for text in (
            told,
            ", ".join(named),
            f"{' '.join(named)}!",
            f'"{named[0]}?"',
            named[0].upper(),
        ):
            assert score(domain, task, text).value == 0, text


def test_prompts_of_the_tiny_sets_are_short() -> None:
    for name in ("instructions/1-constraints/tiny", "instructions/2-constraints/tiny"):
        domain = instructions.create(name)
        for index in range(50):
            task = domain.task(Split.TRAIN, index)
            assert len(task.messages[0].content.split()) <= 32
            assert len(words_of(task.gold or "")) <= 10


def test_reading() -> None:
    assert words_of("It's 3 o'clock: (the) END. 4.") == ["it's", "o'clock", "the", "end"]
    assert len(sentences_of('One. "Two!" Three? 3.5 four')) == 4
    parts = held_parts(
        "Lanterns.", {"words": ["lantern"], "limit": None, "rules": [], "request": ""}
    )
    assert parts == {"word:lantern": False, "own-words": False}
    task = {"words": ["lantern"], "limit": 8, "rules": [], "request": "Write about 'lantern'."}
    for text, is_own in (("Lantern", False), ("Write lantern lantern", False),
                         ("A lantern", False), ("The lantern glows", True)):  # fmt: skip
        assert held_parts(text, task)["own-words"] is is_own, text


def test_misuse_is_refused() -> None:
    with pytest.raises(DomainError, match="Did you mean"):
        instructions.create("instructions/1-constraint/tiny")
    with pytest.raises(DomainError, match="mode"):
        instructions.create(NAMES[0], mode="lenient")
    with pytest.raises(DomainError, match="unknown option"):
        instructions.create(NAMES[0], worked=True)
