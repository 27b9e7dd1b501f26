"""The maths checker: published disagreements, policies, threads, hostile input, symmetry."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_rows import ROWS

from educe.core.errors import UnscoredError
from educe.core.types import Verdict
from educe.rewards.outcome.math import MathPolicy, check_math, read_completion, read_gold
from educe.rewards.outcome.math_equality import are_equal

TOWER = r"\boxed{\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}}"
VALUE = {"equal": 1.0, "different": 0.0}


@pytest.mark.parametrize(("gold", "completion", "expected"), ROWS)
def test_published_rows(gold: str, completion: str, expected: str) -> None:
    assert check_math(completion, gold).value == VALUE[expected]


@pytest.mark.parametrize(("gold", "completion", "expected"), ROWS)
def test_each_gold_equals_itself_in_any_wrapping(gold: str, completion: str, expected: str) -> None:
    bare = gold.strip("$")
    for wrapped in (
        gold,
        f"${bare}$",
        rf"\({bare}\)",
        rf"\[{bare}\]",
        rf"So \[ \boxed{{{bare}}} \]",
    ):
        if "boxed" in bare and wrapped != gold:
            continue
        assert check_math(wrapped, gold).value == 1.0, wrapped


def test_symmetric_on_all_pairs_of_golds() -> None:
    golds = [read_gold(g) for g, _, _ in ROWS]
    policy = MathPolicy()
    for i, a in enumerate(golds):
        for b in golds[:i]:
            assert are_equal(a, b, policy) == are_equal(b, a, policy)


def test_threads_agree_with_the_main_thread() -> None:
    alone = [check_math(c, g).value for g, c, _ in ROWS]
    with ThreadPoolExecutor(16) as pool:
        jobs = [[pool.submit(check_math, c, g) for g, c, _ in ROWS] for _ in range(4)]
        for run in jobs:
            assert [j.result().value for j in run] == alone


@pytest.mark.parametrize("gold", ["???", "", "$$", r"\frac{1}{", r"\sum_{i=1}^n i", "5 +", "(1, 2"])
def test_unreadable_gold_is_unscored_even_against_itself(gold: str) -> None:
    for completion in ("1", gold, r"\boxed{1}"):
        with pytest.raises(UnscoredError, match="gold answer"):
            check_math(completion, gold)


def test_power_tower_is_refused_not_computed() -> None:
    score = check_math(TOWER, "3")
    assert score.value == 0.0 and "too large" in score.reason
    with pytest.raises(UnscoredError, match="cannot be evaluated"):
        check_math("3", TOWER)
    assert check_math(TOWER, TOWER).value == 1.0


HOSTILE = [
    "9" * 100_000,
    r"\boxed{" + "9" * 1990 + "}",
    r"\boxed{" * 50_000,
    r"\boxed{" * 20_000 + "1" + "}" * 20_000,
    "(" * 100_000,
    "{" * 100_000 + "}" * 100_000,
    "$" * 100_001,
    "Answer: " * 30_000,
    "answer is " * 30_000,
    r"\(" * 50_000,
    r"\[1" * 50_000,
    r"\boxed{" + "(" * 500 + ")" * 500 + "}",
    r"\boxed{" + "-" * 1900 + "1}",
    r"\boxed{" + "1," * 900 + "1}",
    r"\boxed{" + r"\pi," * 300 + "1}",
    r"\boxed{" + "x!" + "!" * 900 + "}",
    r"\boxed{" + "9!" * 900 + "}",
    r"\boxed{9999999999!}",
    r"\boxed{\binom{99999999}{5000000}}",
    r"\boxed{10^{10^{10}}}",
    r"\boxed{0.1^{-10^{10}}}",
    r"\boxed{x^{10^{10}}}",
    r"\boxed{\sqrt[10^{-9}]{2}}",
    r"\boxed{e^{e^{e^{e^{e^e}}}}}",
    r"\boxed{\sin(10^{10^5})}",
    r"\boxed{" + "2^" * 600 + "2}",
    r"\boxed{" + "1/" * 900 + "0}",
    r"\boxed{" + r"\frac" * 300 + "}",
    r"\boxed{" + r"\sqrt" * 390 + "2}",
    r"\boxed{5 " + "a" * 1900 + "!}",
    r"\boxed{5" + " " * 1900 + "!}",
    r"\boxed{" + r"\text{" * 300 + "}" * 300 + "}",
    "<think>" * 40_000,
    "</think>" * 40_000,
    "1 " * 50_000,
    "1,222" * 50_000,
    "-" * 100_000,
    "\x00\ud800 ∞ ² √ ½",
]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_hostile_text_is_judged_in_bounded_time(index: int) -> None:
    """CPU time, not wall time: a hang fails, a busy machine does not."""
    start = time.thread_time()
    for gold in ("7", "x + 1", "$1, 2, 3$"):
        assert check_math(HOSTILE[index], gold).value == 0.0
    assert time.thread_time() - start < 3.0


def test_time_grows_linearly_with_the_text() -> None:
    def spent(factor: int) -> float:
        text = (r"we try \boxed{3} and {4} then $5$, so the answer is 6. " * 200) * factor
        start = time.thread_time()
        for _ in range(3):
            check_math(text, "7")
        return time.thread_time() - start

    spent(1)
    assert spent(16) < 16 * 8 * max(spent(1), 1e-3)


class TestPolicies:
    def test_percent(self) -> None:
        either = MathPolicy(percent="either")
        assert check_math("28", r"$28\%$").value == 0.0
        assert check_math("28", r"$28\%$", either).value == 1.0
        assert check_math("0.28", r"$28\%$").value == 1.0
        assert check_math(r"28\%", "28", either).value == 1.0
        assert check_math("2800", r"$28\%$", either).value == 0.0

    def test_base_subscript(self) -> None:
        assert check_math("$204$", "$204_5$").value == 0.0
        assert check_math("$204$", "$204_5$", MathPolicy(base="optional")).value == 1.0
        assert check_math("$204_5$", "$204_5$").value == 1.0
        assert check_math("$204_6$", "$204_5$", MathPolicy(base="optional")).value == 0.0
        assert check_math("$54$", "$204_5$", MathPolicy(base="optional")).value == 0.0

    def test_rounding(self) -> None:
        third = r"$\frac{1}{3}$"
        assert check_math("$0.33$", third).value == 0.0
        assert check_math("$0.33$", third, MathPolicy(decimals=2)).value == 1.0
        assert check_math("$0.34$", third, MathPolicy(decimals=2)).value == 0.0
        assert check_math("$0.33$", third, MathPolicy(significant_digits=2)).value == 1.0
        assert check_math("0.333334", third).value == 0.0
        assert check_math("1000000.1", "1000000").value == 0.0
        assert check_math("3.14159", "3.1415927").value == 1.0
        assert check_math("2.000001", "2").value == 0.0

    def test_relative_tolerance(self) -> None:
        close = MathPolicy(relative_tolerance=0.01)
        assert check_math("9.81", "9.8", close).value == 1.0
        assert check_math("9.7", "9.8", close).value == 0.0
        assert check_math("9.8", "9.81", close).value == 1.0
        for bad in (-0.1, 1.0, float("nan")):
            with pytest.raises(ValueError, match="relative_tolerance"):
                MathPolicy(relative_tolerance=bad)

    def test_units(self) -> None:
        assert check_math("5 cm", r"$5 \text{ cm}$").value == 1.0
        assert check_math("5", r"$5 \text{ cm}$").value == 1.0
        assert check_math("5 m", r"$5 \text{ cm}$").value == 0.0
        assert check_math("5", r"5 cm", MathPolicy(units="required")).value == 0.0

    def test_decimal_comma(self) -> None:
        comma = MathPolicy(has_decimal_comma=True)
        assert check_math("2,5", "2.5", comma).value == 1.0
        assert check_math("2,5", "2.5").value == 0.0
        assert check_math("5, 2", "$2,5$").value == 1.0

    def test_forms(self) -> None:
        expanded = MathPolicy(form="expanded")
        gold = "x^2 + 3x + 2"
        assert check_math("(x+1)(x+2)", gold).value == 1.0
        assert check_math("(x+1)(x+2)", gold, expanded).value == 0.0
        assert check_math("x^2 + x + 2x + 2", gold, expanded).value == 0.0
        assert check_math("2 + x^2 + 3*x", gold, expanded).value == 1.0
        factored = MathPolicy(form="factored")
        assert check_math("(x+2)(x+1)", gold, factored).value == 1.0
        assert check_math("x^2+3x+2", gold, factored).value == 0.0
        assert check_math("1*(x^2+3x+2)", gold, factored).value == 0.0
        number = MathPolicy(form="number")
        assert check_math("12 + 7", "19", number).value == 0.0
        assert check_math("19", "19", number).value == 1.0
        assert check_math("6/8", "3/4", number).value == 0.0


@pytest.mark.parametrize(
    ("gold", "completion", "expected"),
    [
        ("|x|", "x", 0.0),
        (r"\sqrt{x^2}", "|x|", 1.0),
        (r"\sqrt{x^2}", "x", 0.0),
        (r"\sin^2 x + \cos^2 x", "1", 1.0),
        (r"\frac{x^2-1}{x-1}", "x + 1", 1.0),
        ("(x+1)^2", "x^2+2x+1", 1.0),
        ("(x+1)^2", "x^2+2x+2", 0.0),
        ("e^{x+y}", "e^x e^y", 1.0),
        (r"\log_2 8", "3", 1.0),
        (r"\ln(x^2)", r"2\ln x", 1.0),
        ("10^{50}+\\pi", "10^{50}+e", 0.0),
        (r"\sqrt{2}\sqrt{3}", r"\sqrt 6", 1.0),
        (r"\{1, 2\}", r"\{2, 1\}", 1.0),
        (r"\{1, 2\}", "(1, 2)", 0.0),
        (r"\{3\}", "3", 1.0),
        ("1, 2", "(1, 2)", 1.0),
        (r"(-\infty, 3]", r"x \le 3", 1.0),
        (r"(-\infty, 3)", r"x \le 3", 0.0),
        (r"(1,2)\cup(3,4)", r"(3,4) \cup (1,2)", 1.0),
        (
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
            1.0,
        ),
        (
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
            r"\begin{pmatrix}1&3\\2&4\end{pmatrix}",
            0.0,
        ),
        (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt 2", 1.0),
        ("2:4", "1:2", 1.0),
        ("2:4", "2:1", 0.0),
        ("x = 1 or x = 2", "1, 2", 1.0),
        ("f(x) = 2x + 1", "2x+1", 1.0),
        ("y = 2x", "x = 2y", 0.0),
        ("x = 2", "y = 2", 0.0),
        ("x > 2", "x < 2", 0.0),
        ("3, 3", "3", 0.0),
        ("yes", "Yes.", 1.0),
        ("yes", "no", 0.0),
        ("the red house", "The answer is the red house.", 1.0),
        ("C", "Answer: (C)", 1.0),
        ("C", "Answer: B", 0.0),
        (r"30^\circ", "30 degrees", 1.0),
        (r"\sin 30^\circ", "1/2", 1.0),
        (r"\frac12", "0.5", 1.0),
        ("x_1 + x_2", "x_2 + x_1", 1.0),
        ("x_1 + x_2", "x_1 + x_1", 0.0),
        ("1/0", "5", 0.0),
        ("42", "<think>41? \\boxed{41}</think>\\boxed{42}", 1.0),
        ("42", "<think>\\boxed{42}", 0.0),
        ("42", "ANSWER: 41\nanswer: 42", 1.0),
        ("42", "ANSWER: 42\nAnswer: 41", 0.0),
        ("5", "So x = 5.", 1.0),
        ("12", r"It costs \$12.", 1.0),
        ("-3", "−3", 1.0),
    ],
)
def test_further_pairs(gold: str, completion: str, expected: float) -> None:
    assert check_math(completion, gold).value == expected


def test_nothing_found_is_unparseable() -> None:
    for text in ("", "   ", "I do not know.", "<think>hm"):
        score = check_math(text, "3")
        assert score.value == 0.0 and score.verdict in (Verdict.UNPARSEABLE, Verdict.WRONG)
    assert check_math("", "3").verdict is Verdict.UNPARSEABLE


@settings(max_examples=150, deadline=None)
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_compared_exactly(a: object, b: object) -> None:
    assert check_math(rf"\boxed{{{a}}}", f"${b}$").value == float(a == b)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=r"\{}()[]$^_+-*/=<>,.;:! 0123456789xyeipabcdfrqst", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    answer = read_completion(text)
    if answer is not None:
        assert are_equal(answer, answer, MathPolicy())


def test_restating_an_inequality_does_not_solve_it() -> None:
    solved = MathPolicy(form="solved")
    for right in ("x < 6", "6 > x", r"(-\infty, 6)"):
        assert check_math(right, "x < 6", solved).value == 1.0
    for wrong in ("5x + 6 < 36", "5x < 30", "x < 36/6", "x > 6"):
        assert check_math(wrong, "x < 6", solved).value == 0.0
    assert check_math("5x + 6 < 36", "x < 6").value == 1.0
