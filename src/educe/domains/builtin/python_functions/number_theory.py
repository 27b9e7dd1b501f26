"""Generators of functions of whole numbers: divisors, primes, bases, sequences."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    about,
    int_operation,
    int_predicate,
    number_word,
    put,
)
from educe.domains.builtin.python_functions.problem import Problem, expression, program
from educe.domains.builtin.python_functions.registry import generator


@generator("divisors", "easy")
def divisors(rng: random.Random) -> Problem:
    keep, k = int_predicate(rng), rng.randint(0, 20)
    phrase, code, name = rng.choice(
        (
            ("the number of", "sum(1 for v in range(1, a_ + 1) if @)", "count"),
            ("the sum of the", "sum(v for v in range(1, a_ + 1) if @)", "sum"),
            ("the list, in ascending order, of the", "[v for v in range(1, a_ + 1) if @]", "list"),
        )
    )
    test = f"a_ % v == 0 and {put(keep.code, 'v')}"
    code = code.replace("@", test)
    if name != "list" and k:
        code, tail = f"{code} + {k}", f", plus {k}"
    else:
        tail = ""
    return expression(
        f"{name}_divisors_{keep.name}",
        ["int"],
        f"{phrase} positive divisors of a_ that are {keep.step}{tail}",
        code,
        inputs.integer(2, 120),
        [(1,), (36,), (97,)],
    )


@generator("range-sums", "easy")
def range_sum(rng: random.Random) -> Problem:
    start, piece, keep = rng.randint(0, 5), int_operation(rng), int_predicate(rng)
    return expression(
        f"sum_{piece.name}",
        ["int"],
        f"the sum of {about(piece.phrase, 'i')} over all integers i from {start} to a_ inclusive "
        f"that are {keep.step}",
        f"sum({put(piece.code, 'i')} for i in range({start}, a_ + 1) if {put(keep.code, 'i')})",
        inputs.integer(5, 60),
        [(0,), (start,), (start + 1,)],
    )


@generator("recurrences", "medium")
def recurrence(rng: random.Random) -> Problem:
    first, second = rng.randint(0, 5), rng.randint(1, 6)
    p, q, r = rng.randint(1, 3), rng.choice((-2, -1, 1, 2)), rng.randint(0, 4)
    rule = f"{p} * f(k-1) + {q} * f(k-2) + {r}"
    body = f"""
        older, newer = {first}, {second}
        for _ in range(a_):
            older, newer = newer, {p} * newer + {q} * older + {r}
        return older
    """
    return program(
        "sequence",
        ["int"],
        f"f(a_) for the sequence with f(0) = {first}, f(1) = {second} and f(k) = {rule}",
        body,
        inputs.integer(3, 25),
        [(0,), (1,), (2,)],
    )


@generator("primes", "medium")
def primes(rng: random.Random) -> Problem:
    keep, piece = int_predicate(rng), int_operation(rng)
    how, code = rng.choice(
        (("number", "1"), ("sum", "v"), (f"sum of {about(piece.phrase, 'p')}", piece.code))
    )
    value = put(code, "v") if "@" in code else code
    body = f"""
        total = 0
        for v in range(2, a_):
            if all(v % w for w in range(2, int(v ** 0.5) + 1)) and {put(keep.code, "v")}:
                total += {value}
        return total
    """
    what = f"the {how} of the primes" if "of" not in how else f"the {how} over the primes"
    tail = "p " if "of" in how else ""
    return program(
        f"primes_{keep.name}",
        ["int"],
        f"{what} {tail}below a_ that are {keep.step}",
        body,
        inputs.integer(8, 150),
        [(0,), (2,), (3,), (100,)],
    )


@generator("primes", "hard")
def factorisation(rng: random.Random) -> Problem:
    keep, twice = int_predicate(rng), rng.choice((True, False))
    how, phrase = rng.choice(
        (
            ("out", "the list, in ascending order, of"),
            ("sum(out)", "the sum of"),
            ("len(out)", "the number of"),
            ("sum(v * v for v in out)", "the sum of the squares of"),
        )
    )
    append = "while a_ % p == 0" if twice else "if a_ % p == 0"
    body = f"""
        out, p = [], 2
        while a_ > 1:
            {append}:
                out.append(p)
                a_ //= p
            while a_ % p == 0:
                a_ //= p
            p += 1
        out = [v for v in out if {put(keep.code, "v")}]
        return {how}
    """
    counted = "with repetition" if twice else "each counted once"
    return program(
        f"prime_factors_{keep.name}",
        ["int"],
        f"{phrase} the prime factors of a_ ({counted}) that are {keep.step}",
        body,
        inputs.integer(2, 1200),
        [(1,), (2,), (64,), (997,)],
    )


@generator("bases", "medium")
def write_in_base(rng: random.Random) -> Problem:
    base, width, pad = rng.randint(2, 9), rng.randint(0, 10), rng.choice("0*_")
    alphabet = rng.choice(("0123456789", "abcdefghij", "ABCDEFGHIJ", "zyxwvutsrq"))
    body = f"""
        out = ''
        while a_ > 0:
            out = '{alphabet}'[a_ % {base}] + out
            a_ //= {base}
        return (out or '{alphabet[0]}').rjust({width}, '{pad}')
    """
    digits = (
        "" if alphabet[0] == "0" else f", with the digits written as '{alphabet[:base]}' in order"
    )
    return program(
        f"to_base_{number_word(base)}",
        ["int"],
        f"a_ written in base {base}{digits}, padded on the left with '{pad}' to at least {width} "
        "characters",
        body,
        inputs.integer(1, 2000),
        [(0,), (1,), (base,), (base * base - 1,)],
    )


@generator("common-divisors", "medium")
def common_divisors(rng: random.Random) -> Problem:
    piece, k = int_operation(rng), rng.randint(0, 9)
    lcm = rng.choice((True, False))
    first = f"a_ + {k}" if k else "a_"
    body = f"""
        p, q = {first}, b_
        while q:
            p, q = q, p % q
        return {put(piece.code, f"({first}) * b_ // p" if lcm else "p")}
    """
    what = "least common multiple" if lcm else "greatest common divisor"
    return program(
        "lcm" if lcm else "gcd",
        ["int", "other"],
        f"the result of taking the {what} of {first} and b_ and applying to it: {piece.step}",
        body,
        inputs.integers((1, 60), (1, 60)),
        [(1, 1), (12, 18), (7, 21)],
    )


@generator("counting-steps", "medium")
def counting_steps(rng: random.Random) -> Problem:
    divide, grow, add = rng.randint(2, 4), rng.randint(2, 5), rng.randint(1, 9)
    cap = rng.choice((10, 15, 20, 30))
    body = f"""
        count = 0
        while a_ > 1 and count < {cap}:
            a_ = a_ // {divide} if a_ % {divide} == 0 else a_ * {grow} + {add}
            count += 1
        return count
    """
    return program(
        "count_steps",
        ["int"],
        f"the number of steps until a_ is at most 1, where a step divides by {divide} if that "
        f"leaves no remainder and otherwise multiplies by {grow} and adds {add}; stop at {cap}",
        body,
        lambda rng: (rng.choice((divide ** rng.randint(1, 6), rng.randint(2, 99))),),
        [(0,), (1,), (divide,), (divide**4,)],
    )


@generator("modular-powers", "hard")
def modular_power(rng: random.Random) -> Problem:
    modulus, add, start = rng.randint(7, 200), rng.randint(0, 9), rng.randint(1, 6)
    body = f"""
        out, base = {start}, (a_ + {add}) % {modulus}
        while b_ > 0:
            if b_ % 2 == 1:
                out = out * base % {modulus}
            base = base * base % {modulus}
            b_ //= 2
        return out % {modulus}
    """
    return program(
        f"power_mod_{number_word(modulus)}",
        ["int", "other"],
        f"{start} times (a_ + {add}) to the power b_, modulo {modulus}",
        body,
        inputs.integers((0, 50), (1, 10**9)),
        [(2, 0), (0, 5), (3, 10**12)],
        notes="b_ can be as large as 10**12, so multiply by squaring.",
    )
