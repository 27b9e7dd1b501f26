"""The reward that holds a long answer to what was settled before it."""

from __future__ import annotations

from typing import Any

import pytest

from educe.core.errors import UnscoredError
from educe.core.types import Verdict
from educe.rewards.outcome.commitments import score_commitments, sections_of

FORM = {"heading": "Part", "sections": 3, "least_words": 5}
COMMITMENTS: list[dict[str, Any]] = [
    {"name": "place", "role": "fact", "says": "Selby", "instead": ["Lorsk"]},
    {"name": "budget", "role": "fact", "number": 4300, "unit": "crowns"},
    {"name": "refrain", "role": "constraint", "says": "with all due care", "where": "each"},
    {"name": "word", "role": "constraint", "says": "cheap", "where": "nowhere"},
    {"name": "goal", "role": "goal", "says": "a new roof", "where": "last", "instead": ["a bus"]},
]
GOOD = [
    "We meet in Selby, with all due care.",
    "The budget is 4,300 crowns, kept with all due care.",
    "With  all due\ncare we end: it is for a new roof.",
]


def text(*parts: str) -> str:
    return "\n".join(f"Part {i}: {p}" for i, p in enumerate(parts, 1))


def score(*parts: str, commitments: Any = COMMITMENTS) -> Any:
    return score_commitments(text(*parts), FORM, commitments)


def test_what_keeps_everything_scores_one() -> None:
    found = score(*GOOD)
    assert found.value == 1.0 and found.verdict is Verdict.RIGHT
    assert found.parts == {"fact": 1.0, "constraint": 1.0, "goal": 1.0}
    marked = "\n\n".join(f"## **Part {i}:** {p}" for i, p in enumerate(GOOD, 1))
    assert score_commitments(marked, FORM, COMMITMENTS).value == 1.0


@pytest.mark.parametrize(
    ("place", "old", "new", "role", "reason"),
    [
        (0, "Selby", "the old hall", "fact", "no section says 'Selby'"),
        (1, "crowns, kept", "crowns. Lorsk is nearer, kept", "fact", "section 2 says 'Lorsk'"),
        (1, "4,300", "4,200", "fact", "section 2 says 4200 crowns"),
        (2, "we end", "we end with 90 crowns", "fact", "section 3 says 90 crowns"),
        (1, "with all due care", "as ever", "constraint", "section 2 lacks 'with all due care'"),
        (2, "we end", "we end Cheap", "constraint", "section 3 says 'cheap'"),
        (2, "a new roof", "the roof", "goal", "the last section lacks 'a new roof'"),
        (0, "We meet", "For a bus we meet", "goal", "section 1 says 'a bus'"),
    ],
)
def test_one_break_anywhere_is_found(
    place: int, old: str, new: str, role: str, reason: str
) -> None:
    parts = list(GOOD)
    assert old in parts[place] or old == "with all due care"
    parts[place] = parts[place].replace(old, new)
    found = score(*parts)
    assert found.value is not None and found.value < 0.7 and found.verdict is not Verdict.RIGHT
    assert reason in found.reason
    assert found.parts[role] < 1.0  # type: ignore[operator]
    others = {r: v for r, v in found.parts.items() if r != role}
    assert set(others.values()) == {1.0}


def test_the_goal_early_and_a_fact_late_are_not_the_same() -> None:
    """A goal stated only in the middle is not where the text must end."""
    assert score(GOOD[0], GOOD[2], GOOD[1]).parts["goal"] == 0.0


def test_saying_everything_and_saying_nothing_earn_nothing() -> None:
    flat = " ".join([*GOOD, "Selby Lorsk 4300 crowns 900 crowns cheap a bus a new roof"])
    assert score(flat, flat, flat).value == 0.0
    assert score(*["five words of no weight"] * 3).value == 0.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "expected Part 1 to Part 3"),
        ("We meet in Selby, for a new roof, with 4300 crowns.", "got []"),
        (text(*GOOD[:2]), r"got [1, 2]"),
        (text(*GOOD, *GOOD), r"got [1, 2, 3, 4, 5, 6]"),
        (text("too short", *GOOD[1:]), "Part 1 has 2 words, expected at least 5"),
    ],
)
def test_another_form_is_wrong(answer: str, reason: str) -> None:
    found = score_commitments(answer, FORM, COMMITMENTS)
    assert found.value == 0.0 and reason in found.reason


def test_numbers_are_read_as_people_write_them() -> None:
    for written in ("4300 crowns", "4,300 crowns", "4 300 crowns", "4300 Crowns."):
        parts = [GOOD[0], f"With all due care: {written}", GOOD[2]]
        assert score(*parts).value == 1.0, written
    for written in ("14300 crowns", "4.300 crowns", "43 crowns"):
        parts = [GOOD[0], f"With all due care: {written}", GOOD[2]]
        assert score(*parts).value < 0.7, written


def test_words_are_whole_words() -> None:
    assert score(GOOD[0].replace("Selby", "Selbyville"), *GOOD[1:]).parts["fact"] == 0.5
    assert score(GOOD[0] + " cheaper", *GOOD[1:]).value == 1.0


def test_sections_are_texts_between_headings() -> None:
    assert sections_of(text("a b c d e", "f g h i j", "k l m n o"), FORM) == [
        "a b c d e",
        "f g h i j",
        "k l m n o",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [{"role": "fact"}],
        [{"role": "hope", "says": "x"}],
        [{"role": "fact", "says": "x", "where": "middle"}],
    ],
)
def test_what_is_no_commitment_is_unscored(bad: list[dict[str, Any]]) -> None:
    with pytest.raises(UnscoredError):
        score(*GOOD, commitments=bad)
