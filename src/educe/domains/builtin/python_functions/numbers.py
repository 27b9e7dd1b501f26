"""Generators of functions of numbers."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    about,
    chain,
    int_operation,
    int_predicate,
    number_word,
    put,
    sample,
    steps,
)
from educe.domains.builtin.python_functions.problem import Problem, expression, program
from educe.domains.builtin.python_functions.registry import generator

_SIGNED = inputs.integer(-40, 60)
_EDGES = ((0,), (-1,), (100,))

_UNITS = (
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("feet", "inches", 12),
    ("yards", "feet", 3),
    ("meters", "centimeters", 100),
    ("kilograms", "grams", 1000),
    ("dozens", "eggs", 12),
    ("dollars", "cents", 100),
    ("gallons", "quarts", 4),
    ("tables", "legs", 4),
    ("spiders", "legs", 8),
    ("cars", "wheels", 4),
    ("hands", "fingers", 5),
)


@generator("arithmetic", "tiny")
def one_operation(rng: random.Random) -> Problem:
    piece = int_operation(rng)
    scale = rng.choice(("", "", "twice ", "ten times "))
    code = {"": piece.code, "twice ": piece.code.replace("@", "2 * @")}
    code["ten times "] = piece.code.replace("@", "10 * @")
    phrase = about(piece.phrase, f"{scale}a_")
    prefix = {"": "", "twice ": "double_", "ten times ": "tenfold_"}[scale]
    return expression(prefix + piece.name, ["int"], phrase, put(code[scale], "a_"), _SIGNED, _EDGES)


@generator("arithmetic", "easy")
def two_operations(rng: random.Random) -> Problem:
    return _chain_problem(rng, 2)


@generator("arithmetic", "medium")
def four_operations(rng: random.Random) -> Problem:
    return _chain_problem(rng, 4)


def _chain_problem(rng: random.Random, count: int) -> Problem:
    pieces = sample(rng, int_operation, count)
    returns = f"the result of these steps on a_: {steps(pieces)}"
    name = "_".join(p.name for p in pieces[:2])
    return expression(name, ["int"], returns, chain(pieces, "a_"), _SIGNED, _EDGES)


@generator("two-numbers", "tiny")
def two_numbers(rng: random.Random) -> Problem:
    k = rng.randint(2, 30)
    word, code, name = rng.choice(
        (
            ("the sum of a_ and b_", "a_ + b_", "add"),
            ("a_ minus b_", "a_ - b_", "subtract"),
            ("the product of a_ and b_", "a_ * b_", "multiply"),
            ("the larger of a_ and b_", "max(a_, b_)", "larger"),
            ("the smaller of a_ and b_", "min(a_, b_)", "smaller"),
            ("the absolute difference of a_ and b_", "abs(a_ - b_)", "distance"),
        )
    )
    extra, tail, suffix = rng.choice(
        (
            (f", plus {k}", f"@ + {k}", f"plus_{number_word(k)}"),
            (f", minus {k}", f"@ - {k}", f"minus_{number_word(k)}"),
            (f", times {k}", f"@ * {k}", f"times_{number_word(k)}"),
        )
    )
    return expression(
        f"{name}_{suffix}",
        ["int", "other"],
        word + extra,
        put(tail, code),
        inputs.integers((-20, 30), (-20, 30)),
        [(0, 0), (-3, 4), (7, 7)],
    )


@generator("two-numbers", "easy")
def combination(rng: random.Random) -> Problem:
    p, q = rng.randint(2, 9), rng.randint(2, 9)
    first, second = rng.choice((("a_", "b_"), ("b_", "a_")))
    piece = int_operation(rng)
    start = f"{p} * {first} {rng.choice('+-')} {q} * {second}"
    return expression(
        f"combine_{piece.name}",
        ["int", "other"],
        f"the result of computing {start} and applying to it: {piece.step}",
        put(piece.code, start),
        inputs.integers((-20, 30), (-20, 30)),
        [(0, 0), (-3, 4), (7, 7)],
    )


@generator("number-check", "tiny")
def one_condition(rng: random.Random) -> Problem:
    piece = int_predicate(rng)
    shift = rng.randint(1, 9)
    inner, said = rng.choice((("a_", "a_"), (f"a_ + {shift}", f"a_ + {shift}")))
    returns = f"True if {about(piece.phrase, said)}, otherwise False"
    name = piece.name if inner == "a_" else f"shifted_{piece.name}"
    return expression(name, ["int"], returns, put(piece.code, inner), _SIGNED, _EDGES)


@generator("number-check", "easy")
def two_conditions(rng: random.Random) -> Problem:
    return _conditions(rng, 2)


@generator("number-check", "medium")
def three_conditions(rng: random.Random) -> Problem:
    return _conditions(rng, 3)


def _conditions(rng: random.Random, count: int) -> Problem:
    pieces = sample(rng, int_predicate, count)
    code, text = put(pieces[0].code, "a_"), about(pieces[0].phrase, "a_")
    for piece in pieces[1:]:
        join = rng.choice(("and", "or"))
        code = f"({code}) {join} ({put(piece.code, 'a_')})"
        text = f"{text} {join} {about(piece.phrase, 'it')}"
    order = " (read from left to right)" if count > 2 else ""
    returns = f"True if {text}{order}, otherwise False"
    return expression(f"check_{pieces[0].name}", ["int"], returns, put("@", code), _SIGNED, _EDGES)


@generator("limits", "tiny")
def one_limit(rng: random.Random) -> Problem:
    k, m = rng.randint(-20, 50), rng.randint(2, 9)
    which = rng.choice(("min", "max"))
    word = "smaller" if which == "min" else "larger"
    inner = rng.choice(("a_", f"{m} * a_", f"a_ + {m}"))
    return expression(
        f"{which}_with_{k if k >= 0 else f'minus_{-k}'}",
        ["int"],
        f"the {word} of {inner} and {k}",
        f"{which}({inner}, {k})",
        _SIGNED,
        [(k,), (k + 1,), (k - 1,)],
    )


@generator("limits", "easy")
def clamp(rng: random.Random) -> Problem:
    low = rng.randint(-20, 20)
    high = low + rng.randint(5, 40)
    piece = int_operation(rng)
    return expression(
        f"clamp_{piece.name}",
        ["int"],
        f"{about(piece.phrase, 'a_')}, but at least {low} and at most {high}",
        f"max({low}, min({high}, {put(piece.code, 'a_')}))",
        _SIGNED,
        _EDGES,
    )


@generator("multiples", "easy")
def nearby_multiple(rng: random.Random) -> Problem:
    k, add = rng.randint(2, 25), rng.randint(0, 9)
    phrase, code, name = rng.choice(
        (
            (f"the largest multiple of {k} that is at most @", f"@ // {k} * {k}", "round_down"),
            (f"the smallest multiple of {k} that is at least @", f"-(-@ // {k}) * {k}", "round_up"),
            (
                f"how far @ is above the last multiple of {k} (0 if it is one)",
                f"@ % {k}",
                "excess",
            ),
            (f"how many full groups of {k} fit into @", f"@ // {k}", "groups"),
            (f"how much must be added to @ to reach a multiple of {k}", f"-@ % {k}", "missing"),
        )
    )
    operand = f"a_ + {add}" if add else "a_"
    return expression(
        f"{name}_{number_word(k)}",
        ["int"],
        about(phrase, operand),
        put(code, operand),
        inputs.integer(0, 200),
        [(0,), (k,), (k - 1,), (k + 1,)],
    )


@generator("piecewise", "easy")
def two_branches(rng: random.Random) -> Problem:
    when = int_predicate(rng)
    yes, no = sample(rng, int_operation, 2)
    return expression(
        f"if_{when.name}",
        ["int"],
        f"{about(yes.phrase, 'a_')} if {about(when.phrase, 'a_')}, otherwise "
        f"{about(no.phrase, 'a_')}",
        f"{put(yes.code, 'a_')} if {put(when.code, 'a_')} else {put(no.code, 'a_')}",
        _SIGNED,
        _EDGES,
    )


@generator("piecewise", "medium")
def three_branches(rng: random.Random) -> Problem:
    first, second = sample(rng, int_predicate, 2)
    values = sample(rng, int_operation, 3)
    body = (
        f"if {put(first.code, 'a_')}:\n    return {put(values[0].code, 'a_')}\n"
        f"if {put(second.code, 'a_')}:\n    return {put(values[1].code, 'a_')}\n"
        f"return {put(values[2].code, 'a_')}"
    )
    returns = (
        f"{about(values[0].phrase, 'a_')} if {about(first.phrase, 'a_')}; else "
        f"{about(values[1].phrase, 'a_')} if {about(second.phrase, 'a_')}; else "
        f"{about(values[2].phrase, 'a_')}"
    )
    return program("branches", ["int"], returns, body, _SIGNED, _EDGES)


@generator("units", "tiny")
def convert_units(rng: random.Random) -> Problem:
    big, small, factor = rng.choice(_UNITS)
    extra = rng.choice((0, *range(1, 40)))
    tail = f" plus {extra} extra {small}" if extra else ""
    name = f"{big}_to_{small}" + (f"_plus_{number_word(extra)}" if extra else "")
    code = f"a_ * {factor}" + (f" + {extra}" if extra else "")
    return expression(
        name,
        ["int"],
        f"how many {small} are in a_ {big}{tail}",
        code,
        inputs.integer(1, 90),
        [(0,)],
    )


@generator("digits", "easy")
def digit_aggregate(rng: random.Random) -> Problem:
    d, piece = rng.randint(0, 9), int_operation(rng)
    phrase, code, name = rng.choice(
        (
            ("the sum of the digits of a_", "sum(int(c) for c in str(a_))", "digit_sum"),
            ("the largest digit of a_", "max(int(c) for c in str(a_))", "largest_digit"),
            ("the smallest digit of a_", "min(int(c) for c in str(a_))", "smallest_digit"),
            ("the number of digits of a_", "len(str(a_))", "num_digits"),
            (f"how often the digit {d} occurs in a_", f"str(a_).count('{d}')", f"count_{d}"),
            ("a_ with its digits in reverse order", "int(str(a_)[::-1])", "reverse_digits"),
            (
                f"the number of digits of a_ greater than {d}",
                f"sum(int(c) > {d} for c in str(a_))",
                "count_digits",
            ),
        )
    )
    return expression(
        f"{name}_{piece.name}",
        ["int"],
        f"the result of taking {phrase} and applying to it: {piece.step}",
        put(piece.code, code),
        inputs.integer(10, 99999),
        [(0,), (7,), (1000,)],
    )


@generator("digits", "medium")
def digits_in_base(rng: random.Random) -> Problem:
    base, piece, keep = rng.randint(2, 9), int_operation(rng), int_predicate(rng)
    body = f"""
        total = 0
        while a_ > 0:
            digit = a_ % {base}
            if {put(keep.code, "digit")}:
                total += {put(piece.code, "digit")}
            a_ //= {base}
        return total
    """
    returns = (
        f"the sum of {about(piece.phrase, 'd')} over those digits d of a_ written in base {base} "
        f"that are {keep.step}"
    )
    return program(
        f"base_{number_word(base)}_digits",
        ["int"],
        returns,
        body,
        inputs.integer(5, 5000),
        [(0,), (1,), (base,), (base**3,)],
    )
