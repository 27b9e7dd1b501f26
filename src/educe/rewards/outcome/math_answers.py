r"""Typed answers: value, items (set, tuple, interval, ratio …), relation, choice, words.

The type is read off the text alone. Values keep their unit aside, so that a task's policy decides
about units; percent signs stay in the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from educe.rewards.outcome.math_syntax import (
    MAX_CHARACTERS,
    MathSyntaxError,
    Node,
    clean,
    parse_formula,
    symbols,
)

MAX_ITEMS = 100


@dataclass(frozen=True, slots=True)
class Value:
    """One number or expression, with the unit that followed it."""

    node: Node
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers. ``kind``: list (bare commas), set, bracket, ratio, union, rows.

    ``brackets`` such as ``[)`` tells intervals and tuples apart; "…" may stand among the items as
    Words.
    """

    kind: str
    items: tuple[Answer, ...]
    brackets: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain such as ``0 < x ≤ 3`` or an equation; ``label`` names what a lone lhs defines."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]
    label: str = ""
    value: Answer | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """An option letter of a multiple-choice question."""

    letter: str


@dataclass(frozen=True, slots=True)
class Words:
    """Plain words, normalised."""

    text: str


Answer = Value | Items | Relation | Choice | Words


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHOICE = re.compile(r"\(?\s?([A-J])\s?\)?[.:]?")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm|textit)\s?\{([^{}]*)\}")
_LABEL = re.compile(
    r"\\?[A-Za-z]+(?:_(?:\{\w{1,8}\}|\w))?"
    r"|[A-Za-z]\s?\(\s?[A-Za-z](?:\s?,\s?[A-Za-z]){0,3}\s?\)"
    r"|\\?(?:angle|overline|triangle)\s?\{?\s?[A-Z]{1,4}\s?\}?|[A-Z]{1,4}"
)
_WORD_NAMES = _names(
    "sqrt sin cos tan cot sec csc arcsin arccos arctan ln log exp abs pi inf infinity"
)
_SHORT_WORDS = _names("so is it to of in we be if at as on by an he no my up us do go me am ok or")
_UNITS = _names("mm cm dm km m kg g mg t l ml cl s h min ms hr hrs mph kmh ft yd mi oz lb lbs in")
_UNIT_TAIL = re.compile(
    r"(?<=[\d)}\]])(?:\s{1,3}|(?=\\text))((?:[A-Za-z/^\d\s]|\\text\s?\{[^{}]*\})+)$"
)
_MAX_UNIT_CHARACTERS = 40
_RELATIONS = "<>≤≥=≠"


def parse_answer(text: str, *, has_decimal_comma: bool = False) -> Answer:
    """Return the typed answer.

    Args:
        has_decimal_comma: read every ``d,d`` as a decimal; without it only numbers like
            ``1000,99`` (four or more digits before, one or two after) are.

    Raises:
        MathSyntaxError: not an answer of any type.
    """
    if len(text) > MAX_CHARACTERS:
        raise MathSyntaxError("answer too long")
    text = _unwrap(clean(text))
    if not re.search(r"[\w∞π]", text):
        raise MathSyntaxError("nothing to read")
    match = _CHOICE.fullmatch(text)
    if match:
        return Choice(match.group(1))
    if _is_prose(text):
        return Words(" ".join(re.findall(r"[\w']+", text.casefold())))
    text = _decimal_comma(text, has_decimal_comma)
    return _parse(text, 0)


def _unwrap(text: str) -> str:
    r"""Drop \text{…} or \boxed{…} around the whole, and inner \text that holds words only."""
    for _ in range(4):
        match = re.fullmatch(r"\\(?:text|mbox|textbf|boxed|fbox|mathbf)\s?\{(.*)\}", text)
        if not match or not _is_balanced(match.group(1)):
            break
        text = match.group(1).strip()
    text = re.sub(r"\\text\s?\{\s?(and|or)\s?\}", r" \1 ", text)
    return re.sub(r"^\\\$\s?|(?<=\s)\\\$", "", text).strip()


