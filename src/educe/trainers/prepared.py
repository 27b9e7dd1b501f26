"""A feed's batches as tokens, rendered in other processes before their step comes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from educe.core.types import JSON
from educe.rollout.prefetch import Prefetch
from educe.trainers.feeds import Feed
from educe.trainers.rendering import Rendered, Side


class PreparedBatches:
    """What ``feed`` and the rendering give, in the same order, made ahead by ``prefetch``.

    The feed is read further than it is used; ``progress`` is that of the last batch used.
    """

    def __init__(self, feed: Feed, prefetch: Prefetch) -> None:
        self._feed = feed
        self._prefetch = prefetch
        self._num_ahead = -(-prefetch.ahead // feed.batch_size)
        # Of batches read but not used: their orders, and the feed's progress after them.
        self._read: dict[int, tuple[list[tuple[str, JSON]], JSON]] = {}
        self._progress = feed.progress()

    def sides(self, step: int) -> list[tuple[str, Side | None]]:
        """Return (source, sequences) of batch ``step``; None for what does not fit."""
        for number in range(step, step + self._num_ahead + 1):
            if number not in self._read:
                orders = self._feed.orders(number)
                self._read[number] = orders, self._feed.progress()
        batch, self._progress = self._read.pop(step)
        orders = [order for _, order in batch]
        found = []
        for place, (name, order) in enumerate(batch):
            # As one is taken, the next one behind the window is begun.
            self._prefetch.expect(itertools.chain(orders[place:], self._waiting()))
            found.append((name, _side(self._prefetch.take(order))))
        return found

    def _waiting(self) -> Iterator[JSON]:
        for number in sorted(self._read):
            for _, order in self._read[number][0]:
                yield order

    def progress(self) -> JSON:
        return self._progress

    def restore(self, state: JSON) -> None:
        self._feed.restore(state)
        self._read.clear()
        self._progress = state


def _side(made: JSON) -> Side | None:
    if made is None:
        return None
    sequences = []
    for token_ids, trained in made:
        mask = np.zeros(len(token_ids), np.bool_)
        mask[trained] = True
        sequences.append(Rendered(np.array(token_ids, np.int64), mask))
    return tuple(sequences)
