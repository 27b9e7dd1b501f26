"""When two typed answers are the same: exact first, then 150 digits, then declared policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, get_args

from educe.rewards.outcome.math_answers import (
    Answer,
    Choice,
    Items,
    Relation,
    Value,
    Words,
    interval_of,
)
from educe.rewards.outcome.math_syntax import Node, symbols
from educe.rewards.outcome.math_values import (
    UndefinedError,
    are_close,
    evaluate,
    exact,
    is_real,
    sample_points,
)

Form = Literal["any", "number", "expanded", "factored", "solved"]

_CHOICES = {
    "percent": ("value", "either"),
    "units": ("optional", "required"),
    "base": ("required", "optional"),
    "form": get_args(Form),
}
_NUM_POINTS = 5
_MAX_UNORDERED = 24


@dataclass(frozen=True, slots=True)
class MathPolicy:
    """What a task declares where mathematicians would differ.

    Attributes:
        percent: ``value``: 28 % is 0.28 and nothing else; ``either``: 28 % also equals 28.
        units: ``optional``: a unit may be missing on one side, two units must agree; ``required``:
            both sides carry the same unit.
        base: ``required``: 204_5 must keep its subscript; ``optional``: 204 passes.
        significant_digits: a decimal with at least so many digits equals the value it is a rounding
            or truncation of.
        decimals: when set, answers rounded to so many places are right.
        relative_tolerance: when > 0, constants this close (relative to the larger) are equal.
        has_decimal_comma: read ``3,5`` as 3.5.
        form: ``any``; ``number``: a literal number, not a sum to be worked out; ``expanded``: no
            bracketed sums, like terms collected; ``factored``: a product; ``solved``: one symbol
            alone on one side, literal numbers else (restating an inequality does not solve it).
    """

    percent: Literal["value", "either"] = "value"
    units: Literal["optional", "required"] = "optional"
    base: Literal["required", "optional"] = "required"
    significant_digits: int = 6
    decimals: int | None = None
    relative_tolerance: float = 0.0
    has_decimal_comma: bool = False
    form: Form = "any"

    def __post_init__(self) -> None:
        if not 0 <= self.relative_tolerance < 1:
            raise ValueError(f"relative_tolerance must be in [0, 1), got {self.relative_tolerance}")
        if self.significant_digits < 1 or (self.decimals is not None and self.decimals < 0):
            raise ValueError("significant_digits must be >= 1 and decimals >= 0")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        if type(self.has_decimal_comma) is not bool:
            raise ValueError(f"has_decimal_comma must be a bool, got {self.has_decimal_comma!r}")


def are_equal(left: Answer, right: Answer, policy: MathPolicy) -> bool:
    """Return whether two answers are the same; symmetric.

    Raises:
        TooLargeError: equality would need numbers beyond our limits.
    """
    if left == right:
        return True
    left, right = _plain(left), _plain(right)
    if isinstance(left, Relation) != isinstance(right, Relation):
        return _relation_with_other(left, right, policy)
    if isinstance(left, Items) != isinstance(right, Items):
        items, other = (left, right) if isinstance(left, Items) else (right, left)
        assert isinstance(items, Items)
        is_single = len(items.items) == 1 and items.kind in {"set", "list"}
        return is_single and are_equal(items.items[0], other, policy)
    if isinstance(left, Items) and isinstance(right, Items):
        return _same_items(left, right, policy)
    if isinstance(left, Value) and isinstance(right, Value):
        return _same_values(left, right, policy)
    if isinstance(left, Relation) and isinstance(right, Relation):
        return _same_relations(left, right, policy)
    return left == right or _same_letters(left, right)


def _plain(answer: Answer) -> Answer:
    """Turn a ± b into the set of its two values."""
    if isinstance(answer, Value) and _has_sign(answer.node):
        both = tuple(replace(answer, node=_with_sign(answer.node, s)) for s in (1, -1))
        return Items("list", both)
    return answer


def _has_sign(node: Node) -> bool:
    return node.kind == "pm" or any(_has_sign(a) for a in node.args)


def _with_sign(node: Node, sign: int) -> Node:
    args = tuple(_with_sign(a, sign) for a in node.args)
    if node.kind != "pm":
        return replace(node, args=args)
    right = args[1] if sign > 0 else Node("neg", (args[1],))
    return Node("add", (args[0], right))


def _same_letters(left: Answer, right: Answer) -> bool:
    """An option letter against the same letter read as a symbol or a word."""
    names = []
    for answer in (left, right):
        if isinstance(answer, Choice):
            names.append(answer.letter)
        elif isinstance(answer, Words):
            names.append(answer.text.upper() if len(answer.text) == 1 else answer.text)
        elif isinstance(answer, Value) and answer.node.kind == "sym":
            names.append(answer.node.name)
        else:
            return False
    return names[0] == names[1]


def _relation_with_other(left: Answer, right: Answer, policy: MathPolicy) -> bool:
    relation, other = (left, right) if isinstance(left, Relation) else (right, left)
    assert isinstance(relation, Relation)
    if relation.label and relation.value is not None:
        return are_equal(relation.value, other, policy)
    interval = interval_of(relation)
    return interval is not None and are_equal(interval, other, policy)


def _same_items(left: Items, right: Items, policy: MathPolicy) -> bool:
    if len(left.items) != len(right.items):
        return False
    kinds = {left.kind, right.kind}
    if left.kind == right.kind == "ratio":
        return _same_ratio(left, right, policy)
    if kinds - {"list", "set", "bracket"} and left.kind != right.kind:
        return False
    if kinds == {"set", "bracket"} or (kinds == {"bracket"} and left.brackets != right.brackets):
        return False
    is_ordered = bool(kinds & {"bracket", "rows", "ratio"}) or Words("…") in left.items
    if is_ordered or len(left.items) > _MAX_UNORDERED:
        return all(are_equal(a, b, policy) for a, b in zip(left.items, right.items, strict=True))
    remaining = list(right.items)
    for item in left.items:
        match = next((o for o in remaining if are_equal(item, o, policy)), None)
        if match is None:
            return False
        remaining.remove(match)
    return True


def _same_ratio(left: Items, right: Items, policy: MathPolicy) -> bool:
    """2:4 is 1:2; with other things than numbers, item by item."""
    values: list[list[Fraction]] = []
    for side in (left, right):
        numbers = [exact(i.node) for i in side.items if isinstance(i, Value)]
        values.append([n for n in numbers if n])
    if len(values[0]) == len(values[1]) == len(left.items):
        return len({a / b for a, b in zip(*values, strict=True)}) == 1
    return all(are_equal(a, b, policy) for a, b in zip(left.items, right.items, strict=True))


# ---------------------------------------------------------------- values


def _same_values(left: Value, right: Value, policy: MathPolicy) -> bool:
    if not _same_units(left.unit, right.unit, policy):
        return False
    if left.node == right.node:
        return True
    if "base" in (left.node.kind, right.node.kind):
        return _same_bases(left.node, right.node, policy)
    if _same_nodes(left.node, right.node, policy):
        return True
    if policy.percent == "either":
        has = [n.kind == "percent" for n in (left.node, right.node)]
        if has == [True, False]:
            return _same_nodes(left.node.args[0], right.node, policy)
        if has == [False, True]:
            return _same_nodes(left.node, right.node.args[0], policy)
    return False


def _same_units(left: str, right: str, policy: MathPolicy) -> bool:
    if left and right:
        return left.rstrip("s.") == right.rstrip("s.")
    return policy.units == "optional" or left == right


def _same_bases(left: Node, right: Node, policy: MathPolicy) -> bool:
    if left.kind == right.kind:
        return left.name == right.name and left.args == right.args
    if policy.base == "required":
        return False
    digits = [n.args[0] if n.kind == "base" else n for n in (left, right)]
    return digits[0] == digits[1]


def _same_nodes(left: Node, right: Node, policy: MathPolicy) -> bool:
    if symbols(left) or symbols(right):
        return _same_functions(left, right)
    try:
        a, b = exact(left), exact(right)
        if a is not None and b is not None:
            return a == b or _is_rounding(left, a, right, b, policy)
        x, y = evaluate(left, {}), evaluate(right, {})
    except UndefinedError:
        return False
    if are_close(x, y):
        return True
    if not (is_real(x) and is_real(y)) or x - x != 0 or y - y != 0:
        return False
    return _is_rounding(left, _fraction(x), right, _fraction(y), policy)


def _fraction(value: Any) -> Fraction:
    """The exact value of a real mpmath number; 200 digits are plenty for any rounding question."""
    from mpmath import libmp

    top, bottom = libmp.to_rational(value.real._mpf_)
    return Fraction(int(top), int(bottom))


def _shown(node: Node) -> tuple[int, int] | None:
    """Return (decimal places, significant digits) of a number written as a decimal, else None."""
    if node.kind == "num":
        return None if node.places is None else (node.places, node.digits)
    if node.kind == "neg":
        return _shown(node.args[0])
    if node.kind == "percent":
        inner = _shown(node.args[0])
        return None if inner is None else (inner[0] + 2, inner[1])
    if node.kind == "mul" and node.args[1].kind == "pow" and node.args[1].args[0].value == 10:
        inner, power = _shown(node.args[0]), exact(node.args[1].args[1])
        if inner is not None and power is not None and power.denominator == 1:
            return (inner[0] - int(power), inner[1])
    return None


def _is_rounding(
    left: Node, left_value: Fraction, right: Node, right_value: Fraction, policy: MathPolicy
) -> bool:
    """Whether one side is the other, rounded as the policy allows."""
    difference = abs(left_value - right_value)
    slack = Fraction(policy.relative_tolerance) * max(abs(left_value), abs(right_value))
    if policy.relative_tolerance and difference <= slack:
        return True
    if policy.decimals is not None and difference <= Fraction(1, 2 * 10**policy.decimals):
        return True
    candidates = [
        (shown, value, other)
        for shown, value, other in (
            (_shown(left), left_value, right_value),
            (_shown(right), right_value, left_value),
        )
        if shown is not None
    ]
    if not candidates:
        return False
    # Of two decimals the one with fewer places may be a rounding of the other, never the reverse.
    (places, digits), value, fine_value = min(candidates, key=lambda c: c[0][0])
    if digits < policy.significant_digits or abs(places) > 400:
        return False
    unit = Fraction(10) ** -places
    truncated = Fraction(abs(fine_value) // unit) * unit * (1 if fine_value >= 0 else -1)
    return value == truncated or abs(value - fine_value) <= unit / 2


# ---------------------------------------------------------------- functions and relations


def _evaluated(node: Node, point: dict[str, Any]) -> Any | None:
    try:
        return evaluate(node, point)
    except UndefinedError:
        return None


def _same_functions(left: Node, right: Node) -> bool:
    """Equal at random points: all positive ones, and those of mixed sign where both are real."""
    num_valid = 0
    for is_signed in (False, True):
        for point in sample_points((left, right), _NUM_POINTS, is_signed=is_signed):
            a, b = _evaluated(left, point), _evaluated(right, point)
            if a is None or b is None:
                if (a is None) != (b is None) and not is_signed:
                    return False
                continue
            if is_signed and not (is_real(a) and is_real(b)):
                continue
            if not are_close(a, b):
                return False
            num_valid += 1
    return num_valid >= 3


def _difference(relation: Relation) -> Node:
    return Node("add", (relation.sides[0], Node("neg", (relation.sides[1],))))


def _same_relations(left: Relation, right: Relation, policy: MathPolicy) -> bool:
    if left.label and left.label == right.label and left.value and right.value:
        return are_equal(left.value, right.value, policy)
    first, second = interval_of(left), interval_of(right)
    if first is not None and second is not None:
        return _symbol_of(left) == _symbol_of(right) and are_equal(first, second, policy)
    if len(left.sides) != 2 or len(right.sides) != 2:
        return left.operators == right.operators and all(
            _same_nodes(a, b, policy) for a, b in zip(left.sides, right.sides, strict=True)
        )
    sign = _operator_sign(left.operators[0], right.operators[0])
    if sign is None:
        return False
    return _are_proportional(_difference(left), _difference(right), sign)


def _symbol_of(relation: Relation) -> frozenset[str]:
    return frozenset().union(*(symbols(s) for s in relation.sides))


def _operator_sign(left: str, right: str) -> int | None:
    """0: any factor keeps the relation; 1: a positive one; -1: a negative one; None: never."""
    if left == right:
        return 0 if left in "=≠" else 1
    turned = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}
    return -1 if turned.get(left) == right else None


def _are_proportional(left: Node, right: Node, sign: int) -> bool:
    """Whether left = c · right with one constant c ≠ 0 of the wanted sign, at random points."""
    ratio: Any = None
    num_valid = 0
    points = [
        p for signed in (False, True) for p in sample_points((left, right), 3, is_signed=signed)
    ]
    for point in points:
        a, b = _evaluated(left, point), _evaluated(right, point)
        if a is None or b is None:
            continue
        if are_close(a, 0 * a) or are_close(b, 0 * b):
            if are_close(a, 0 * a) != are_close(b, 0 * b):
                return False
            continue
        if ratio is None:
            ratio = a / b
        elif not are_close(a / b, ratio):
            return False
        num_valid += 1
    if ratio is None or num_valid < 3:
        return False
    if sign == 0:
        return True
    return is_real(ratio) and bool((ratio.real > 0) == (sign > 0))
