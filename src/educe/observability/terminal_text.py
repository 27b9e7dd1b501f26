"""Short texts for terminals: durations, numbers, sparklines, events, and model text made harmless.

What a model wrote may hold escape sequences; nothing of it reaches a terminal unescaped.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence

from educe.core.types import JSON
from educe.observability.history import visible_range

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"


def sparkline(values: Sequence[float], width: int = 40, *, ascii_only: bool = False) -> str:
    """Return one character a bin, lowest to highest; values that are not finite are left out."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    bins = min(width, len(finite))
    means = []
    for i in range(bins):
        part = finite[i * len(finite) // bins : (i + 1) * len(finite) // bins]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    is_flat = visible_range(means) != (low, high)
    scale = 0.0 if is_flat else (len(blocks) - 1) / (high - low)
    return "".join(blocks[round((m - low) * scale)] for m in means)


def format_duration(seconds: float) -> str:
    """Return seconds as people say them: 7.3 s, 45 s, 3 min 20 s, 1 h 05 min, 2 d 03 h."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def format_number(value: float | None) -> str:
    """Return about three digits: 0.412, 12.3, 1.2e-05."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 0.001 <= abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:.3g}"


def format_count(count: float) -> str:
    """Return a large count as people say it: 950, 37.2 K, 134.5 M, 7.24 B."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}" if unit == "B" else f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def printable(text: str) -> str:
    """Return the text with control characters, other than line breaks and tabs, made visible."""
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    category = unicodedata.category(character)
    # Cc: controls, Cf: direction overrides and the like, Cs: lone surrogates
    if category in ("Cc", "Cs") or (category == "Cf" and character != "\u200d"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return character


def one_line(text: str, width: int) -> str:
    """Return the text on one line of at most ``width`` characters."""
    flat = printable(text).replace("\n", "\u23ce").replace("\t", " ")
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


def describe_event(kind: str, payload: Mapping[str, JSON]) -> str:
    """Return an event as one line."""
    if kind == "alarm":
        domain = f" {payload['domain']}" if payload.get("domain") else ""
        head = f"ALARM {payload.get('kind', '?')}{domain} at step {payload.get('step', '?')}"
        return printable(f"{head}: {payload.get('cause', '')}").replace("\n", " ")
    plain = [
        f"{key} {format_number(value) if isinstance(value, float) else value}"
        for key, value in payload.items()
        if isinstance(value, (str, int, float)) and value != ""
    ]
    return printable(f"{kind}: {', '.join(plain)}" if plain else kind).replace("\n", " ")
