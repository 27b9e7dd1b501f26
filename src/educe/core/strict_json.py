"""JSON that every reader takes: Python's NaN and infinities are no JSON and become null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a copy of a value in which numbers that JSON has no word for are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def strict_json(
    value: Any,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Return a value as strict JSON text; the arguments are those of ``json.dumps``.

    Raises:
        TypeError: a value that JSON does not know and ``default`` does not either.
    """
    return json.dumps(
        finite(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False, default=default
    )