def _is_balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _is_prose(text: str) -> bool:
    """Letters and blanks only, with a word in it: 'odd', 'the red one', but not 'xy' or 'pi'."""
    plain = _TEXT.sub(r" \1 ", text)
    if re.search(r"[\d\\=<>≤≥+*/^_{}()\[\]|°%±∞π]", plain):
        return False
    words = re.findall(r"[A-Za-z']+", plain)
    return any(
        (len(w) >= 3 and w.casefold() not in _WORD_NAMES) or w.casefold() in _SHORT_WORDS
        for w in words
        if w.casefold() not in {"and", "or"}
    )


def _decimal_comma(text: str, is_general: bool) -> str:
    if is_general:
        return re.sub(r"(?<=\d),(?=\d)", ".", text)
    return re.sub(r"(?<![\d.,])([-+]?\d{4,}),(\d{1,2})(?![\d.,])", r"\1.\2", text)


def _parse(text: str, depth: int) -> Answer:
    text = text.strip()
    if depth > 6:
        raise MathSyntaxError("answer nested too deeply")
    if text == "…":
        return Words("…")
    if not text:
        raise MathSyntaxError("empty item")
    matrix = re.fullmatch(r"\\begin\{([pbBv]?matrix)\}(.*)\\end\{\1\}", text, re.DOTALL)
    if matrix:
        rows = [r for r in re.split(r"\\\\", matrix.group(2)) if r.strip()]
        parsed = [Items("bracket", _items(r.split("&"), depth), "()") for r in rows]
        return Items("rows", tuple(parsed))
    brackets = _whole_brackets(text)
    if brackets:
        inner = text[len(brackets[0]) : -len(brackets[1])]
        parts = _split(inner, ",")
        if brackets[0] == "\\{":
            return Items("set", _items(parts, depth) if inner.strip() else ())
        if len(parts) > 1:
            return Items("bracket", _items(parts, depth), brackets[0] + brackets[1])
    return _parse_bare(text, depth)


def _parse_bare(text: str, depth: int) -> Answer:
    parts = _split(text, "∪")
    if len(parts) > 1:
        return Items("union", _items(parts, depth))
    parts = _split(_joined_thousands(text), ",")
    if len(parts) > 1:
        return _list(parts, depth)
    parts = _split(text, ":")
    if len(parts) > 1:
        return Items("ratio", _items(parts, depth))
    member = re.fullmatch(r"([A-Za-z])\s?∈(.*)", text, re.DOTALL)
    if member:
        return _parse(member.group(2), depth + 1)
    if any(r in text for r in _RELATIONS):
        return _relation(text, depth)
    return _value(text)


def _joined_thousands(text: str) -> str:
    """At the outermost level '3,677' is one number; inside brackets a comma separates."""
    if re.search(r"[(\[]|\\\{", text):
        return text
    return re.sub(r"(?<![\d.,])\d{1,3}(?:\{?,\}?\d{3})+(?![\d,])", _without_commas, text)


def _without_commas(match: re.Match[str]) -> str:
    return re.sub(r"[{},]", "", match.group())


def _list(parts: list[str], depth: int) -> Answer:
    """'n = 2, 3, 4' labels all its items."""
    label, equals, first = parts[0].partition("=")
    if equals and _LABEL.fullmatch(label.strip()) and not any("=" in p for p in parts[1:]):
        parts = [first, *parts[1:]]
    return Items("list", _items(parts, depth))


def _items(parts: list[str], depth: int) -> tuple[Answer, ...]:
    if len(parts) > MAX_ITEMS:
        raise MathSyntaxError("too many items")
    return tuple(_parse(p, depth + 1) for p in parts)


def _split(text: str, separator: str) -> list[str]:
    """Split at depth 0; for commas also at the words 'and' and 'or'."""
    pattern = re.compile(
        r"\\begin\{|\\end\{|\\[{}]|[\[\](){}]|"
        + re.escape(separator)
        + (r"|;|\b(?:and|or)\b" if separator == "," else "")
    )
    parts: list[str] = []
    depth, start = 0, 0
    for token in pattern.finditer(text):
        symbol = token.group()
        if symbol in {"\\begin{", "(", "[", "{", "\\{"}:
            depth += 1
        elif symbol in {")", "]", "}", "\\}"}:
            depth -= 1
        elif symbol != "\\end{" and depth == 0:
            parts.append(text[start : token.start()])
            start = token.end()
        elif symbol == "\\end{":
            depth += 1
    parts.append(text[start:])
    if separator == "," and len(parts) > 1:
        parts = [p for p in parts if p.strip()]
    return parts


