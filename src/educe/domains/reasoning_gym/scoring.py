"""Judging an answer of a reasoning-gym family, without trusting the answer or the scorer blindly.

The value is 1 when the answer is the gold text (see ``extraction.same_answer``) or the family's own
``score_answer`` gives at least 1, and 0 otherwise: the crumbs that many families pay for a wrong or
half-right answer (0.01 to 0.99) would reward guessing, so they only appear as the part
``family_score``. Two kinds of families are judged by us instead (:data:`OWN_RULES`): those whose
scorer accepts wrong answers, and those whose scorer evaluates the model's text as Python.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from educe.core.types import Score
from educe.domains.extraction import parse_number, same_answer

Entry = Mapping[str, Any]

_EXACT = "only the gold text is right; the family's scorer evaluates the answer as Python code"

OWN_RULES: dict[str, str] = {
    "binary_matrix": _EXACT,
    "coin_flip": "within 0.0001 of the gold; the family gives '0' full marks, as a prefix of it",
    "countdown": "checked here with exact fractions; the family evaluates the answer as code",
    "decimal_arithmetic": "exactly the gold number; the family tolerates a whole last digit",
    "game_of_life_halting": "only the gold word is right; the family accepts any non-empty text",
    "number_sorting": "exactly the sorted numbers; the family tolerates an error of 1 in each",
    "spiral_matrix": _EXACT,
    "string_insertion": _EXACT,
}
"""Family: how and why its answers are judged by educe rather than by the package."""

_BOARD = re.compile(r"[_Q \n]*")
_ALGEBRA_TOKEN = re.compile(r"\s+|[a-zA-Z]+|\d+(?:\.\d+)?|\*\*|[-+*/()]")
_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh")
_ALGEBRA_NAMES = frozenset(
    (*_FUNCTIONS, "tanh", "exp", "log", "ln", "sqrt", "Abs", "pi", "E", "e", *"xXyzC")
)


def judge(family: str, answer: str, entry: Entry, score_answer: Callable[..., float]) -> Score:
    """Return the score of an extracted answer.

    Args:
        family: name within reasoning-gym.
        answer: what ``extract_answer`` found.
        entry: the generated item, with its ``answer`` and ``metadata``.
        score_answer: the family's own scorer.
    """
    if not answer.strip():
        return Score.unparseable("the completion gives no answer")
    if same_answer(answer, str(entry["answer"])):
        return Score.right()
    if family in OWN_RULES:
        is_right = _OWN_CHECKS.get(family, _never)(answer, entry)
        return Score.right() if is_right else Score.wrong()
    refusal = _unsafe(family, answer)
    if refusal:
        return Score.unparseable(refusal)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            closing = "" if str(entry["answer"]).endswith(".") else "."
            raw = float(score_answer(answer.rstrip(closing), entry))
    except Exception as error:  # the gold answer passes, so it is this answer that cannot be read
        return Score.unparseable(f"not an answer of this family: {type(error).__name__}: {error}")
    if raw >= 1 - 1e-9:
        return Score.right(family_score=raw)
    return Score.wrong(family_score=raw)


def evaluate_arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """Return the exact value of an expression of + - * / and its integers; None if it is none."""
    if len(text) > 400 or not re.fullmatch(r"[-+*/() \d]+", text) or "**" in text or "//" in text:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval")
        used: list[int] = []
        return _evaluate(tree.body, used), used
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluate(node.operand, used)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, used), _evaluate(node.right, used)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError(f"not arithmetic: {ast.dump(node)[:60]}")


def _never(answer: str, entry: Entry) -> bool:
    return False


def _countdown(answer: str, entry: Entry) -> bool:
    numbers, target = entry["metadata"]["numbers"], entry["metadata"]["target"]
    result = evaluate_arithmetic(answer.rpartition("=")[0] if "=" in answer else answer)
    return result is not None and result[0] == target and sorted(result[1]) == sorted(numbers)


def _number_sorting(answer: str, entry: Entry) -> bool:
    found, gold = (_numbers(text) for text in (answer, str(entry["answer"])))
    return found is not None and found == gold


def _numbers(text: str) -> list[Any] | None:
    parts = [part.strip(" '\"") for part in text.strip().strip("[]").split(",")]
    numbers = [parse_number(part) for part in parts]
    return None if any(n is None for n in numbers) else numbers


def _coin_flip(answer: str, entry: Entry) -> bool:
    parts = [parse_number(part) for part in answer.split("/")]
    if None in parts or len(parts) > 2 or (len(parts) == 2 and parts[1] == 0):
        return False
    numbers = [Fraction(part) for part in parts if part is not None]
    value = numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]
    return abs(value - Fraction(str(entry["answer"]))) <= Fraction(1, 10_000)


_OWN_CHECKS: dict[str, Callable[[str, Entry], bool]] = {
    "coin_flip": _coin_flip,
    "countdown": _countdown,
    "number_sorting": _number_sorting,
}


def _unsafe(family: str, answer: str) -> str:
    """Say why an answer must not reach a scorer that evaluates it; empty when it may."""
    if family == "n_queens":
        return "" if _BOARD.fullmatch(answer) else "a board consists of _ and Q only"
    if family in ("simple_integration", "intermediate_integration", "polynomial_multiplication"):
        return _unsafe_algebra(answer)
    return ""


def _unsafe_algebra(answer: str) -> str:
    """Allow sums, products, small powers and known functions; towers of powers never end."""
    if len(answer) > 400:
        return "an expression of more than 400 characters"
    position, previous = 0, ""
    while position < len(answer):
        match = _ALGEBRA_TOKEN.match(answer, position)
        if match is None:
            return f"unexpected character {answer[position]!r} in an expression"
        token = match.group()
        position = match.end()
        if token[0].isalpha() and token not in _ALGEBRA_NAMES:
            return f"unknown name {token!r} in an expression"
        if token[0].isdigit() and len(token) > 9:
            return "a number of more than 9 digits in an expression"
        if previous == "**" and not re.match(
            r"\d{1,2}(?!\d|\s*\*\*)|\(-?\d{1,2}(/\d{1,2})?\)(?!\s*\*\*)", answer[match.start() :]
        ):
            return "a power that is not a small number"
        previous = token if token.strip() else previous
    return ""
