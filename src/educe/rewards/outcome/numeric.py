"""Numbers as literals: one answer, compared exactly.

For tasks whose answer is a number that must be worked out, so expressions ("12 + 7") are no answer.
"""

from __future__ import annotations

import re
from fractions import Fraction

from educe.core.errors import UnscoredError
from educe.core.types import Score
from educe.rewards.outcome.extraction import (
    MAX_ANSWER_CHARACTERS,
    answer_line,
    boxed_answer,
    strip_reasoning,
)

MAX_DIGITS = 1000
_TAIL_CHARACTERS = 2000

# A number token stands alone: "711" holds no "11", "A2b" holds no "2", "3.14" no "14".
NUMBER_TOKEN = re.compile(
    r"(?<![\w.,])(?<!\d[ ])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,4})?"
    r"(?:\s?/\s?[-+]?\d+)?(?![\w])(?![.,]\d)"
)
_LITERAL = re.compile(r"([-+]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE]([-+]?\d{1,4}))?")


def parse_number(text: str) -> Fraction | None:
    """Return the exact value of one literal (integer, decimal, a/b, 1,234), else None.

    Accepts surrounding ``$``, a trailing full stop and Unicode minus; nothing else around it.
    """
    text = text.strip().strip("$*").strip().rstrip(".").replace("−", "-")
    if not text or len(text) > MAX_DIGITS:
        return None
    numerator, slash, denominator = text.partition("/")
    value = _literal(numerator.strip())
    if not slash or value is None:
        return value
    divisor = _literal(denominator.strip())
    return value / divisor if divisor else None


def _literal(text: str) -> Fraction | None:
    match = _LITERAL.fullmatch(text)
    if match is None:
        return None
    sign, digits, exponent = match.groups()
    value = Fraction(digits.replace(",", "").rstrip("."))
    if exponent:
        value *= Fraction(10) ** int(exponent)
    return -value if sign == "-" else value


def number_tokens(text: str) -> list[str]:
    """Return the literals that stand alone in the text's end, in order."""
    return [m.group() for m in NUMBER_TOKEN.finditer(text[-_TAIL_CHARACTERS:])]


def final_number(completion: str) -> Fraction | None:
    r"""Return the one number that a completion answers with, None when there is none.

    The last complete box, else the last ``Answer:`` line, else the whole text; within it the number
    that follows the last equals sign or, without one, the last that stands alone.
    """
    text = strip_reasoning(completion)
    run = boxed_answer(text)
    if len(run) > 1:
        return None
    source = run[0] if run else answer_line(text)
    if source is None:
        source = text[-_TAIL_CHARACTERS:]
    if len(source) > MAX_ANSWER_CHARACTERS:
        return None
    whole = parse_number(source)
    if whole is not None:
        return whole
    tail = source.rsplit("=", 1)[-1]
    # "= 3 + 4" is an expression, not its value.
    if re.fullmatch(r"[\s\d.()+*/×÷−-]+", tail) and parse_number(tail) is None:
        return None
    tokens = number_tokens(tail) or number_tokens(source)
    return parse_number(tokens[-1]) if tokens else None


def numeric_match(completion: str, gold: str, *, relative_tolerance: float = 0.0) -> Score:
    """Score 1 when the final number equals the gold: exactly, or within a declared tolerance.

    The tolerance is relative to the larger magnitude, so the comparison is symmetric.

    Raises:
        UnscoredError: when the gold is not a number.
        ValueError: for a negative or too large tolerance.
    """
    if not 0 <= relative_tolerance < 1:
        raise ValueError(f"relative_tolerance must be in [0, 1), got {relative_tolerance}")
    wanted = parse_number(gold)
    if wanted is None:
        raise UnscoredError(f"numeric_match expected a number as gold, got {gold[:80]!r}")
    found = final_number(completion)
    if found is None:
        return Score.unparseable("no number found")
    slack = Fraction(relative_tolerance) * max(abs(wanted), abs(found))
    if abs(found - wanted) <= slack:
        return Score.right()
    return Score.wrong(f"expected {gold[:60]}, got {_shown(found)}")


def _shown(value: Fraction) -> str:
    # int -> str conversion of huge values is quadratic and limited by the interpreter.
    if value.numerator.bit_length() > 200 or value.denominator.bit_length() > 200:
        return "a very long number"
    return str(value)
