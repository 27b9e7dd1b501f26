"""Attention of decode by the compiled kernel: one call a layer.

Shapes: R rows, T new tokens of each, H query heads, K key/value heads, D head width, N tokens.

Every row reads the segments of its chain where they lie: no shelf is padded, none rearranged. Rows
that begin with the same segment are taken one after the other, so that it stays in a core's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from educe.engines.embedded.attention import PrefillContext
from educe.engines.embedded.cache import CacheStore
from educe.engines.embedded.fused import Joined
from educe.engines.embedded.scheduler import Row
from educe.native.kernels import Kernels, kind
from educe.native.structures import Attend

_FIELDS = 5  # of struct Segment in kernels.c


class ChainTable:
    """Where the rows' segments lie; valid while no segment moves."""

    def __init__(self, store: CacheStore, chains: Sequence[tuple[int, ...]]) -> None:
        size = store.slots.element_size()
        flat: list[tuple[int, int, int, int, int]] = []
        starts = [0]
        self._shelves = []  # alive as long as their addresses are
        for chain in chains:
            for segment_id in chain:
                shelf, place = store.shelf_of(segment_id)
                self._shelves.append(shelf)
                layer, part, row, head, _, _ = (s * size for s in shelf.values.stride())
                address = shelf.values.data_ptr() + place * row
                flat.append((address, layer, part, head, shelf.lengths[place]))
            starts.append(len(flat))
        self.segments = np.array(flat, np.int64).reshape(-1, _FIELDS)
        self.starts = np.array(starts, np.int64)
        order = sorted(range(len(chains)), key=lambda row: (chains[row], row))
        self.order = np.array(order, np.int64)


class NativeDecodeContext:
    """Attention of each row's newest tokens: the segments of its chain, then its own slot."""

    def __init__(
        self,
        store: CacheStore,
        rows: Sequence[Row],
        table: ChainTable,
        kernels: Kernels,
        width: int = 1,
    ) -> None:
        self.num_rows = len(rows)
        self._kernels = kernels
        self._table = table
        self._lengths = np.array([row.suffix_length for row in rows], np.int64)
        store.reserve(int(self._lengths.max()) + width)
        slots = store.slots
        size = slots.element_size()
        layer, part, row, head, _, _ = (stride * size for stride in slots.stride())
        self._slots, self._layer = slots, layer
        self._arguments = Attend(
            order=table.order.ctypes.data, lengths=self._lengths.ctypes.data,
            starts=table.starts.ctypes.data, segments=table.segments.ctypes.data,
            slot_values=part, slot_row=row, slot_head=head,
            rows=len(rows), new_tokens=width, kv_heads=store.num_kv_heads, width=store.width,
            block=_block(len(rows) * store.num_kv_heads), narrow=kind(slots.dtype),
        )  # fmt: skip

    def attend_joined(self, number: int, joined: Joined, out: Tensor) -> None:
        """Write the attention [R * T, H * D] of layer ``number`` to the first rows of ``out``."""
        arguments, shape = self._arguments, joined.shape
        arguments.layer = number
        arguments.slots = self._slots.data_ptr() + number * self._layer
        arguments.joined = joined.values.data_ptr()
        arguments.joined_narrow = kind(joined.values.dtype)
        arguments.scales = None if joined.scales is None else joined.scales.data_ptr()
        arguments.bias = None if joined.bias is None else joined.bias.data_ptr()
        arguments.rotation = joined.rotation.data_ptr()
        norms = joined.layer.head_norms
        arguments.head_norms = None if norms is None else norms.data_ptr()
        arguments.heads, arguments.scale = shape.heads, shape.scale
        arguments.epsilon = shape.epsilon
        arguments.out = out.data_ptr()
        self._kernels.attend(arguments)


class NativeMixedContext:
    """One forward's tokens: one of each decoded row first, then those of the prompts it reads."""

    def __init__(self, decode: NativeDecodeContext, prefill: PrefillContext) -> None:
        self._decode = decode
        self._prefill = prefill

    def attend_joined(self, number: int, joined: Joined, out: Tensor) -> None:
        self._decode.attend_joined(number, joined, out)
        first = self._decode.num_rows
        query, key, value = joined.heads(first, 1, len(out) - first)
        read = self._prefill.attend(number, query, key, value, joined.shape.scale)
        out[first:] = read[0].transpose(0, 1).flatten(1)


def _block(num_items: int) -> int:
    """Return how many rows go to a thread at once: enough pieces to share out evenly."""
    return max(1, min(_MOST_ROWS, num_items // (_PIECES * torch.get_num_threads())))


_MOST_ROWS = 8
_PIECES = 8
