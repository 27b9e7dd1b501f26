"""Tokens to text, a token at a time, without ever taking a character back.

A character may be spread over several tokens and a stop string over several characters, so the
newest text is held back until it is certain. What was sent plus what ``finish`` returns is the
completion's text, whatever the pieces were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST_WINDOW = 12
# The bytes of one character are at most four, so a character begins in the last four tokens.
_KEPT = 4


class TextStream:
    """Decodes incrementally: the text of a window of the newest tokens, minus what was given.

    Decoding the window costs the same for the first token and the thousandth.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._given = 0
        self.length = 0

    def push(self, token_id: int) -> str:
        """Add a token; return the text that has become certain."""
        self._window.append(token_id)
        text = self._decode(self._window)
        certain = text[:-1] if text.endswith(_UNFINISHED) else text
        piece = certain[self._given :]
        self._given = max(self._given, len(certain))
        if certain is text:
            # All of it was given: one token stays for what decoders do between neighbours.
            self._window = self._window[-1:]
            self._given = len(self._decode(self._window))
        elif len(self._window) > _LONGEST_WINDOW:
            self._window = self._window[-_KEPT:]
            self._given = len(self._decode(self._window)) - 1
        self.length += len(piece)
        return piece

    def finish(self) -> str:
        """Return the rest: an unfinished character's replacement, or nothing."""
        piece = self._decode(self._window)[self._given :] if self._window else ""
        self._window = []
        self._given = 0
        self.length += len(piece)
        return piece


class StopScanner:
    """Cuts a text at the first of some stop strings, which may arrive in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._held = ""
        self._is_done = False

    @property
    def has_stopped(self) -> bool:
        return self._is_done

    def push(self, piece: str) -> str:
        """Return what can be sent; nothing after a stop string was met."""
        if self._is_done:
            return ""
        if not self.stops:
            return piece
        text = self._held + piece
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if found:
            self._is_done, self._held = True, ""
            return text[: min(found)]
        keep = max(overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``mark`` without being it."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
