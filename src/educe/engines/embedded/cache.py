"""Cached keys and values.

Shapes: L layers, K key/value heads, D head width, R rows (slots), P segments of a shelf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_GROW = 64


@dataclass(slots=True, eq=False)
class Shelf:
    """Segments of similar length side by side, so that one attention call reads them all.

    ``values`` is [L, 2, P, K, longest, D], zero behind each segment's end; ``bias`` [P, 1, 1,
    longest] is -inf there, None when all are equally long. A place is empty (None) once its segment
    is forgotten.
    """

    values: Tensor
    segment_ids: list[int | None]
    lengths: list[int]
    bias: Tensor | None

    @property
    def num_live(self) -> int:
        return sum(s is not None for s in self.segment_ids)


class CacheStore:
    """Segments [L, 2, 1, K, T, D] by id, and slots [L, 2, R, K, capacity, D] of growing rows."""

    def __init__(self, config: Any, max_rows: int, dtype: torch.dtype, device: Any) -> None:
        heads = config.num_attention_heads
        self.num_layers: int = config.num_hidden_layers
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.width: int = width
        self.max_rows = max_rows
        self._places: dict[int, tuple[Shelf, int]] = {}
        self._shape = (self.num_layers, 2, max_rows, self.num_kv_heads)
        self.slots = torch.zeros((*self._shape, 0, width), dtype=dtype, device=device)

    @property
    def num_segments(self) -> int:
        return len(self._places)

    # Slots

    def reserve(self, capacity: int) -> None:
        """Grow the slots so that each holds ``capacity`` tokens."""
        have = self.slots.shape[4]
        if capacity <= have:
            return
        size = -(-max(capacity, have * 3 // 2) // _GROW) * _GROW
        grown = self.slots.new_zeros((*self._shape, size, self.width))
        grown[:, :, :, :, :have] = self.slots
        self.slots = grown

    def move(self, source: int, target: int, length: int) -> None:
        self.slots[:, :, target, :, :length] = self.slots[:, :, source, :, :length]

    # Segments

    def segment(self, segment_id: int) -> Tensor:
        """Return a segment's keys and values [L, 2, 1, K, T, D]; writing to it fills it."""
        shelf, place = self._places[segment_id]
        return shelf.values[:, :, place : place + 1, :, : shelf.lengths[place]]

    def shelf_of(self, segment_id: int) -> tuple[Shelf, int]:
        """Return the shelf of a segment and its place there."""
        return self._places[segment_id]

    def new_segments(self, segment_ids: Sequence[int], lengths: Sequence[int]) -> None:
        """Make room for segments that are computed together."""
        by_size: dict[int, list[tuple[int, int]]] = {}
        for segment_id, length in zip(segment_ids, lengths, strict=True):
            by_size.setdefault((length - 1).bit_length(), []).append((segment_id, length))
        for members in by_size.values():
            self._shelve(members)

    def freeze(self, segment_id: int, slot: int, length: int) -> None:
        """Keep a slot's first ``length`` tokens as a segment."""
        self._shelve([(segment_id, length)])
        self.segment(segment_id)[...] = self.slots[:, :, slot : slot + 1, :, :length]

    def forget(self, segment_ids: Sequence[int]) -> None:
        for segment_id in segment_ids:
            found = self._places.pop(segment_id, None)
            if found is not None:
                shelf, place = found
                shelf.segment_ids[place] = None

    def tidy(self, segment_ids: Sequence[int]) -> None:
        """Put these segments on few shelves: similar lengths together, no empty places.

        A segment is copied only when there are too many shelves or its own is mostly empty, so
        that a steady flow of admissions costs each segment a few copies in its life.
        """
        shelves = list(dict.fromkeys(self._places[s][0] for s in segment_ids))
        by_size: dict[int, list[Shelf]] = {}
        for shelf in shelves:
            by_size.setdefault((max(shelf.lengths) - 1).bit_length(), []).append(shelf)
        for size, group in by_size.items():
            sparse = [s for s in group if 2 * s.num_live < len(s.segment_ids)]
            crowded = group if len(group) > _MAX_SHELVES and size <= _MAX_COPIED else sparse
            if crowded:
                self._merge(crowded)

    def _merge(self, shelves: Sequence[Shelf]) -> None:
        old = [
            (segment_id, shelf.lengths[place], self.segment(segment_id))
            for shelf in shelves
            for place, segment_id in enumerate(shelf.segment_ids)
            if segment_id is not None
        ]
        self._shelve([(segment_id, length) for segment_id, length, _ in old])
        for segment_id, _, values in old:
            self.segment(segment_id)[...] = values

    def _shelve(self, members: Sequence[tuple[int, int]]) -> None:
        lengths = [length for _, length in members]
        longest = max(lengths)
        shape = (self.num_layers, 2, len(members), self.num_kv_heads, longest, self.width)
        bias = None
        if min(lengths) < longest:
            behind = torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)
            bias = torch.zeros(len(members), 1, 1, longest, dtype=self.slots.dtype)
            bias.masked_fill_(behind[:, None, None, :], float("-inf"))
            bias = bias.to(self.slots.device)
        # Zeros: what lies behind a segment's end is masked, but 0 * NaN would not be.
        values = self.slots.new_zeros(shape)
        shelf = Shelf(values, [s for s, _ in members], lengths, bias)
        for place, (segment_id, _) in enumerate(members):
            self._places[segment_id] = (shelf, place)


_MAX_SHELVES = 4
_MAX_COPIED = 10  # bits of a length: longer segments are not copied to be near others
