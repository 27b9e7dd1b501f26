"""Whether an answer has the form a task asks for: a right value is no answer to 'expand'."""

from __future__ import annotations

from collections import Counter

from educe.rewards.outcome.math_answers import Answer, Items, Relation, Value, interval_of
from educe.rewards.outcome.math_syntax import Node, symbols

Monomial = frozenset[tuple[str, int]]


def has_form(answer: Answer, form: str) -> bool:
    """Return whether the answer, and each item of it, is in the named form (see MathPolicy)."""
    if form == "any":
        return True
    if form == "solved":
        return _is_solved(answer)
    if isinstance(answer, Items):
        return all(has_form(i, form) for i in answer.items)
    if isinstance(answer, Relation):
        return answer.value is not None and has_form(answer.value, form)
    if not isinstance(answer, Value):
        return form == "number"
    if form == "number":
        return _is_literal(answer.node)
    if form == "expanded":
        return _is_expanded(answer.node)
    return _is_factored(answer.node)


def _is_solved(answer: Answer) -> bool:
    interval = interval_of(answer) if isinstance(answer, Relation) else answer
    if isinstance(interval, Items):
        return all(isinstance(i, Value) and _is_literal(i.node) for i in interval.items)
    if isinstance(answer, Relation):
        return answer.value is not None and _is_solved(answer.value)
    return isinstance(answer, Value) and _is_literal(answer.node)


def _is_literal(node: Node) -> bool:
    """A number in lowest terms: 7, -2.5, 3/4, 50 %; not 12 + 7, nor 6/8."""
    if node.kind in {"neg", "percent"}:
        return _is_literal(node.args[0])
    if node.kind == "div" and all(a.kind == "num" for a in node.args):
        top, bottom = (a.value for a in node.args)
        return bottom != 0 and (top / bottom).denominator == bottom
    return node.kind in {"num", "const", "base"}


def _terms(node: Node) -> list[Node]:
    if node.kind == "add":
        return _terms(node.args[0]) + _terms(node.args[1])
    if node.kind == "neg":
        return _terms(node.args[0])
    return [node]


def _is_expanded(node: Node) -> bool:
    """A sum of monomials, no two alike."""
    monomials = [_monomial(t) for t in _terms(node)]
    known = [m for m in monomials if m is not None]
    return len(known) == len(monomials) and len(set(known)) == len(known)


def _monomial(node: Node) -> Monomial | None:
    """Return the exponents of a product of one number and powers of symbols, else None."""
    exponents: Counter[str] = Counter()
    num_numbers = _collect(node, exponents)
    if num_numbers is None or num_numbers > 1:
        return None
    return frozenset(exponents.items())


def _collect(node: Node, exponents: Counter[str]) -> int | None:
    """Add the factors' exponents; return how many numeric factors stand there, None if no
    monomial."""
    if _is_literal(node):
        return 1
    if node.kind == "sym":
        exponents[node.name] += 1
        return 0
    if node.kind == "pow" and node.args[0].kind == "sym" and node.args[1].kind == "num":
        power = node.args[1].value
        if power.denominator != 1 or power < 1 or exponents[node.args[0].name]:
            return None
        exponents[node.args[0].name] += int(power)
        return 0
    if node.kind == "mul":
        counts = [_collect(a, exponents) for a in node.args]
        return None if None in counts else sum(c for c in counts if c is not None)
    if node.kind == "div" and node.args[1].kind == "num":
        return _collect(node.args[0], exponents)
    return None


def _factors(node: Node) -> list[Node]:
    if node.kind == "mul":
        return _factors(node.args[0]) + _factors(node.args[1])
    if node.kind == "neg":
        return _factors(node.args[0])
    if node.kind == "pow" and node.args[1].kind == "num" and node.args[1].value.denominator == 1:
        power = int(node.args[1].value)
        return [node.args[0]] * power if 1 <= power <= 20 else [node]
    return [node]


def _degree(node: Node) -> int | None:
    """Upper bound of the degree in all symbols of an expanded factor."""
    degrees = []
    for term in _terms(node):
        monomial = _monomial(term)
        if monomial is None:
            return None
        degrees.append(sum(power for _, power in monomial))
    return max(degrees)


def _is_factored(node: Node) -> bool:
    """A product of at least two factors with symbols, each of degree one."""
    factors = [f for f in _factors(node) if symbols(f)]
    return len(factors) >= 2 and all(_degree(f) == 1 for f in factors)
