"""What a checker reads in a text: words, sentences, lines."""

from __future__ import annotations

import re


def words_of(text: str) -> list[str]:
    """Return the words in lower case, without the punctuation around them."""
    found = []
    for piece in text.split():
        word = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", piece)
        if re.search(r"[A-Za-z]", word):
            found.append(word.casefold())
    return found


def sentences_of(text: str) -> list[str]:
    pieces = re.split(r"[.!?]+[\"'}\])]*(?:\s+|$)", text)
    return [p for p in pieces if re.search(r"[A-Za-z0-9]", p)]


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def count_word(text: str, word: str) -> int:
    """How often a word stands in the text, punctuation and possessive 's aside."""
    return len(
        re.findall(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text, re.IGNORECASE)
    )


def end_of(text: str) -> str:
    return text.strip().strip("\"'{}").strip().casefold()


def start_of(text: str) -> str:
    return text.strip().strip("\"'{}").strip().casefold()
