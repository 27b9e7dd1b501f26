"""Typed JSON values on the grader's side, and the comparison that decides a reward.

The format is in ``inside.typed`` (it stands alone, because the box uses it too). Everything that
comes out of a box is decoded here, on our side, and trusted in nothing.
"""

from __future__ import annotations

import math
from typing import Any

from educe.core.types import JSON
from educe.sandbox.inside import typed
from educe.sandbox.inside.typed import ValueFormatError, decode

__all__ = ["ValueFormatError", "decode", "encode", "equal", "show"]


def encode(value: Any) -> JSON:
    """Return the typed JSON node of a builtin value (for tasks that keep typed values as JSON).

    Raises:
        ValueFormatError: for a type outside None, bool, int, float, complex, str, bytes, list,
            tuple, dict, set, frozenset (exact types: subclasses are refused).
    """
    try:
        return typed.encode(value)
    except (TypeError, RecursionError) as error:
        raise ValueFormatError(str(error)) from None


def equal(expected: Any, got: Any, *, tolerance: float = 0.0) -> bool:
    """Return whether two builtin values are the same, types included.

    ``1``, ``1.0`` and ``True`` are three different values, a tuple is not a list, and NaN matches
    only NaN. Two floats match when they differ by at most ``tolerance`` relative to the larger (or
    absolute, below 1).
    """
    if type(expected) is not type(got):
        return False
    if isinstance(expected, float):
        return _floats_equal(expected, got, tolerance)
    if isinstance(expected, complex):
        return _floats_equal(expected.real, got.real, tolerance) and _floats_equal(
            expected.imag, got.imag, tolerance
        )
    if isinstance(expected, (list, tuple)):
        return len(expected) == len(got) and all(
            equal(a, b, tolerance=tolerance) for a, b in zip(expected, got, strict=True)
        )
    if isinstance(expected, dict):
        return _dicts_equal(expected, got, tolerance)
    if isinstance(expected, (set, frozenset)):
        return set(map(_key, expected)) == set(map(_key, got))
    return bool(expected == got)


def _floats_equal(a: float, b: float, tolerance: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def _dicts_equal(expected: dict[Any, Any], got: dict[Any, Any], tolerance: float) -> bool:
    if len(expected) != len(got):
        return False
    found = {_key(key): value for key, value in got.items()}
    return all(
        (wanted := _key(key)) in found and equal(value, found[wanted], tolerance=tolerance)
        for key, value in expected.items()
    )


def _key(value: Any) -> Any:
    """Return a stand-in for a member or key: equal stand-ins have equal values of equal types.

    Each part is looked at once, however deep sets are nested.
    """
    kind = type(value)
    if kind is float or kind is complex:
        return kind.__name__, repr(value)  # nan is nan, and 0.0 is not -0.0
    if kind is tuple:
        return "tuple", tuple(map(_key, value))
    if kind is frozenset:
        return "frozenset", frozenset(map(_key, value))
    return kind.__name__, value


def show(value: Any, limit: int = 300) -> str:
    """Return a short ``repr`` for feedback."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer beyond the digit limit, or too deep
        text = f"<a {type(value).__name__} too large to show>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