def _whole_brackets(text: str) -> tuple[str, str] | None:
    """Return the brackets when the first one closes at the very end."""
    opening = next((b for b in ("\\{", "(", "[", "]") if text.startswith(b)), None)
    closing = next((b for b in ("\\}", ")", "]", "[") if text.endswith(b)), None)
    if opening is None or closing is None or (opening == "\\{") != (closing == "\\}"):
        return None
    if len(text) <= len(opening) + len(closing):
        return ("\\{", "\\}") if opening == "\\{" else None
    inner = text[len(opening) : -len(closing)]
    depth = 0
    for token in re.finditer(r"\\[{}]|[()\[\]{}]", inner):
        depth += 1 if token.group() in {"(", "[", "{", "\\{"} else -1
        if depth < 0:
            return None
    return (opening, closing)


def _relation(text: str, depth: int) -> Answer:
    pieces = re.split(f"([{_RELATIONS}])", text)
    sides, operators = pieces[::2], tuple(pieces[1::2])
    if len(sides) > 8 or not all(s.strip() for s in sides):
        raise MathSyntaxError("incomplete relation")
    label, value = "", None
    if set(operators) == {"="} and _LABEL.fullmatch(sides[0].strip()):
        label = re.sub(r"[\s{}\\]", "", sides[0])
        value = _parse(sides[-1], depth + 1)
    try:
        for side in sides:
            _refuse_words(side)
        nodes = tuple(parse_formula(s) for s in sides)
    except MathSyntaxError:
        if value is None:
            raise
        nodes = ()
    return Relation(nodes, operators, label, value)


def _value(text: str) -> Value:
    unit = ""
    offset = max(0, len(text) - _MAX_UNIT_CHARACTERS)
    match = _UNIT_TAIL.search(text[offset:])
    if match:
        tail = _TEXT.sub(r"\1", match.group(1)).strip()
        if "\\text" in match.group(1) or _is_unit(tail):
            text = text[: offset + match.start()]
            unit = " ".join(tail.casefold().split())
    _refuse_words(text)
    node = parse_formula(text)
    if node.kind == "degree":
        node, unit = node.args[0], "°"
    elif node.kind == "neg" and node.args[0].kind == "degree":
        node, unit = replace(node, args=node.args[0].args), "°"
    return Value(node, "°" if unit in {"degree", "degrees", "deg"} else unit)


def _refuse_words(text: str) -> None:
    """Letters between blanks are a word of prose, unless they name a function."""
    for word in re.findall(r"(?:^|(?<=\s))([A-Za-z]{2,})(?=\s|$)", text):
        is_word = len(word) >= 3 or word.casefold() in _SHORT_WORDS
        if is_word and word.casefold() not in _WORD_NAMES:
            raise MathSyntaxError(f"the word {word!r} in a formula")


def _is_unit(tail: str) -> bool:
    words = re.findall(r"[A-Za-z]+", tail)
    return bool(words) and all(
        (len(w) >= 3 and w.casefold() not in _WORD_NAMES) or w in _UNITS for w in words
    )


def interval_of(answer: Answer) -> Items | None:
    """Return the interval that a relation in one symbol with constant ends describes."""
    if not isinstance(answer, Relation) or not answer.sides:
        return None
    directions = {o.replace("≤", "<").replace("≥", ">") for o in answer.operators}
    if directions not in ({"<"}, {">"}):
        return None
    sides, operators = list(answer.sides), list(answer.operators)
    if directions == {">"}:
        sides, operators = sides[::-1], operators[::-1]
    infinity = Node("const", name="inf")
    closed = [o in "≤≥" for o in operators]
    if len(sides) == 2 and sides[0].kind == "sym":
        sides, closed = [Node("neg", (infinity,)), *sides], [False, *closed]
    elif len(sides) == 2 and sides[1].kind == "sym":
        sides, closed = [*sides, infinity], [*closed, False]
    if len(sides) != 3 or sides[1].kind != "sym" or symbols(sides[0]) or symbols(sides[2]):
        return None
    brackets = ("[" if closed[0] else "(") + ("]" if closed[1] else ")")
    return Items("bracket", (Value(sides[0]), Value(sides[2])), brackets)
