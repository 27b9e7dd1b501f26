"""Extraction, exact text, sets and literal numbers."""

from __future__ import annotations

import pytest

from educe.core.errors import UnscoredError
from educe.core.types import Verdict
from educe.rewards.outcome.extraction import (
    boxed_answer,
    final_answer,
    last_label,
    strip_reasoning,
)
from educe.rewards.outcome.numeric import final_number, numeric_match, parse_number
from educe.rewards.outcome.text import VERBATIM, exact_match, set_match


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("<think>a</think>b", "b"),
        ("x<think>a</think>b<think>c</think>d", "xbd"),
        ("<think>never closed", ""),
        ("opened by the template</think>b", "b"),
        ("<THINK>a</Think> b", "b"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("no tags", "no tags"),
    ],
)
def test_reasoning_is_stripped(text: str, visible: str) -> None:
    assert strip_reasoning(text) == visible


def test_the_last_answer_line_wins_in_any_case() -> None:
    assert final_answer("ANSWER: 3\nno\nanswer: 4\n") == "4"
    assert final_answer("The answer is Oslo.") == "Oslo."
    assert final_answer("**Final Answer:** 7") == "7"
    assert final_answer("Answer:\n") == "Answer:"
    assert final_answer("42") == "42"


def test_boxes_nested_unclosed_and_joined() -> None:
    assert boxed_answer(r"\boxed{1} then \boxed{2") == ["1"]
    assert boxed_answer(r"\boxed{\frac{1}{2}}") == [r"\frac{1}{2}"]
    assert boxed_answer(r"\boxed{a \boxed{b}}") == [r"a \boxed{b}"]
    assert boxed_answer(r"\boxed{1} and \boxed{2}") == ["1", "2"]
    assert boxed_answer(r"\boxed{1}. Wait: \boxed{2}") == ["2"]
    assert boxed_answer(r"\boxed{\{1, 2\}}") == [r"\{1, 2\}"]


def test_labels_need_word_boundaries() -> None:
    labels = ["CORRECT", "INCORRECT"]
    assert last_label("CORRECT? no: INCORRECT", labels) == "INCORRECT"
    assert last_label("incorrectly", labels) is None
    assert last_label("It quotes INCORRECT. Verdict: correct", labels) == "CORRECT"


def test_exact_match_normalises_as_declared() -> None:
    assert exact_match("The answer is  the OAK tree.", "oak tree").value == 1.0
    assert exact_match("Oak", "oak", normalisation=VERBATIM).value == 0.0
    assert exact_match("birch", ["oak", "birch"]).value == 1.0
    assert exact_match("oak or birch", "oak").value == 0.0
    assert exact_match("", "oak").verdict is Verdict.UNPARSEABLE
    with pytest.raises(UnscoredError):
        exact_match("x", "  ")


def test_set_match_is_exact() -> None:
    gold = ["Ada", "Bo", "Cy"]
    assert set_match("Cy, Ada and Bo.", gold).value == 1.0
    assert set_match("- Ada\n- Bo\n- Cy", gold).value == 1.0
    everything = set_match("Ada, Bo, Cy, Di, Ed", gold)
    assert everything.value == 0.0 and everything.parts == {"precision": 0.6, "recall": 1.0}
    assert set_match("Ada, Bo", gold).parts["recall"] == pytest.approx(2 / 3)
    assert set_match("Ada, Ada, Bo, Cy", gold).value == 0.0
    assert set_match("12", ["4123"]).value == 0.0
    assert set_match("salt and pepper", ["salt and pepper"]).value == 1.0
    assert set_match("", gold).value == 0.0
    with pytest.raises(UnscoredError):
        set_match("x", [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("-7.", -7), ("1,234", 1234), ("3/4", 0.75), ("2.50", 2.5), ("1e3", 1000),
        ("−5", -5), ("$12$", 12), ("12,34", None), ("7 + 5", None), ("a7", None), ("", None),
        ("1/0", None), ("9" * 2000, None),
    ],
)  # fmt: skip
def test_literals(text: str, value: float | None) -> None:
    found = parse_number(text)
    assert (None if found is None else float(found)) == value


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("3 + 4 = 7", 7), ("The sum is 12.", 12), ("Answer: 5\nthen 6", 5), (r"\boxed{8}", 8),
        ("711", 711), ("A2b", None), ("= 3 + 4", None), ("3 + 4", None),
        ("It is 3,677 people", 3677),
        ("<think>9</think>8", 8), ("none", None), (r"\boxed{1} and \boxed{2}", None),
        ("12 apples", 12), ("$1,000", 1000), ("x = -3", -3),
    ],
)  # fmt: skip
def test_one_final_number(completion: str, value: int | None) -> None:
    assert final_number(completion) == value


def test_numeric_match() -> None:
    assert numeric_match("711", "11").value == 0.0
    assert numeric_match("100000000000", "99999999999").value == 0.0
    assert numeric_match("0.5", "1/2").value == 1.0
    assert numeric_match("101", "100", relative_tolerance=0.01).value == 1.0
    assert numeric_match("100", "101", relative_tolerance=0.01).value == 1.0
    assert numeric_match("no", "1").verdict is Verdict.UNPARSEABLE
    assert numeric_match("9" * 900, "1").value == 0.0
    with pytest.raises(UnscoredError):
        numeric_match("1", "one")
    with pytest.raises(ValueError, match="relative_tolerance"):
        numeric_match("1", "1", relative_tolerance=-1)
