"""Values of expression trees: exact fractions where possible, else many digits, within limits.

Sizes are checked *before* each operation (a power tower is refused, not computed), so the work is
bounded by the number of nodes. The numeric context is private; a lock guards mpmath's caches of
constants, which are shared by all contexts of a process and not made for threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial, isqrt
from typing import Any

from educe.core.seeds import python_random
from educe.rewards.outcome.math_syntax import Node, symbols

MAX_BITS = 200_000
MAX_FACTORIAL = 3000
MAX_BINOMIAL = 10_000  # exactly; the work grows with its square
MAX_EXPONENT_BITS = 1_000_000
_DIGITS = 200
_LOCK = threading.RLock()
# A worker forked while another thread computes would find the lock shut for ever, and a cache half
# written: a fork waits for the evaluation that is under way.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


class TooLargeError(ValueError):
    """The value is defined, but larger than we are willing to compute."""


class UndefinedError(ValueError):
    """The expression has no value (division by zero, 0^0 with a negative exponent, inf - inf)."""


def exact(node: Node) -> Fraction | None:
    """Return the exact rational value, None when it is irrational or has symbols.

    Raises:
        TooLargeError, UndefinedError
    """
    if node.kind == "num":
        return _bounded(node.value)
    if node.kind in {"sym", "const", "pm", "degree", "base"}:
        return None
    args = [exact(a) for a in node.args]
    values = [a for a in args if a is not None]
    if len(values) < len(args):
        return None
    return _bounded(_apply_exact(node, values))


def _bounded(value: Fraction | None) -> Fraction | None:
    if value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) > (
        MAX_BITS
    ):
        raise TooLargeError("number too long")
    return value


def _apply_exact(node: Node, args: list[Fraction]) -> Fraction | None:
    if node.kind == "add":
        return args[0] + args[1]
    if node.kind == "mul":
        return args[0] * args[1]
    if node.kind == "neg":
        return -args[0]
    if node.kind == "percent":
        return args[0] / 100
    if node.kind == "div":
        if args[1] == 0:
            raise UndefinedError("division by zero")
        return args[0] / args[1]
    if node.kind == "pow":
        return _power(args[0], args[1])
    return _call_exact(node.name, args)


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        return _exact_root(base, exponent)
    if base == 0 and exponent < 0:
        raise UndefinedError("zero to a negative power")
    if abs(base) in (0, 1):
        return base ** int(exponent % 2 + 2) if exponent else Fraction(1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > MAX_BITS:
        if abs(exponent) * bits > MAX_EXPONENT_BITS:
            raise TooLargeError("power too large")
        return None
    return Fraction(base ** int(exponent))


def _exact_root(base: Fraction, exponent: Fraction) -> Fraction | None:
    """A square root of a square of rationals is rational; all other roots go numeric."""
    if exponent.denominator != 2 or base < 0 or abs(exponent.numerator) > 100:
        return None
    top, bottom = isqrt(base.numerator), isqrt(base.denominator)
    if top * top != base.numerator or bottom * bottom != base.denominator:
        return None
    return _power(Fraction(top, bottom), Fraction(exponent.numerator))


def _call_exact(name: str, args: list[Fraction]) -> Fraction | None:
    if name == "abs":
        return abs(args[0])
    if name == "floor":
        return Fraction(args[0].__floor__())
    if name == "ceil":
        return Fraction(args[0].__ceil__())
    if name == "sqrt":
        return _exact_root(args[0], Fraction(1, 2))
    if name == "factorial" and args[0].denominator == 1 and args[0] >= 0:
        if args[0] > MAX_FACTORIAL:
            raise TooLargeError("factorial too large")
        return Fraction(factorial(int(args[0])))
    if name == "binom" and all(a.denominator == 1 for a in args) and args[0] >= 0:
        if args[0] > MAX_BINOMIAL:
            raise TooLargeError("binomial too large")
        return Fraction(comb(int(args[0]), int(args[1]))) if args[1] >= 0 else Fraction(0)
    return None


@lru_cache(maxsize=1)
def _context() -> Any:
    from mpmath import MPContext

    context = MPContext()
    context.dps = _DIGITS
    return context


def evaluate(node: Node, values: Mapping[str, Fraction]) -> Any:
    """Return the numeric (mpmath real or complex) value to 200 digits.

    Args:
        values: one value for each free symbol.

    Raises:
        TooLargeError, UndefinedError
    """
    with _LOCK:
        context = _context()
        try:
            return _numeric(node, values, context)
        except (ZeroDivisionError, OverflowError, context.NoConvergence) as error:
            raise UndefinedError(str(error) or type(error).__name__) from error
        except ValueError as error:
            if isinstance(error, (TooLargeError, UndefinedError)):
                raise
            raise UndefinedError(str(error)) from error


def _numeric(node: Node, values: Mapping[str, Fraction], ctx: Any) -> Any:
    if node.kind == "num":
        _bounded(node.value)
        return ctx.mpf(node.value.numerator) / node.value.denominator
    if node.kind == "sym":
        value = values[node.name]
        return ctx.mpf(value.numerator) / value.denominator
    if node.kind == "const":
        constants = {"pi": ctx.pi, "e": ctx.e, "i": ctx.j, "inf": ctx.inf}
        return +constants[node.name]
    if node.kind in {"pm", "base"}:
        raise UndefinedError(f"{node.kind} has no single value")
    args = [_numeric(a, values, ctx) for a in node.args]
    result = _apply_numeric(node, args, ctx)
    if ctx.isnan(result):
        raise UndefinedError("not a number")
    return result


def _apply_numeric(node: Node, args: list[Any], ctx: Any) -> Any:
    if node.kind == "add":
        return args[0] + args[1]
    if node.kind == "mul":
        return args[0] * args[1]
    if node.kind == "neg":
        return -args[0]
    if node.kind == "percent":
        return args[0] / 100
    if node.kind == "degree":
        return args[0] * ctx.pi / 180
    if node.kind == "div":
        return args[0] / args[1]
    if node.kind == "pow":
        return _numeric_power(node, args, ctx)
    return _call_numeric(node.name, args, ctx)


def _numeric_power(node: Node, args: list[Any], ctx: Any) -> Any:
    base, exponent = args
    if not ctx.isinf(base) and not ctx.isinf(exponent) and base != 0:
        bits = abs(exponent) * (abs(ctx.mag(base)) + 1)
        if bits > MAX_EXPONENT_BITS:
            raise TooLargeError("power too large")
    if node.name == "root" and ctx.im(base) == 0 and ctx.re(base) < 0:
        index = 1 / exponent
        if abs(index - round(float(index))) < 1e-9 and round(float(index)) % 2 == 1:
            return -((-base) ** exponent)
    return base**exponent


def _call_numeric(name: str, args: list[Any], ctx: Any) -> Any:
    x = args[0]
    if name in {"exp", "sinh", "cosh", "tanh", "factorial"} and abs(x) > MAX_FACTORIAL * 10:
        raise TooLargeError(f"argument of {name} too large")
    if name in {"sin", "cos", "tan", "cot", "sec", "csc"} and abs(x) > ctx.mpf(10) ** 100:
        raise TooLargeError(f"argument of {name} too large")
    if name == "log":
        return ctx.log(x, args[1]) if len(args) > 1 else ctx.log(x, 10)
    if name == "binom":
        if max(abs(a) for a in args) > MAX_FACTORIAL * 10:
            raise TooLargeError("binomial too large")
        return ctx.binomial(*args)
    if name == "abs":
        return abs(x)
    function = {"ceil": ctx.ceil, "floor": ctx.floor}.get(name) or getattr(ctx, name)
    return function(x)


def are_close(left: Any, right: Any) -> bool:
    """Whether two 200-digit values agree to 150 digits, relative to the larger."""
    with _LOCK:
        ctx = _context()
        if ctx.isinf(left) or ctx.isinf(right):
            return bool(left == right)
        difference = abs(left - right)
        scale = max(abs(left), abs(right))
        return bool(difference <= scale * ctx.mpf(10) ** -150 or difference <= ctx.mpf(10) ** -180)


def is_real(value: Any) -> bool:
    """Whether the imaginary part vanishes."""
    with _LOCK:
        ctx = _context()
        return bool(abs(ctx.im(value)) <= (abs(value) + 1) * ctx.mpf(10) ** -150)


def sample_points(nodes: tuple[Node, ...], count: int, *, is_signed: bool) -> list[dict[str, Any]]:
    """Return deterministic random values for all free symbols of the nodes.

    Two different rational functions agree on a random point with negligible probability (Schwartz
    1980, Zippel 1979); signed points tell |x| from x.
    """
    names = sorted(frozenset().union(*(symbols(n) for n in nodes)))
    points: list[dict[str, Any]] = []
    for number in range(count):
        rng = python_random("math-points", number, is_signed)
        point: dict[str, Any] = {}
        for name in names:
            value = Fraction(rng.randrange(1_000, 4_000_000), 1_000_003)
            point[name] = -value if is_signed and rng.random() < 0.6 else value
        points.append(point)
    return points
