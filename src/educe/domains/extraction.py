"""Reading the final answer out of a completion: one rule for every answer domain.

1. Thinking blocks do not count.
2. The content of the last ``\\boxed{…}``, else what follows the last "answer:" or "answer is",
   else the whole text, without Markdown fences.
3. For one-line answers: after a marker its first line, otherwise the last line of the text.
4. For numeric answers, when the line is more than a number: what follows its last ``=`` or "is";
   and if exactly one number stands there, that number. Two numbers are ambiguous and stay wrong.
5. Quotes and Markdown emphasis around it are dropped; comparing ignores a closing full stop.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from educe.rewards.outcome.extraction import boxes, strip_reasoning

_MARKER = re.compile(r"\banswer\b\W{0,4}?(?::|\bis\b:?)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
_FENCE = re.compile(r"^\s*```[\w-]*\s*$", re.MULTILINE)
_QUOTES = "\"'`“”‘’"
MAX_ANSWER_CHARS = 20_000


def extract_answer(text: str, *, is_multiline: bool = False, is_numeric: bool = False) -> str:
    """Return the answer that a completion gives, "" when it gives none.

    Args:
        text: the whole completion.
        is_multiline: answers of this domain may span lines (grids, lists of moves).
        is_numeric: answers of this domain are single numbers.
    """
    text = _FENCE.sub("", strip_reasoning(text)[-MAX_ANSWER_CHARS:])
    boxed = boxes(text)
    if boxed:
        return _bare(boxed[-1][2])
    markers = list(_MARKER.finditer(text))
    after = text[markers[-1].end() :] if markers else ""
    has_marker = bool(after.strip(" \n*_"))
    if is_multiline:
        return _bare_lines(after.strip(" *_") if has_marker else text)
    lines = [line for line in (after if has_marker else text).splitlines() if line.strip(" *_")]
    if not lines:
        return ""
    line = _bare(lines[0] if has_marker else lines[-1])
    return _only_number(line) if is_numeric else line


def same_answer(answer: str, gold: str) -> bool:
    """Return whether two answers are the same text, or the same number written differently.

    Letter case, quotes, and spaces at line ends or beside punctuation do not matter.
    """
    if _canonical(answer) == _canonical(gold):
        return True
    first, second = parse_number(answer), parse_number(gold)
    return first is not None and first == second


def parse_number(text: str) -> Decimal | None:
    """Return the finite number that the whole text is, with optional thousands commas."""
    bare = text.strip().rstrip(".")
    if len(bare) > 400 or not _NUMBER.fullmatch(bare):
        return None
    try:
        number = Decimal(bare.replace(",", ""))
    except InvalidOperation:
        return None
    return number if abs(number.adjusted()) < 400 else None


def _canonical(text: str) -> str:
    text = text.translate({ord(q): None for q in _QUOTES}).casefold().strip().rstrip(".")
    lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines()]
    joined = "\n".join(line for line in lines if line)
    return re.sub(r" ?([,;:\[\](){}]) ?", r"\1", joined)


def _bare(text: str) -> str:
    """Drop emphasis and quotes around one line."""
    text = text.strip()
    for _ in range(3):
        text = re.sub(r"^(\*\*|__)(.+)\1$", r"\2", text.strip())
        if len(text) > 2 and text[0] in _QUOTES and text[-1] in _QUOTES:
            text = text[1:-1]
    if text.startswith("** "):
        text = text[3:]
    return text.strip()


def _bare_lines(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


def _only_number(line: str) -> str:
    if parse_number(line) is not None:
        return line
    tail = re.split(r"=|\bis\b", line)[-1]
    numbers = _NUMBER.findall(tail)
    return numbers[0].rstrip(".") if len(numbers) == 1 else line
