"""Who sees whom in a pack of segments that lie depth first, as the C sources read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LANES = 16  # tokens of a block of the kernels for short segments
BLOCK = 32  # of those on tiles


class TiledTable:
    """Who sees whom in a pack that lies depth first, as forest.c reads it.

    Args:
        spans: as of :class:`ForestTable`; together they cover all tokens.
    """

    def __init__(self, spans: Sequence[tuple[int, int, int]]) -> None:
        self.tokens = max(last for _, _, last in spans)
        self.padded = -(-self.tokens // BLOCK) * BLOCK
        self.last = np.zeros(self.padded, np.int32)
        for start, end, last in spans:
            self.last[start:end] = last
        blocks = self.last.reshape(-1, BLOCK)
        self.smallest = np.ascontiguousarray(blocks.min(1))
        self.largest = np.ascontiguousarray(blocks.max(1))


class ForestTable:
    """Blocks of up to 16 tokens of a forest's segments, and the ranges above each segment.

    Args:
        spans: (start, end, last) of each segment, depth first: its tokens, then its descendants'.
    """

    def __init__(self, spans: Sequence[tuple[int, int, int]]) -> None:
        blocks: list[tuple[int, ...]] = []
        ranges: list[tuple[int, int]] = []
        above: list[tuple[int, int, int]] = []
        for start, end, last in spans:
            while above and above[-1][2] <= start:
                above.pop()
            first_range = len(ranges)
            ranges += [(a, b) for a, b, _ in above if b > a]
            how_many = len(ranges) - first_range
            blocks += [
                (at, min(at + LANES, end), start, end, last, first_range, how_many)
                for at in range(start, end, LANES)
            ]
            above.append((start, end, last))
        self.blocks = np.array(blocks, np.int64).reshape(-1, 7)
        self.ranges = np.array(ranges, np.int64).reshape(-1, 2)
