"""From characters to tokens: where the steps that a scorer names end in what was sampled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from educe.core.types import Score, Turn


def step_scores(
    turns: Sequence[Turn], score: Score, decode: Callable[[Sequence[int]], str]
) -> tuple[tuple[int, float | None], ...]:
    """Return a score's steps as (index of the action token that ends the step, value).

    Indices count all completion tokens of the trajectory. ``score.steps`` count characters of the
    last turn's text; an end beyond the text is its last token. A step ends with the token that
    writes its last character, so a token across two steps belongs to the first.
    """
    if not score.steps or not turns or not turns[-1].completion_token_ids:
        return ()
    before = sum(len(t.completion_token_ids) for t in turns[:-1])
    ids = turns[-1].completion_token_ids
    # Decoding prefixes is the only way that every tokenizer agrees with; a search needs few.
    length = _PrefixLength(ids, decode)
    found = []
    for end, value in score.steps:
        place = bisect_left(range(len(ids)), max(end, 1), key=length)
        found.append((before + min(place, len(ids) - 1), value))
    return tuple(found)


class _PrefixLength:
    """Characters that the first n + 1 tokens decode to, remembered."""

    def __init__(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self._ids = ids
        self._decode = decode
        self._known: dict[int, int] = {}

    def __call__(self, index: int) -> int:
        if index not in self._known:
            self._known[index] = len(self._decode(self._ids[: index + 1]))
        return self._known[index]


def judged_turns(replies: Sequence[Score | None]) -> tuple[Score, ...]:
    """Return one score for each answered turn; none at all where no turn was judged."""
    if all(score is None for score in replies):
        return ()
    return tuple(Score(None, reason="not judged") if s is None else s for s in replies)
