"""Typed JSON: builtin values there and back, and the comparison that decides a reward.

Plain JSON would turn a tuple into a list and forget sets; a pickle would run code. Here ``null``,
``true``, numbers, strings and lists stand for themselves, and every other type is an object with
one tag. The encoder that runs beside a candidate lives in ``runner`` (it stands alone); this module
decodes what it sent, on the grader's side, and trusts nothing.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from educe.core.types import JSON

MAX_DEPTH = 200


class ValueFormatError(ValueError):
    """Bytes that are not a value of the typed JSON format."""


def decode(node: JSON, depth: int = 0) -> Any:
    """Return the builtin value that a typed JSON node stands for.

    Raises:
        ValueFormatError: for an unknown tag, a wrong shape or too deep a nesting.
    """
    if depth > MAX_DEPTH:
        raise ValueFormatError("nested too deeply")
    if isinstance(node, list):
        return [decode(item, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) != 1:
        raise ValueFormatError("a typed object has exactly one tag")
    ((tag, body),) = node.items()
    try:
        if tag == "t":
            return tuple(decode(item, depth + 1) for item in _items(body))
        if tag == "d":
            return {
                decode(key, depth + 1): decode(value, depth + 1)
                for key, value in (_pair(item) for item in _items(body))
            }
        if tag == "s":
            return {decode(item, depth + 1) for item in _items(body)}
        if tag == "f":
            return frozenset(decode(item, depth + 1) for item in _items(body))
        if tag == "i":
            return int(body, 16)
        if tag == "b":
            return base64.b64decode(body, validate=True)
        if tag == "c":
            real, imaginary = _items(body)
            return complex(real, imaginary)
    except (TypeError, ValueError) as error:
        raise ValueFormatError(f"malformed {tag!r}: {error}") from None
    raise ValueFormatError(f"unknown tag {tag!r}")


def _items(body: JSON) -> list[JSON]:
    if not isinstance(body, list):
        raise ValueFormatError("expected a list")
    return body


def _pair(item: JSON) -> tuple[JSON, JSON]:
    if not isinstance(item, list) or len(item) != 2:
        raise ValueFormatError("expected a pair")
    return item[0], item[1]


def encode(value: Any, depth: int = 0) -> JSON:
    """Return the typed JSON node of a builtin value.

    Raises:
        ValueFormatError: for a type outside None, bool, int, float, complex, str, bytes, list,
            tuple, dict, set, frozenset (exact types: subclasses are refused).
    """
    if depth > MAX_DEPTH:
        raise ValueFormatError("nested too deeply")
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < 1 << 4096 else {"i": hex(value)}
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    if kind is tuple:
        return {"t": [encode(item, depth + 1) for item in value]}
    if kind is dict:
        return {"d": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if kind in (set, frozenset):
        nodes = [encode(item, depth + 1) for item in value]
        return {"s" if kind is set else "f": sorted(nodes, key=json.dumps)}
    if kind is bytes:
        return {"b": base64.b64encode(value).decode()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    raise ValueFormatError(f"values of type {kind.__name__} cannot cross the sandbox's border")


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
