"""Train, eval and screen never share a task: the split is a function of the content itself.

A generator draws candidates for (domain, split, index) from counted seeds until the candidate's own
content hash falls into the wanted split. So two splits cannot meet, however small the space of
tasks is, and item ``i`` stays a pure function of (domain, split, i).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace

from educe.core.errors import DomainError
from educe.core.seeds import derive
from educe.core.types import Split, Task

# Shares of the content space; training keeps most of it.
_BUCKETS = 20
_EVAL_BUCKETS = 3
_SCREEN_BUCKETS = 1


def split_of(content_hash: str, eval_fraction: float | None = None) -> Split:
    """Return the only split in which content with this hash may appear.

    ``eval_fraction`` is for finite data, where the user chooses what is held out for evaluation;
    a third as much is the screen split.
    """
    digest = hashlib.blake2b(content_hash.encode(), digest_size=8, person=b"educe-split").digest()
    if eval_fraction is not None:
        place = int.from_bytes(digest, "big") / 2**64
        if place < eval_fraction:
            return Split.EVAL
        return Split.SCREEN if place < min(1.0, eval_fraction * 4 / 3) else Split.TRAIN
    bucket = int.from_bytes(digest, "little") % _BUCKETS
    if bucket < _EVAL_BUCKETS:
        return Split.EVAL
    if bucket < _EVAL_BUCKETS + _SCREEN_BUCKETS:
        return Split.SCREEN
    return Split.TRAIN


def draw_task(
    make: Callable[[random.Random], Task],
    domain: str,
    split: Split,
    index: int,
    *,
    max_attempts: int = 1000,
) -> Task:
    """Return task ``index`` of ``split``, made by ``make`` from a private generator.

    Args:
        make: builds a candidate from a ``random.Random``; must use no other randomness. Its
            ``split`` and ``index`` fields are overwritten.
        domain: seeds the draw, so two domains never share a stream.

    Raises:
        DomainError: when no candidate of the split turns up, i.e. the space is far too small.
    """
    if index < 0:
        raise IndexError(f"{domain}: task index must be >= 0, got {index}")
    for attempt in range(max_attempts):
        rng = random.Random(derive("task", domain, str(split), index, attempt))
        candidate = make(rng)
        if split_of(candidate.content_hash) is split:
            return replace(candidate, domain=domain, split=split, index=index)
    raise DomainError(
        f"{domain}: no {split} task found in {max_attempts} draws; the generator makes too few "
        f"distinct tasks to be split"
    )
