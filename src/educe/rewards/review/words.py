"""Word lists that match whole words only, in whatever disguise they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from educe.core.errors import EduceError
from educe.core.types import Message
from educe.rewards.review.findings import ReviewFinding
from educe.rewards.review.folding import fold, spellings

_ENDINGS = ("s", "es", "ed", "ing")


class WordList:
    """Words and phrases; a word matches as a whole, so place names that contain one do not.

    Args:
        entries: words or phrases of words, folded on the way in.
        inflections: whether a plain ending (s, es, ed, ing) still matches.
    """

    def __init__(self, entries: Iterable[str], *, inflections: bool = True) -> None:
        self._inflections = inflections
        self._words: set[str] = set()
        self._phrases: dict[str, list[tuple[str, ...]]] = {}
        for entry in entries:
            parts = tuple(fold(entry).text.split())
            if len(parts) == 1:
                self._words.add(parts[0])
            elif parts:
                self._phrases.setdefault(parts[0], []).append(parts)

    def __len__(self) -> int:
        return len(self._words) + sum(map(len, self._phrases.values()))

    @staticmethod
    def from_file(path: Path) -> WordList:
        """Read one word or phrase a line; empty lines and lines that begin with # are skipped."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise EduceError(f"the word list {path} cannot be read: {error}") from error
        entries = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not entries:
            raise EduceError(f"the word list {path} has no entries")
        return WordList(entries)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of listed words in the original text, in order, without overlaps."""
        folded = fold(text)
        found = set()
        by_start: list[tuple[int, int, str]] = []
        for word, start, end in spellings(folded.text):
            if self._has(word):
                found.add(folded.span(start, end))
            by_start.append((start, end, word))
        found |= {folded.span(*span) for span in self._phrase_spans(by_start)}
        spans: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if not spans or start >= spans[-1][1]:
                spans.append((start, end))
        return spans

    def _has(self, word: str) -> bool:
        if word in self._words:
            return True
        if not self._inflections:
            return False
        return any(word.endswith(e) and word[: -len(e)] in self._words for e in _ENDINGS)

    def _phrase_spans(self, tokens: Sequence[tuple[int, int, str]]) -> Iterable[tuple[int, int]]:
        if not self._phrases:
            return
        plain: list[tuple[int, int, set[str]]] = []
        for start, end, word in tokens:
            if plain and plain[-1][0] == start:
                plain[-1][2].add(word)
            elif not plain or start >= plain[-1][1]:
                plain.append((start, end, {word}))
        for i, (start, _, words) in enumerate(plain):
            for word in words:
                for phrase in self._phrases.get(word, ()):
                    rest = plain[i : i + len(phrase)]
                    if len(rest) == len(phrase) and all(
                        p in w for p, (_, _, w) in zip(phrase, rest, strict=True)
                    ):
                        yield start, rest[-1][1]


class WordLayer:
    """Findings of a word list: one each, of one severity."""

    name = "words"

    def __init__(self, words: WordList, *, severity: float = 0.7) -> None:
        self.words, self.severity = words, severity

    def inspect(self, text: str, prompt: Sequence[Message]) -> Sequence[ReviewFinding]:
        return [
            ReviewFinding(self.name, "listed_word", self.severity, start, end)
            for start, end in self.words.find(text)
        ]
