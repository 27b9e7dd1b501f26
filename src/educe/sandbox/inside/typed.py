"""Typed JSON: builtin values there and back. Stands alone, for both sides of a box's border.

Plain JSON would turn a tuple into a list and forget sets; a pickle would run code. Here ``null``,
``true``, numbers, strings and lists stand for themselves, and every other type is an object with
one tag.
"""

from __future__ import annotations

import base64
import json
from typing import Any

MAX_DEPTH = 200
_MAX_ALIKE = 64  # members of a set or keys of a dictionary with one hash
_dumps, _b64encode = json.dumps, base64.b64encode  # patching the modules later changes nothing


def encode(value: Any, depth: int = 0) -> Any:
    """Return typed JSON of an exact builtin value.

    Raises:
        TypeError: for any other type, subclasses of builtins included.
        RecursionError: for too deep a nesting.
    """
    if depth > MAX_DEPTH:
        raise RecursionError("nested too deeply")
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() <= 4096 else {"i": hex(value)}
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    if kind is tuple:
        return {"t": [encode(item, depth + 1) for item in value]}
    if kind is dict:
        return {"d": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if kind is set or kind is frozenset:
        nodes = [encode(item, depth + 1) for item in value]
        return {"s" if kind is set else "f": sorted(nodes, key=_dumps)}
    if kind is bytes:
        return {"b": _b64encode(value).decode()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    raise TypeError(f"a value of type {kind.__name__} was returned; only builtin types count")


class ValueFormatError(ValueError):
    """Bytes that are not a value of the typed JSON format."""


def decode(node: Any, depth: int = 0) -> Any:
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
            pairs = [_pair(item) for item in _items(body)]
            keys = _spread([decode(key, depth + 1) for key, _ in pairs])
            return dict(zip(keys, [decode(value, depth + 1) for _, value in pairs], strict=True))
        if tag == "s":
            return set(_spread([decode(item, depth + 1) for item in _items(body)]))
        if tag == "f":
            return frozenset(_spread([decode(item, depth + 1) for item in _items(body)]))
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


def _spread(members: list[Any]) -> list[Any]:
    """Return the members; refuse many with one hash, which take quadratic time to put together."""
    counts: dict[int, int] = {}
    for member in members:
        code = hash(member)
        counts[code] = counts.get(code, 0) + 1
    if counts and max(counts.values()) > _MAX_ALIKE:
        raise ValueFormatError("too many members with one hash")
    return members


def _items(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise ValueFormatError("expected a list")
    return body


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list) or len(item) != 2:
        raise ValueFormatError("expected a pair")
    return item[0], item[1]
