"""Drafts of what a row will say next, looked up in what it has read and said: no torch, no model.

A step of few rows costs hardly less than one of many, so the tail of a batch computes some drafted
tokens along with each row's newest one. A row's next token is a function of its logits and of one
counted uniform, so a draft is right exactly when it is the token that would have been drawn anyway:
drafting changes how many tokens a step gives, never which.

Lookup in the row's own text is prompt lookup decoding (Saxena 2023): tool calls repeat names,
corrections repeat code.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST, _SHORTEST = 3, 2
_TRIES = 6
_WORTH = 0.2


class Lookup:
    """What followed each run of two or three tokens when it last occurred in a row's text."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._followed: dict[tuple[int, ...], int] = {}
        self._num_prompt = len(prompt)
        self._tries = self._right = 0
        self._add(prompt)

    def _add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            place = len(self._tokens)
            for size in range(_SHORTEST, _LONGEST + 1):
                if place >= size:
                    self._followed[tuple(self._tokens[place - size :])] = place
            self._tokens.append(token)

    def propose(self, completion: Sequence[int], count: int) -> tuple[int, ...]:
        """Return at most ``count`` tokens that may follow; none where drafts have not paid."""
        self._add(completion[len(self._tokens) - self._num_prompt :])
        if self._tries >= _TRIES and self._right < _WORTH * self._tries:
            return ()
        for size in range(_LONGEST, _SHORTEST - 1, -1):
            place = self._followed.get(tuple(self._tokens[-size:]))
            if place is not None and len(self._tokens) >= size:
                return tuple(self._tokens[place : place + count])
        return ()

    def note(self, num_right: int) -> None:
        """Learn how many tokens of the last draft were right."""
        self._tries += 1
        self._right += num_right
