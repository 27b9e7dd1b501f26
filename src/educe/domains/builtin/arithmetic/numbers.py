"""Families about bare numbers, from one-digit sums to chains that need care."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from educe.domains.builtin.arithmetic.family import Family, Problem, pick_phrase

Rng = random.Random


def _compute(expression: str, answer: object, steps: str = "", check: str = "number") -> Problem:
    phrase = pick_phrase(
        expression,
        ("Compute {}.", "What is {}?", "Work out {}.", "Calculate {}.", "Find {}.", "{} = ?"),
    )
    steps = steps or f"{expression} = {answer}"
    return Problem(phrase.format(expression), str(answer), steps, check)


def _digits(rng: Rng, count: int) -> int:
    return rng.randrange(10 ** (count - 1), 10**count)


def add(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        terms = [rng.randrange(1, 20), rng.randrange(1, 10)]
        rng.shuffle(terms)
    elif level == "easy":
        terms = [_digits(rng, 2), _digits(rng, rng.choice((1, 2)))]
    elif level == "medium":
        terms = [_digits(rng, rng.choice((2, 3))) for _ in range(3)]
    else:
        terms = [_digits(rng, rng.choice((4, 5, 6))) for _ in range(rng.choice((3, 4)))]
    return _compute(" + ".join(map(str, terms)), sum(terms), _running_sum(terms))


def _running_sum(terms: list[int]) -> str:
    lines, total = [], terms[0]
    for term in terms[1:]:
        sign = "+" if term >= 0 else "-"
        lines.append(f"{total} {sign} {abs(term)} = {total + term}")
        total += term
    return "\n".join(lines)


def subtract(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        b, difference = rng.randrange(1, 10), rng.randrange(0, 15)
        a = b + difference
    elif level == "easy":
        a, b = sorted((_digits(rng, 2), rng.randrange(2, 99)), reverse=True)
    elif level == "medium":
        a, b = _digits(rng, 3), _digits(rng, 3)
    else:
        a, b = _digits(rng, 6), _digits(rng, rng.choice((5, 6)))
    return _compute(f"{a} - {b}", a - b)


def multiply(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        a, b = rng.randrange(2, 13), rng.randrange(1, 11)
    elif level == "easy":
        a, b = _digits(rng, 2), rng.randrange(2, 10)
    elif level == "medium":
        a, b = _digits(rng, 2), _digits(rng, 2)
    else:
        a, b = _digits(rng, rng.choice((3, 4))), _digits(rng, 3)
    parts = [int(d) * 10**i for i, d in enumerate(reversed(str(b))) if d != "0"]
    steps = f"{a} × {b} = {a * b}"
    if len(parts) > 1:
        steps = "\n".join(f"{a} × {p} = {a * p}" for p in parts)
        steps += f"\n{' + '.join(str(a * p) for p in parts)} = {a * b}"
    return _compute(f"{a} × {b}", a * b, steps)


def divide(rng: Rng, level: str) -> Problem:
    low, high, divisor = {
        "tiny": (1, 12, (2, 10)),
        "easy": (3, 30, (2, 12)),
        "medium": (20, 200, (3, 25)),
        "hard": (200, 4000, (12, 99)),
    }[level]
    quotient, by = rng.randrange(low, high), rng.randrange(*divisor)
    steps = f"{by} × {quotient} = {by * quotient}"
    return _compute(f"{quotient * by} ÷ {by}", quotient, steps)


def remainder(rng: Rng, level: str) -> Problem:
    top, low, high = {
        "tiny": (30, 2, 6),
        "easy": (100, 3, 12),
        "medium": (1000, 7, 40),
        "hard": (100_000, 13, 200),
    }[level]
    by, a = rng.randrange(low, high), rng.randrange(high, top)
    phrase = pick_phrase(
        (a, by),
        (
            "What is the remainder when {a} is divided by {b}?",
            "Find the remainder of {a} divided by {b}.",
            "What is {a} mod {b}?",
        ),
    )
    steps = f"{by} × {a // by} = {a // by * by}\n{a} - {a // by * by} = {a % by}"
    return Problem(phrase.format(a=a, b=by), str(a % by), steps)


def mixed(rng: Rng, level: str) -> Problem:
    n = rng.randrange
    if level == "tiny":
        a, b, c = n(1, 10), n(1, 10), n(1, 9)
        c = min(c, a + b)
        return _compute(f"{a} + {b} - {c}", a + b - c, _running_sum([a, b, -c]))
    if level == "easy":
        a, b, c = n(2, 10), n(2, 10), n(1, 20)
        return _compute(
            f"{a} × {b} + {c}", a * b + c, f"{a} × {b} = {a * b}\n{a * b} + {c} = {a * b + c}"
        )
    if level == "medium":
        a, b, c, d = n(2, 30), n(2, 30), n(2, 10), n(1, 60)
        steps = f"{a} + {b} = {a + b}\n{a + b} × {c} = {(a + b) * c}"
        value = (a + b) * c - d
        return _compute(
            f"({a} + {b}) × {c} - {d}", value, f"{steps}\n{(a + b) * c} - {d} = {value}"
        )
    return _nested(rng)


def _nested(rng: Rng) -> Problem:
    """A random tree of five operations, worked from the inside out."""
    lines: list[str] = []

    def build(depth: int) -> tuple[str, int]:
        if depth == 0:
            value = rng.randrange(2, 30)
            return str(value), value
        left, a = build(depth - 1)
        right, b = build(rng.randrange(0, depth))
        symbol = rng.choice("++--×") if max(abs(a), abs(b)) < 400 else rng.choice("+-")
        value = {"+": a + b, "-": a - b, "×": a * b}[symbol]
        lines.append(f"{_signed(a)} {symbol} {_signed(b)} = {value}")
        return f"({left} {symbol} {right})", value

    text, value = build(4)
    return _compute(text[1:-1], value, "\n".join(lines))


def _signed(value: int) -> str:
    return f"({value})" if value < 0 else str(value)


def missing(rng: Rng, level: str) -> Problem:
    top = {"tiny": 10, "easy": 60, "medium": 500, "hard": 20_000}[level]
    a, b = rng.randrange(1, top), rng.randrange(1, top)
    kind = rng.randrange(3 if level == "tiny" else 4)
    if kind == 3:
        a, b = rng.randrange(2, 13 + top // 100), rng.randrange(2, 13 + top // 100)
        text, answer, steps = f"{a} × ? = {a * b}", b, f"{a * b} ÷ {a} = {b}"
    elif kind == 2:
        text, answer, steps = f"{a + b} - ? = {a}", b, f"{a + b} - {a} = {b}"
    else:
        text = f"{a} + ? = {a + b}" if kind else f"? + {a} = {a + b}"
        answer, steps = b, f"{a + b} - {a} = {b}"
    return Problem(f"Which number replaces the question mark in {text}?", str(answer), steps)


def larger(rng: Rng, level: str) -> Problem:
    if level in {"tiny", "easy"}:
        count, top = (2, 100) if level == "tiny" else (3, 1000)
        values = [Fraction(v) for v in rng.sample(range(top), count)]
        texts = [str(v) for v in values]
    elif level == "medium":
        base = rng.randrange(0, 20)
        places = rng.sample([1, 1, 2, 2, 3], 3)
        values = [base + Fraction(rng.randrange(1, 10**p), 10**p) for p in places]
        texts = [f"{float(v):.{p}f}" for v, p in zip(values, places, strict=True)]
    else:
        values = [Fraction(rng.randrange(1, 40), rng.randrange(2, 40)) for _ in range(3)]
        texts = [str(v) for v in values]
    if len(set(values)) < len(values):
        return larger(rng, level)
    wants_largest = rng.random() < 0.5
    best = (max if wants_largest else min)(values)
    word = (
        ("larger" if wants_largest else "smaller")
        if len(values) == 2
        else ("largest" if wants_largest else "smallest")
    )
    question = f"Which number is {word}: {', '.join(texts[:-1])} or {texts[-1]}?"
    return Problem(question, texts[values.index(best)], "", "number")


def sort(rng: Rng, level: str) -> Problem:
    count, low, high = {
        "tiny": (3, 0, 20),
        "easy": (4, 0, 100),
        "medium": (6, -99, 100),
        "hard": (10, -999, 1000),
    }[level]
    values = rng.sample(range(low, high), count)
    is_rising = rng.random() < 0.7
    order = "smallest to largest" if is_rising else "largest to smallest"
    answer = ", ".join(map(str, sorted(values, reverse=not is_rising)))
    return Problem(f"Sort from {order}: {', '.join(map(str, values))}.", answer, "", "list")


def gcd(rng: Rng, level: str) -> Problem:
    top, factor = {"tiny": (7, 8), "easy": (10, 15), "medium": (30, 40), "hard": (200, 150)}[level]
    common = rng.randrange(1, factor)
    a, b = common * rng.randrange(1, top), common * rng.randrange(1, top)
    answer = math.gcd(a, b)
    phrase = pick_phrase(
        (a, b), ("Find the greatest common divisor of {} and {}.", "What is gcd({}, {})?")
    )
    return Problem(phrase.format(a, b), str(answer), _euclid(a, b))


def _euclid(a: int, b: int) -> str:
    lines = []
    a, b = max(a, b), min(a, b)
    while b:
        lines.append(f"{a} mod {b} = {a % b}")
        a, b = b, a % b
    return "\n".join(lines)


def lcm(rng: Rng, level: str) -> Problem:
    top = {"tiny": 11, "easy": 16, "medium": 40, "hard": 200}[level]
    a, b = rng.randrange(2, top), rng.randrange(2, top)
    common = math.gcd(a, b)
    steps = f"gcd({a}, {b}) = {common}\n{a} × {b} ÷ {common} = {math.lcm(a, b)}"
    phrase = pick_phrase(
        (a, b), ("Find the least common multiple of {} and {}.", "What is lcm({}, {})?")
    )
    return Problem(phrase.format(a, b), str(math.lcm(a, b)), steps)


def percent(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        p, whole = rng.choice((10, 20, 50, 100)), 10 * rng.randrange(1, 31)
    elif level == "easy":
        p, whole = 5 * rng.randrange(1, 20), 20 * rng.randrange(1, 26)
    elif level == "medium":
        p, whole = rng.randrange(1, 100), 50 * rng.randrange(2, 60)
    else:
        p, whole = rng.randrange(1, 200), rng.randrange(100, 10_000)
    value = Fraction(p * whole, 100)
    answer = _decimal(value)
    return _compute(f"{p}% of {whole}", answer, f"{p} × {whole} ÷ 100 = {answer}")


def _decimal(value: Fraction) -> str:
    """The exact decimal of a value with at most two places."""
    text = f"{value.numerator * 100 // value.denominator / 100:.2f}".rstrip("0").rstrip(".")
    return text or "0"


def fractions(rng: Rng, level: str) -> Problem:
    n = rng.randrange
    if level == "tiny":
        d = n(3, 12)
        a, b = n(1, d), n(1, d)
        value, text = Fraction(a + b, d), f"{a}/{d} + {b}/{d}"
        steps = f"({a} + {b})/{d} = {a + b}/{d}"
    else:
        top = {"easy": 9, "medium": 16, "hard": 40}[level]
        x, y = Fraction(n(1, top), n(2, top)), Fraction(n(1, top), n(2, top))
        symbol = rng.choice({"easy": "+-", "medium": "+-×", "hard": "+-×÷"}[level])
        value = {"+": x + y, "-": x - y, "×": x * y, "÷": x / y}[symbol]
        text, steps = f"{x} {symbol} {y}", f"{x} {symbol} {y} = {value}"
    return _compute(text, value, steps, "fraction")


def decimals(rng: Rng, level: str) -> Problem:
    places, top = {"tiny": (1, 50), "easy": (1, 500), "medium": (2, 10_000), "hard": (2, 100_000)}[
        level
    ]
    scale = 10**places
    a, b = rng.randrange(1, top), rng.randrange(1, top)
    is_product = level == "hard" and rng.random() < 0.4
    if is_product:
        a, b = rng.randrange(11, 999), rng.randrange(11, 99)
        value = Fraction(a * b, 100)
        return _compute(f"{a / 10} × {b / 10}", _decimal(value))
    is_sum = rng.random() < 0.5
    a, b = max(a, b), min(a, b)
    value = Fraction(a + b if is_sum else a - b, scale)
    symbol = "+" if is_sum else "-"
    return _compute(f"{a / scale:.{places}f} {symbol} {b / scale:.{places}f}", _decimal(value))


def rounding(rng: Rng, level: str) -> Problem:
    top, units = {
        "tiny": (300, (10,)),
        "easy": (2000, (10, 100)),
        "medium": (100_000, (10, 100, 1000)),
        "hard": (100_000_000, (100, 1000, 10_000, 100_000)),
    }[level]
    unit, value = rng.choice(units), rng.randrange(11, top)
    names = {10: "ten", 100: "hundred", 1000: "thousand", 10_000: "ten thousand"}
    name = names.get(unit, "hundred thousand")
    answer = (value + unit // 2) // unit * unit
    return Problem(f"Round {value} to the nearest {name}.", str(answer), "")


def power(rng: Rng, level: str) -> Problem:
    base, exponent = {
        "easy": ((2, 31), (2, 4)),
        "medium": ((2, 60), (2, 6)),
        "hard": ((2, 200), (2, 9)),
    }[level]
    a, n = rng.randrange(*base), rng.randrange(*exponent)
    phrase = pick_phrase((a, n), ("Compute {}^{}.", "What is {} to the power of {}?"))
    return Problem(phrase.format(a, n), str(a**n), f"{' × '.join([str(a)] * n)} = {a**n}")


def sequence(rng: Rng, level: str) -> Problem:
    n = rng.randrange
    if level == "tiny":
        start, step = n(0, 20), n(1, 6)
        values = [start + i * step for i in range(5)]
    elif level == "easy":
        start, step = n(20, 100), n(2, 13) * rng.choice((1, -1))
        values = [start + i * step for i in range(5)]
    elif level == "medium":
        start, ratio, offset = n(1, 8), n(2, 4), n(0, 5)
        values = [start]
        for _ in range(5):
            values.append(values[-1] * ratio + offset)
    else:
        values = _hard_sequence(rng)
    shown = ", ".join(map(str, values[:-1]))
    return Problem(f"What number comes next: {shown}, ...?", str(values[-1]), "")


def _hard_sequence(rng: Rng) -> list[int]:
    n = rng.randrange
    if rng.random() < 0.5:
        a, b, c = n(1, 5), n(-9, 10), n(-20, 21)
        return [a * i * i + b * i + c for i in range(7)]
    values = [n(1, 12), n(1, 12)]
    while len(values) < 8:
        values.append(values[-1] + values[-2])
    return values


def base(rng: Rng, level: str) -> Problem:
    if level == "tiny":
        value, radix, is_from = rng.randrange(2, 128), 2, True
    elif level == "easy":
        value, radix, is_from = rng.randrange(2, 256), 2, False
    elif level == "medium":
        value, radix, is_from = rng.randrange(10, 1000), rng.randrange(3, 10), rng.random() < 0.5
    else:
        value, radix, is_from = rng.randrange(256, 100_000), 16, rng.random() < 0.5
    text = _in_base(value, radix)
    if is_from:
        steps = " + ".join(f"{int(d, 16)}×{radix**i}" for i, d in enumerate(reversed(text)))
        question = f"Convert {text} from base {radix} to base 10."
        return Problem(question, str(value), f"{steps} = {value}")
    return Problem(f"Convert {value} from base 10 to base {radix}.", text, "", "text")


def _in_base(value: int, radix: int) -> str:
    digits = ""
    while value:
        digits = "0123456789abcdef"[value % radix] + digits
        value //= radix
    return digits or "0"


def digit_sum(rng: Rng, level: str) -> Problem:
    value = _digits(rng, {"tiny": 3, "easy": 4, "medium": 7, "hard": 14}[level])
    digits = [int(d) for d in str(value)]
    steps = f"{' + '.join(map(str, digits))} = {sum(digits)}"
    return Problem(f"What is the sum of the digits of {value}?", str(sum(digits)), steps)


def counting(rng: Rng, level: str) -> Problem:
    top, divisors = {
        "tiny": (30, (2, 3)),
        "easy": (100, (2, 3, 4, 5)),
        "medium": (1000, (3, 4, 6, 7, 9)),
        "hard": (100_000, (7, 11, 12, 13, 17, 23)),
    }[level]
    a, b = sorted(rng.sample(range(1, top), 2))
    by = rng.choice(divisors)
    answer = b // by - (a - 1) // by
    question = f"How many multiples of {by} are there from {a} to {b}, both included?"
    steps = f"{b} ÷ {by} gives {b // by}, {a - 1} ÷ {by} gives {(a - 1) // by}"
    return Problem(question, str(answer), f"{steps}\n{b // by} - {(a - 1) // by} = {answer}")


def prime_factors(rng: Rng, level: str) -> Problem:
    low, high = {"easy": (12, 150), "medium": (100, 1000), "hard": (1000, 100_000)}[level]
    value = rng.randrange(low, high)
    rest, factors, p = value, [], 2
    while p * p <= rest:
        while rest % p == 0:
            factors.append(p)
            rest //= p
        p += 1
    if rest > 1:
        factors.append(rest)
    if len(factors) == 1:
        return prime_factors(rng, level)
    question = f"List the prime factors of {value} in rising order, repeated as often as needed."
    return Problem(question, ", ".join(map(str, factors)), "", "list")


def clock(rng: Rng, level: str) -> Problem:
    top = {"tiny": 30, "easy": 60, "medium": 300, "hard": 3000}[level]
    step = 5 if level in {"tiny", "easy"} else 1
    start = rng.randrange(0, 24 * 60, 5 if level == "tiny" else 1)
    minutes = rng.randrange(step, top, step)
    is_later = level == "tiny" or rng.random() < 0.6
    end = (start + (minutes if is_later else -minutes)) % (24 * 60)
    word = "after" if is_later else "before"
    question = f"Which time is {minutes} minutes {word} {_time(start)}? Use the form HH:MM."
    return Problem(question, _time(end), "", "text")


def _time(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def roman(rng: Rng, level: str) -> Problem:
    value = rng.randrange(1, {"tiny": 60, "easy": 200, "medium": 1000, "hard": 4000}[level])
    text, rest = "", value
    numerals = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"))
    for worth, letters in (
        *numerals,
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ):
        text += letters * (rest // worth)
        rest %= worth
    if rng.random() < 0.5:
        return Problem(f"Write the Roman numeral {text} as a number.", str(value), "")
    return Problem(f"Write {value} as a Roman numeral.", text, "", "text")


_BIG = ("easy", "medium", "hard")
_THIRD = {"tiny": 0.5, "easy": 1 / 3, "medium": 1 / 3, "hard": 1 / 3}

FAMILIES: tuple[Family, ...] = (
    Family("arithmetic/add", "Add whole numbers", add),
    Family("arithmetic/subtract", "Subtract whole numbers", subtract),
    Family("arithmetic/multiply", "Multiply whole numbers", multiply),
    Family("arithmetic/divide", "Divide without remainder", divide),
    Family("arithmetic/remainder", "Find the remainder of a division", remainder),
    Family("arithmetic/mixed", "Evaluate an expression with several operations", mixed),
    Family("arithmetic/missing", "Find the number that makes an equation true", missing),
    Family("arithmetic/larger", "Pick the largest or smallest number", larger, chance=_THIRD),
    Family("arithmetic/sort", "Sort numbers", sort, chance={"tiny": 1 / 6, "easy": 1 / 24}),
    Family("arithmetic/gcd", "Greatest common divisor", gcd),
    Family("arithmetic/lcm", "Least common multiple", lcm),
    Family("arithmetic/percent", "Percentage of a number", percent),
    Family("arithmetic/fractions", "Add, subtract, multiply and divide fractions", fractions),
    Family("arithmetic/decimals", "Decimal sums, differences and products", decimals),
    Family("arithmetic/rounding", "Round to a power of ten", rounding),
    Family("arithmetic/power", "Powers of whole numbers", power, levels=_BIG),
    Family("arithmetic/sequence", "Continue a number sequence", sequence),
    Family("arithmetic/base", "Convert between number bases", base),
    Family("arithmetic/digit-sum", "Sum of the digits", digit_sum),
    Family("arithmetic/counting", "Count multiples in a range", counting),
    Family("arithmetic/prime-factors", "Factor into primes", prime_factors, levels=_BIG),
    Family("arithmetic/clock", "Add and subtract minutes on a clock", clock),
    Family("arithmetic/roman", "Convert Roman numerals", roman),
)
