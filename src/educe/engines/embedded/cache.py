"""Cached keys and values.

Shapes: L layers, K key/value heads, D head width, R rows (slots), P segments of a shelf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from educe.engines.embedded.arrangement import Placed, Plan

_GROW = 64


@dataclass(slots=True, eq=False)
class Shelf:
    """Segments of similar length side by side, so that one attention call reads them all.

    ``values`` is [L, 2, P, K, longest, D], zero behind each segment's end; ``bias`` [P, 1, 1,
    longest] is -inf there, None when all are equally long. A place is empty (None) once its segment
    is forgotten. ``layers`` are each layer's keys and values [P, K, longest, D], views made once:
    every step asks for all of them.
    """

    values: Tensor
    segment_ids: list[int | None]
    lengths: list[int]
    bias: Tensor | None
    layers: list[tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        keys, values = self.values.unbind(1)
        self.layers = list(zip(keys.unbind(0), values.unbind(0), strict=True))


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
        self.flat_slots: Sequence[Tensor] = ()

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
        # A layer's slots as rows [2 * R * K * capacity, D], to write single tokens to.
        self.flat_slots = grown.view(self.num_layers, -1, self.width).unbind(0)

    def release(self) -> None:
        """Give the slots' memory back; no row may be running."""
        self.slots = self.slots.new_zeros((*self._shape, 0, self.width))
        self.flat_slots = ()

    def own(self, num_rows: int, extent: int) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values [rows, K, extent, D] of the first slots."""
        keys, values = self.slots[:, :, :num_rows, :, :extent].unbind(1)
        return list(zip(keys.unbind(0), values.unbind(0), strict=True))

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

    def join(self, segment_id: int, length: int, parts: Sequence[int]) -> None:
        """Keep consecutive segments as one; the parts are forgotten."""
        self._shelve([(segment_id, length)])
        torch.cat([self.segment(p) for p in parts], dim=4, out=self.segment(segment_id))
        self.forget(parts)

    def forget(self, segment_ids: Sequence[int]) -> None:
        for segment_id in segment_ids:
            found = self._places.pop(segment_id, None)
            if found is not None:
                shelf, place = found
                shelf.segment_ids[place] = None

    def placed(self, readers: Mapping[int, int]) -> tuple[list[Shelf], list[Placed]]:
        """Return the shelves that hold these segments, and how they are read.

        ``readers`` is the number of rows that refer to each segment.
        """
        found: dict[int, tuple[Shelf, dict[int, int]]] = {}
        for segment_id, count in readers.items():
            shelf, place = self._places[segment_id]
            found.setdefault(id(shelf), (shelf, {}))[1][place] = count
        return (
            [shelf for shelf, _ in found.values()],
            [Placed(shelf.lengths, places) for shelf, places in found.values()],
        )

    def rearrange(self, shelves: Sequence[Shelf], plan: Plan) -> None:
        """Copy segments to new shelves as planned."""
        for members in plan.shelves:
            old = []
            for number, place in members:
                shelf = shelves[number]
                segment_id = shelf.segment_ids[place]
                assert segment_id is not None
                old.append((segment_id, shelf.lengths[place], self.segment(segment_id)))
                shelf.segment_ids[place] = None
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
