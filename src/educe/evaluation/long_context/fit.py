"""As much filler as fits: found by search over the real prompt, chat template included.

The published harnesses count with another tokenizer, or before the template, and either overflow or
fall short; one of them never ends when the fixed part alone is too long. Here the length that is
compared is the one that the model will read, and the search is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from educe.core.errors import EduceError
from educe.core.types import Message

CountTokens = Callable[[Sequence[Message]], int]
T = TypeVar("T")

_MAX_BUILDS = 40
_CHARACTERS_A_TOKEN = 4.0
_TOKENS_A_MESSAGE = 6


@dataclass(frozen=True, slots=True)
class Fitted(Generic[T]):
    """What fits: how much filler, how many tokens, and what was built."""

    size: int
    num_tokens: int
    built: T


def fit(
    build: Callable[[int], T],
    count: Callable[[T], int],
    limit: int,
    *,
    what: str = "the prompt",
    tolerance: float = 0.02,
    start: int = 0,
) -> Fitted[T]:
    """Return what ``build`` gives for the most filler whose length is at most ``limit``.

    Stops within ``tolerance`` of the limit, or where more filler makes nothing longer.

    Args:
        start: how much filler to try first: what fitted a like prompt saves most of the search.

    Raises:
        EduceError: without any filler it is too long already.
    """
    best = _built(build, count, start)
    too_long: int | None = None
    if best.num_tokens > limit:
        too_long = start
        best = _built(build, count, 0)
    if best.num_tokens > limit:
        raise EduceError(
            f"{what} has {best.num_tokens} tokens without any filler, more than the {limit} that "
            f"this length leaves for it; take a longer length"
        )
    slope = max(1.0, best.num_tokens / best.size) if best.size else 20.0
    for _ in range(_MAX_BUILDS):
        room = limit - best.num_tokens
        if room <= tolerance * limit or (too_long is not None and too_long - best.size <= 1):
            break
        size = best.size + max(1, int(0.97 * room / slope))
        if too_long is not None and size >= too_long:
            # Just too long is the usual case with a good start, so stay near it.
            size = max(best.size + 1, min(too_long - 1, int(0.96 * too_long)))
        tried = _built(build, count, size)
        if tried.num_tokens > limit:
            too_long = size
            slope = max(slope, (tried.num_tokens - best.num_tokens) / (size - best.size))
        elif tried.num_tokens <= best.num_tokens and size > best.size + 64:
            break  # the source of filler is used up
        else:
            gained = tried.num_tokens - best.num_tokens
            slope = max(1.0, gained / (size - best.size))
            best = tried if gained >= 0 else Fitted(size, best.num_tokens, best.built)
    return best


def _built(build: Callable[[int], T], count: Callable[[T], int], size: int) -> Fitted[T]:
    made = build(size)
    return Fitted(size, count(made), made)


def estimated_tokens(messages: Sequence[Message]) -> int:
    """Estimate a prompt's length where the model's tokenizer is out of reach."""
    return sum(round(len(m.content) / _CHARACTERS_A_TOKEN) + _TOKENS_A_MESSAGE for m in messages)
