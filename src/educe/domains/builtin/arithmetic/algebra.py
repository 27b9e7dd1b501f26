"""Families with symbolic answers; forms are checked, so restating the question earns nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

from educe.domains.builtin.arithmetic.family import Family, Problem, pick_phrase

Rng = random.Random


def _nonzero(rng: Rng, top: int) -> int:
    return rng.choice([-1, 1]) * rng.randrange(1, top + 1)


def term(coefficient: int, power: int, symbol: str = "x") -> str:
    """Return e.g. ``-3x^2`` (with its sign), ``x``, ``5``."""
    if power == 0:
        return str(coefficient)
    body = symbol if power == 1 else f"{symbol}^{power}"
    return {1: body, -1: f"-{body}"}.get(coefficient, f"{coefficient}{body}")


def polynomial(coefficients: Sequence[int], symbol: str = "x") -> str:
    """Return the text of Σ c_i x^i with the highest power first; ``coefficients[i]`` is c_i."""
    parts = [term(c, i, symbol) for i, c in enumerate(coefficients) if c][::-1]
    if not parts:
        return "0"
    return parts[0] + "".join(f" - {p[1:]}" if p[0] == "-" else f" + {p}" for p in parts[1:])


def _product(left: Sequence[int], right: Sequence[int]) -> list[int]:
    out = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            out[i + j] += a * b
    return out


def solve_linear(rng: Rng, level: str) -> Problem:
    x = rng.randrange(1, 13) if level in {"tiny", "easy"} else rng.randrange(-20, 21)
    if level == "tiny":
        b = rng.randrange(1, 20)
        left, right, steps = f"x + {b}", str(x + b), f"x = {x + b} - {b}"
    elif level == "easy":
        a, b = rng.randrange(2, 10), rng.randrange(1, 30)
        left, right, steps = f"{a}x + {b}", str(a * x + b), f"{a}x = {a * x}"
    elif level == "medium":
        a, c = rng.sample(range(-9, 10), 2)
        b, a, c = _nonzero(rng, 30), a or 10, c or 11
        left, right = polynomial([b, a]), polynomial([b + (a - c) * x, c])
        steps = f"{a - c}x = {(a - c) * x}"
    else:
        a, k, c = rng.randrange(2, 10), _nonzero(rng, 12), _nonzero(rng, 12)
        c = c if a != c else c + 13
        constant = a * (x + k) - c * x
        left, right = f"{a}(x {_plus(k)})", polynomial([constant, c])
        steps = f"{polynomial([a * k, a])} = {right}\n{a - c}x = {(a - c) * x}"
    phrase = pick_phrase((left, right), ("Solve for x: {} = {}.", "Find x if {} = {}."))
    return Problem(phrase.format(left, right), str(x), steps)


def _plus(value: int) -> str:
    return f"- {-value}" if value < 0 else f"+ {value}"


def evaluate(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        coefficients, x = [rng.randrange(0, 10), rng.randrange(1, 4)], rng.randrange(1, 8)
    elif level == "easy":
        coefficients, x = [rng.randrange(-9, 20), _nonzero(rng, 9)], rng.randrange(-9, 10)
    elif level == "medium":
        coefficients, x = [_nonzero(rng, 20), _nonzero(rng, 9), _nonzero(rng, 5)], _nonzero(rng, 9)
    else:
        coefficients, x = [_nonzero(rng, 30) for _ in range(4)], _nonzero(rng, 12)
    value = sum(c * x**i for i, c in enumerate(coefficients))
    parts = [c * x**i for i, c in enumerate(coefficients)][::-1]
    steps = " + ".join(f"({p})" if p < 0 else str(p) for p in parts) + f" = {value}"
    return Problem(f"What is {polynomial(coefficients)} when x = {x}?", str(value), steps)


def simplify(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        a, b = rng.randrange(1, 10), rng.randrange(1, 10)
        return _simplified([(a, 1), (b, 1)])
    count, powers = {"easy": (3, (0, 1)), "medium": (5, (0, 1, 2)), "hard": (8, (0, 1, 2, 3))}[
        level
    ]
    top = {"easy": 9, "medium": 12, "hard": 30}[level]
    terms = [(_nonzero(rng, top), rng.choice(powers)) for _ in range(count)]
    if len({p for _, p in terms}) == count or len({p for _, p in terms}) < 2:
        return simplify(rng, level)
    return _simplified(terms)


def _simplified(terms: list[tuple[int, int]]) -> Problem:
    texts = [term(*t) for t in terms]
    question = texts[0] + "".join(f" - {t[1:]}" if t[0] == "-" else f" + {t}" for t in texts[1:])
    coefficients = [sum(c for c, p in terms if p == power) for power in range(4)]
    answer = polynomial(coefficients)
    return Problem(f"Simplify {question}.", answer, f"{question} = {answer}", "expanded")


def expand(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        a, b = rng.randrange(2, 10), _nonzero(rng, 9)
        return _expanded(f"{a}(x {_plus(b)})", [a * b, a])
    if level == "easy":
        a, b = _nonzero(rng, 9), _nonzero(rng, 9)
        return _expanded(f"(x {_plus(a)})(x {_plus(b)})", _product([a, 1], [b, 1]))
    if level == "medium":
        left, right = [_nonzero(rng, 9), _nonzero(rng, 9)], [_nonzero(rng, 9), _nonzero(rng, 9)]
    else:
        left = [_nonzero(rng, 9), _nonzero(rng, 9), _nonzero(rng, 5)]
        right = [_nonzero(rng, 9), _nonzero(rng, 9)]
    return _expanded(f"({polynomial(left)})({polynomial(right)})", _product(left, right))


def _expanded(question: str, coefficients: Sequence[int]) -> Problem:
    answer = polynomial(coefficients)
    return Problem(f"Expand {question}.", answer, f"{question} = {answer}", "expanded")


def factor(rng: Rng, level: str) -> Problem:
    top = {"easy": 6, "medium": 12, "hard": 15}[level]
    a, b = _nonzero(rng, top), _nonzero(rng, top)
    p, q = (rng.randrange(1, 5), rng.randrange(1, 4)) if level == "hard" else (1, 1)
    if math.gcd(a, p) > 1 or math.gcd(b, q) > 1:
        return factor(rng, level)
    question = polynomial(_product([a, p], [b, q]))
    factors = sorted([polynomial([a, p]), polynomial([b, q])])
    answer = f"({factors[0]})({factors[1]})"
    return Problem(f"Factor {question}.", answer, f"{question} = {answer}", "factored")


def derivative(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        coefficients = [rng.randrange(0, 10), rng.randrange(1, 10), rng.randrange(0, 6)]
    elif level == "easy":
        coefficients = [_nonzero(rng, 9), _nonzero(rng, 9), _nonzero(rng, 9)]
    elif level == "medium":
        coefficients = [_nonzero(rng, 12) if rng.random() < 0.8 else 0 for _ in range(5)]
        coefficients[4] = coefficients[4] or 1
    else:
        left, right = [_nonzero(rng, 9), _nonzero(rng, 9)], [_nonzero(rng, 9), 0, _nonzero(rng, 9)]
        question = f"({polynomial(left)})({polynomial(right)})"
        return _derived(question, _product(left, right))
    return _derived(polynomial(coefficients), coefficients)


def _derived(question: str, coefficients: Sequence[int]) -> Problem:
    answer = polynomial([i * c for i, c in enumerate(coefficients)][1:])
    text = f"What is the derivative of {question} with respect to x?"
    return Problem(text, answer, f"d/dx ({question}) = {answer}", "expanded")


def quadratic(rng: Rng, level: str) -> Problem:
    top = {"easy": 7, "medium": 15, "hard": 12}[level]
    first, second = _nonzero(rng, top), _nonzero(rng, top)
    if first == second:
        return quadratic(rng, level)
    lead = 1 if level != "hard" else rng.randrange(2, 5)
    coefficients = [lead * c for c in _product([-first, 1], [-second, 1])]
    low, high = sorted((first, second))
    if level == "hard":
        root = Fraction(first, lead)
        if root.denominator == 1:
            return quadratic(rng, level)
        coefficients = _product([-first, lead], [-second, 1])
        answer = ", ".join(str(r) for r in sorted((root, Fraction(second))))
    else:
        answer = f"{low}, {high}"
    question = f"Find all solutions of {polynomial(coefficients)} = 0."
    return Problem(question, answer, "", "any")


def system(rng: Rng, level: str) -> Problem:
    top = {"easy": 9, "medium": 12, "hard": 30}[level]
    x, y = rng.randrange(-top, top), rng.randrange(-top, top)
    if level == "easy":
        rows = [(1, 1), (1, -1)]
    else:
        rows = [(_nonzero(rng, 7), _nonzero(rng, 7)) for _ in range(2)]
    (a, b), (c, d) = rows
    if a * d == b * c:
        return system(rng, level)
    texts = [
        f"{term(p, 1)} {'-' if q < 0 else '+'} {term(abs(q), 1, 'y')} = {p * x + q * y}"
        for p, q in rows
    ]
    question = f"Solve {texts[0]} and {texts[1]}. Give the solution as (x, y)."
    return Problem(question, f"({x}, {y})", "", "any")


def inequality(rng: Rng, level: str) -> Problem:
    a, bound, b = rng.randrange(2, 10), rng.randrange(-12, 13), rng.randrange(-20, 21)
    symbol = rng.choice(["<", ">"] if level != "hard" else ["<", ">", "<=", ">="])
    if level == "easy":
        b = rng.randrange(1, 20)
        a, bound = rng.randrange(2, 8), rng.randrange(1, 13)
    if level == "hard" and rng.random() < 0.7:
        a = -a
    left = polynomial([b, a])
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    answer = f"x {turned[symbol] if a < 0 else symbol} {bound}"
    steps = f"{a}x {symbol} {a * bound}"
    return Problem(f"Solve for x: {left} {symbol} {a * bound + b}.", answer, steps, "solved")


def exponents(rng: Rng, level: str) -> Problem:
    n = rng.randrange
    symbol = rng.choice("xyabn")
    if level == "easy":
        p, q = n(2, 16), n(2, 16)
        question, power = f"{symbol}^{p} × {symbol}^{q}", p + q
        coefficient = 1
    elif level == "medium":
        a, b, p, q = n(2, 10), n(2, 10), n(2, 10), n(2, 10)
        question, power = f"{a}{symbol}^{p} × {b}{symbol}^{q}", p + q
        coefficient = a * b
    else:
        a, p, k, q = n(2, 5), n(2, 8), n(2, 4), n(2, 8)
        question, power = f"({a}{symbol}^{p})^{k} × {symbol}^{q}", p * k + q
        coefficient = a**k
    answer = term(coefficient, power, symbol)
    return Problem(f"Write {question} with one power of {symbol}.", answer, "", "expanded")


_BIG = ("easy", "medium", "hard")

FAMILIES: tuple[Family, ...] = (
    Family("algebra/solve-linear", "Solve a linear equation", solve_linear),
    Family("algebra/evaluate", "Evaluate a polynomial at a point", evaluate),
    Family("algebra/simplify", "Collect like terms", simplify),
    Family("algebra/expand", "Multiply out brackets", expand),
    Family("algebra/factor", "Factor a quadratic", factor, levels=_BIG),
    Family("algebra/derivative", "Differentiate a polynomial", derivative),
    Family("algebra/quadratic", "Solve a quadratic equation", quadratic, levels=_BIG),
    Family("algebra/system", "Solve two linear equations", system, levels=_BIG),
    Family("algebra/inequality", "Solve a linear inequality", inequality, levels=_BIG),
    Family("algebra/exponents", "Combine powers", exponents, levels=_BIG),
)
