"""Seeing through disguises: text folded to plain lower-case letters, with the way back.

Zero-width characters, accents, look-alike letters of other scripts, letters written as digits,
letters spaced out, letters repeated: each is undone, and every folded character knows where it
stood, so that a finding can be shown in the original.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

# Letters of other scripts that are drawn like Latin ones (lower case after folding).
_LOOK_ALIKE = {
    "а": "a", "в": "b", "е": "e", "ё": "e", "з": "3", "и": "u", "к": "k", "м": "m", "н": "h",
    "о": "o", "р": "p", "с": "c", "т": "t", "у": "y", "х": "x", "ѕ": "s", "і": "i", "ј": "j",
    "ԁ": "d", "ԛ": "q", "ԝ": "w", "ь": "b", "г": "r", "п": "n",
    "α": "a", "β": "b", "ε": "e", "η": "n", "ι": "i", "κ": "k", "ν": "v", "ο": "o", "ρ": "p",
    "τ": "t", "υ": "u", "χ": "x", "ω": "w", "γ": "y", "σ": "o",
    "ı": "i", "ł": "l", "ø": "o", "đ": "d", "ħ": "h", "ƒ": "f", "ɑ": "a", "ɡ": "g",
}  # fmt: skip
_SYMBOLS = {
    "0": "o", "1": "i", "2": "z", "3": "e", "4": "a", "5": "s", "6": "g", "7": "t", "8": "b",
    "9": "g", "@": "a", "$": "s", "!": "i", "|": "i", "+": "t", "€": "e", "(": "c",
}  # fmt: skip
_TOKEN = re.compile(r"[a-z0-9@$!|+€*]+(?:'[a-z]+)?")
_SPACED = re.compile(r"(?<![a-z0-9])[a-z0-9@$!](?:[ .\-_*]{1,2}[a-z0-9@$!]){2,}(?![a-z0-9])")
_REPEATED = re.compile(r"(.)\1{2,}")


@dataclass(frozen=True, slots=True)
class Folded:
    """``text`` is folded; character i of it came from character ``origins[i]`` of the original."""

    text: str
    origins: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the original span of folded characters [start, end)."""
        if start >= end or not self.origins:
            return 0, 0
        return self.origins[start], self.origins[end - 1] + 1


def fold(text: str) -> Folded:
    """Return the text in lower case, compatibility forms, accents and look-alikes undone."""
    out: list[str] = []
    origins: list[int] = []
    for position, original in enumerate(text):
        for character in unicodedata.normalize("NFKD", original).casefold():
            category = unicodedata.category(character)
            if category == "Cf" or category.startswith("M"):
                continue
            out.append(_LOOK_ALIKE.get(character, character))
            origins.append(position)
    return Folded("".join(out), tuple(origins))


def spellings(folded: str) -> Iterator[tuple[str, int, int]]:
    """Yield (word, start, end) of every token of a folded text, in each way it may be read.

    As written; with symbols read as letters; with spaced-out letters joined; with runs of a letter
    cut to one and to two. A token of digits alone is never read as letters.
    """
    for match in _TOKEN.finditer(folded):
        yield from _readings(match.group(), match.start(), match.end())
    for match in _SPACED.finditer(folded):
        joined = re.sub(r"[^a-z0-9@$!]", "", match.group())
        yield from _readings(joined, match.start(), match.end())


def _readings(token: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    seen = {token}
    yield token, start, end
    candidates = [token.strip("!|+*")]
    if any(c.isalpha() for c in token) and not token.isalpha():
        # A closing "!" is punctuation far more often than a letter, so both are tried.
        candidates += [_as_letters(token), _as_letters(token.strip("!|+*"))]
    for candidate in candidates:
        shorter = (_REPEATED.sub(r"\1", candidate), _REPEATED.sub(r"\1\1", candidate))
        for reading in (candidate, *shorter):
            if reading and reading not in seen:
                seen.add(reading)
                yield reading, start, end


def _as_letters(token: str) -> str:
    return "".join(_SYMBOLS.get(c, c) for c in token).replace("*", "")
