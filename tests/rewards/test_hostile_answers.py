# ruff: noqa: E501
"""Answers by somebody who did not write the checkers: to be paid, to hang one, or to be excused.

An answer that makes a checker raise or run late would be *unscored*, which a model that cannot
solve a task prefers to a zero. So each of these must come out as a plain 0, soon, from any depth of
calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from educe.core.errors import UnscoredError
from educe.core.types import Score
from educe.rewards.outcome.extraction import boxed_answer, boxes, last_label
from educe.rewards.outcome.format import tag_format
from educe.rewards.outcome.math import MathPolicy, check_math
from educe.rewards.outcome.math_syntax import MAX_TREE_DEPTH, MathSyntaxError, parse_formula
from educe.rewards.outcome.numeric import numeric_match
from educe.rewards.outcome.schema import schema_match
from educe.rewards.outcome.text import exact_match, set_match

_CPU_S = 2.0


def soon(check: Callable[[], Any]) -> Any:
    """Return what a check returns; fail when it takes long (processor time of this thread)."""
    begun = time.thread_time()
    result = check()
    assert time.thread_time() - begun < _CPU_S
    return result


# Below the limit of tokens and above any usual depth: no brackets, so no nesting that a parser
# counts.
CHAINS = {
    "factorials": "x" + "!" * 780,
    "percents": "1" + "%" * 780,
    "degrees": "1" + "°" * 780,
    "a sum": "1+" * 390 + "1",
    "a sum of symbols": "x+" * 390 + "1",
    "a product": "x " * 390 + "1",
    "quotients": "1/" * 390 + "7",
    "signs": "1±" * 390 + "7",
    "powers of sums": "(" * 28 + "1" + "+1)^2" * 28 + "+1" * 200,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_operators_is_no_way_to_be_unscored(name: str) -> None:
    text = rf"\boxed{{{CHAINS[name]}}}"
    scores: list[Score] = []

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            scores.extend(check_math(text, gold) for gold in ("7", "x+1", "1, 2", "x < 3"))

    soon(lambda: deep(250))
    worker = threading.Thread(target=deep, args=(100,))
    worker.start()
    worker.join()
    assert [score.value for score in scores] == [0.0] * 8


def test_a_chain_that_a_checker_cannot_walk_is_no_gold() -> None:
    with pytest.raises(UnscoredError, match="nested too deeply"):
        check_math("7", CHAINS["factorials"])
    # The limit is what stops them: a chain just below it is read and worth what it says.
    count = MAX_TREE_DEPTH - 10
    assert check_math(rf"\boxed{{{'1+' * (count - 1)}1}}", str(count)).value == 1.0
    with pytest.raises(MathSyntaxError):
        parse_formula("1+" * MAX_TREE_DEPTH + "1")


@pytest.mark.parametrize(
    "formula",
    [
        "+".join([r"\binom{9999}{5000}"] * 100),
        "+".join([r"\binom{29999}{15000}"] * 80),
        "+".join(["3000!"] * 140),
        "*".join(["3000!"] * 140),
        "+".join(["x!"] * 140),
        "+".join(["(7000x)!"] * 100),
        "+".join([r"\sinh(9000x)"] * 90),
        "+".join(["7^{70000}"] * 90),
        ",".join(f"(x+{i})!(x-1)!x!" for i in range(24)),
        r"\sqrt[\infty]{-7}",
        r"\sqrt[0]{7}",
        r"\log_1 5",
        r"\infty^\infty",
        r"\infty - \infty",
        r"i^{i^{i^i}}",
        r"\infty!",
        r"\binom{\infty}{i}",
        r"\lfloor\infty\rfloor",
        "0/0",
        "0^0 - 1 + 7/0",
    ],
)
def test_costly_and_undefined_values_are_plain_zeros(formula: str) -> None:
    golds = ("7", "x+1", ",".join(f"x^{i}" for i in range(24)))
    assert soon(lambda: [check_math(rf"\boxed{{{formula}}}", g).value for g in golds]) == [0.0] * 3


def test_boxes_in_boxes_take_linear_time() -> None:
    def spent(depth: int) -> float:
        text = r"\boxed{" * depth + "1" + "}" * depth
        begun = time.thread_time()
        for _ in range(3):
            (only,) = boxes(text)
        assert only[1] == len(text)
        return time.thread_time() - begun

    spent(1000)
    assert spent(160_000) < 16 * 4 * max(spent(10_000), 1e-3)


LONG = {
    "blanks": "a" + " " * 60_000 + "b",
    "tabs": "a" + " \t" * 30_000 + "b",
    "line ends": "a" + "\n" * 60_000 + "b",
    "no-break spaces": "a" + "\xa0" * 60_000 + "b",
    "conjunctions": "and " * 40_000,
    "commas": "," * 100_000,
    "commas and blanks": ", " * 50_000 + "and",
    "ligatures": "\ufdfa" * 20_000,
    "marks": "e" + "\u0301" * 60_000,
    "bullets": "- " * 50_000,
    "fences": "```\n" * 40_000,
    "ticks": "`" * 150_000,
    "a fence that never ends": "```json" + " \t" * 60_000,
    "numbers": "1,222" * 30_000,
    "answers": "Answer: " * 30_000,
    "dollars": "$a" * 60_000,
    "tags": "<think></think>" * 15_000,
    "quotes": "\"'" * 60_000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts_do_not_hang_a_checker(name: str) -> None:
    text = LONG[name]
    scores = soon(
        lambda: [
            set_match(text, ["x", "y"]),
            exact_match(text, "x"),
            numeric_match(text, "77"),
            check_math(text, "77"),
            schema_match(text, {"type": "integer"}),
            tag_format(text),
        ]
    )
    assert [score.value for score in scores] == [0.0] * 6


def test_items_are_split_as_ever_around_white_space() -> None:
    for text in (
        "Ada,   Bo \n and\tCy",
        "Ada ;Bo;  Cy ",
        "  - Ada\n  2) Bo\n\n * Cy",
        "Ada, Bo, and Cy",
    ):
        assert set_match(text, ["Ada", "Bo", "Cy"]).value == 1.0, text


# Each names 41 and 42. At most one can be meant.
HEDGES = [
    "41 or 42",
    r"\boxed{41} \boxed{42}",
    r"\boxed{41} or \boxed{42}",
    r"\boxed{41}, no \boxed{42}",
    r"\boxed{41 \text{ or } 42}",
    r"\boxed{41 \text{ maybe } 42}",
    r"\boxed{41 but perhaps 42}",
    r"\boxed{\{41, 42\}}",
    r"\boxed{[41, 42]}",
    r"\boxed{41:42}",
    r"\boxed{41.5 \pm 0.5}",
    r"\boxed{x = 41 = 42}",
    r"\boxed{41 = 42}",
    r"\boxed{41 \le x \le 42}",
    r"\boxed{x \in \{41, 42\}}",
    r"\boxed{\begin{pmatrix} 41 & 42 \end{pmatrix}}",
    r"\boxed{41 \cup 42}",
    r"\boxed{41, \ldots, 42}",
    r"\boxed{\boxed{41}\boxed{42}}",
    "Answer: 41\nAnswer: 42",
    "<think>\\boxed{41}</think>\\boxed{42}",
    "\\boxed{41}</think>42",
    "The answer is 41. Final answer: 42",
    "$41$ $42$",
    "$41$ and $42$",
    "41 42",
    "41.42",
    "41/42",
    r"\fbox{41} \boxed{42}",
]  # fmt: skip
POLICIES = [
    MathPolicy(),
    MathPolicy(percent="either", base="optional", decimals=0, has_decimal_comma=True),
]


@pytest.mark.parametrize("text", HEDGES)
def test_no_answer_is_right_for_two_questions(text: str) -> None:
    for policy in POLICIES:
        assert sum(check_math(text, gold, policy).value or 0.0 for gold in ("41", "42")) <= 1.0
    assert sum(numeric_match(text, gold).value or 0.0 for gold in ("41", "42")) <= 1.0
    assert sum(exact_match(text, gold).value or 0.0 for gold in ("41", "42")) <= 1.0


@pytest.mark.parametrize(
    "text", ["A B", "(A)(B)", "A or B", "AB", "[A, B]", "A/B", r"\boxed{A}\boxed{B}"]
)
def test_no_choice_is_two_choices(text: str) -> None:
    assert sum(check_math(text, gold).value or 0.0 for gold in ("A", "B")) == 0.0
    assert check_math(r"\boxed{B}", "B").value == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("\u0445 + 1", "x + 1"),  # a Cyrillic letter
        ("4\u200b2", "42"),  # a blank of no width
        ("\u202e24", "42"),  # shown from right to left
        ("4\u03012", "42"),
        ("\u216b", "12"),  # a Roman numeral
        ("4\u00b2", "42"),
        ("\u2460", "1"),
        ("4 2", "42"),
        ("0x2A", "42"),
        ("42\x00", "41"),
        ("\u221e", "9" * 400),
        ("1e999", r"\infty"),
    ],
)
def test_what_only_looks_like_the_answer_is_not(text: str, gold: str) -> None:
    assert check_math(rf"\boxed{{{text}}}", gold).value == 0.0


def test_look_alikes_of_labels_and_tags_do_not_count() -> None:
    assert last_label("\u0421ORRECT, COR\u200bRECT, \uff23ORRECT", ["CORRECT"]) is None
    assert tag_format("<think>why</think><\u0430nswer>7</\u0430nswer>").value == 0.0
    inside = "<think>hm <answer>42</answer></think><answer>41</answer>"
    assert tag_format(inside).value == 0.0
    assert boxed_answer(r"\bo\u0445ed{42}") == []


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "multipleOf": 1}},
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text",
    [
        '{"age": 1e999}',
        '{"age": -1e999}',
        '{"age": Infinity}',
        '{"age": NaN}',
        '{"age": true}',
        '{"age": "3"}',
        '{"age": 3, "age": 4}',
        '{"age": 3, "\\u0061ge": 4}',
        '{"\u0430ge": 3}',
        '{"age": 3.0000000001}',
        '{"age": ' + "9" * 5000 + "}",
        '{"age": ' + "[" * 5000,
        '{"age": 3}{"age": 3}',
        '{"age": 3} and that is it',
        '```json\n{"age": 3}\n```\n```json\n{"age": -3}\n```',
        "<think>" + '{"age": 3}',
    ],
)
def test_json_that_parsers_disagree_on_is_a_plain_zero(text: str) -> None:
    assert soon(lambda: schema_match(text, PERSON)).value == 0.0


def test_the_json_they_imitate_is_right() -> None:
    assert schema_match('{"age": 3}', PERSON).value == 1.0
    assert schema_match('{"age": 3e0}', PERSON).value == 1.0
    assert schema_match('{"age": 1e300}', PERSON).value == 1.0


@pytest.mark.parametrize(
    "text",
    ["1e9999", "-1e9999", "1e-9999", "9" * 999 + "e9", "1/1e9999", "1e9999/1e-9999", "1/0", "0/0", "--7", "7e", "7e+", "7/7/1"],
)  # fmt: skip
def test_a_tolerance_is_not_stretched_by_numbers_of_any_size(text: str) -> None:
    assert soon(lambda: numeric_match(text, "77", relative_tolerance=0.9)).value == 0.0
    assert numeric_match("77.1", "77", relative_tolerance=0.01).value == 1.0
    assert numeric_match("-0", "0").value == 1.0
