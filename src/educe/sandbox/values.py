"""Typed JSON values on the grader's side, and the comparison that decides a reward.

The format is in ``inside.typed`` (it stands alone, because the box uses it too). Everything that
comes out of a box is decoded here, on our side, and trusted in nothing.
"""

from __future__ import annotations

import json
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
        return _typed_members(expected) == _typed_members(got)
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
    if len(expected) != len(got) or _typed_members(expected) != _typed_members(got):
        return False
    return all(equal(value, got[key], tolerance=tolerance) for key, value in expected.items())


def _typed_members(values: Any) -> set[str]:
    return {json.dumps(encode(value)) for value in values}


def show(value: Any, limit: int = 300) -> str:
    """Return a short ``repr`` for feedback."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer beyond the digit limit, or too deep
        text = f"<a {type(value).__name__} too large to show>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
