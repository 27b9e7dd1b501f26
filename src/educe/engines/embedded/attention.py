"""Attention of prefill and decode over the cache.

Shapes: K key/value heads, G query heads each serves, D head width, R rows, T tokens of a prefill,
P segments of a shelf, n rows that share a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from educe.engines.embedded.arrangement import best_plan
from educe.engines.embedded.cache import CacheStore, Shelf
from educe.engines.embedded.scheduler import PrefillJob, Row
from educe.models.attention import flash_forward, merge

# What is read of the slots grows in such steps. On CUDA a step's shapes are recorded (``graphs``),
# and places that are masked cost less than another recording.
_EXTENT_STEP, _EXTENT_STEP_CUDA = 16, 128


class PrefillContext:
    """Attention of freshly read prompt tokens: causal among themselves, dense on their chain."""

    def __init__(self, store: CacheStore, jobs: Sequence[tuple[PrefillJob, Tensor]]) -> None:
        self.store = store
        self.jobs = jobs

    def attend(
        self, layer: int, query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, scale: float
    ) -> Tensor:
        outs = []
        cursor = 0
        for job, kept in self.jobs:
            own = slice(cursor, cursor + len(job.token_ids))
            cursor = own.stop
            query, key, value = query_1HTD[:, :, own], key_1KTD[:, :, own], value_1KTD[:, :, own]
            kept[layer, 0], kept[layer, 1] = key, value
            out, lse = flash_forward(query, key, value, True, scale)
            for segment_id in job.chain:
                past = self.store.segment(segment_id)[layer]
                more, more_lse = flash_forward(query, past[0], past[1], False, scale)
                out, lse = merge(out.to(lse.dtype), lse, more.to(lse.dtype), more_lse)
            outs.append(out.to(query.dtype))
        return torch.cat(outs, dim=2)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One attention call: all segments of a shelf, each by the rows whose chain holds it.

    ``index`` [P * K * n] picks query rows among [R * K]; a segment read by fewer than n rows
    repeats row 0, whose results nobody takes.
    """

    shelf: Shelf
    index: Tensor
    num_readers: int


class Level:
    """The segments at one depth of the rows' chains: every shelf is read once for all rows."""

    def __init__(
        self,
        store: CacheStore,
        chains: Sequence[tuple[int, ...]],
        depth: int,
        device: torch.device,
    ) -> None:
        readers: dict[int, list[int]] = {}
        for row, chain in enumerate(chains):
            if len(chain) > depth:
                readers.setdefault(chain[depth], []).append(row)
        shelves, placed = store.placed({s: len(rows) for s, rows in readers.items()})
        self._store = store
        self._shelves = shelves
        self.plan = best_plan(placed)
        by_shelf: dict[int, tuple[Shelf, dict[int, list[int]]]] = {}
        for segment_id, rows in readers.items():
            shelf, place = store.shelf_of(segment_id)
            by_shelf.setdefault(id(shelf), (shelf, {}))[1][place] = rows
        heads = store.num_kv_heads
        num_results = sum(
            len(shelf.lengths) * heads * max(map(len, places.values()))
            for shelf, places in by_shelf.values()
        )
        # Where each (row, head) finds its result; one past the last: it has no segment here.
        back = torch.full((len(chains), heads), num_results)
        self.readings: list[_Reading] = []
        offset = 0
        head = torch.arange(heads)
        for shelf, places in by_shelf.values():
            count = max(map(len, places.values()))
            index = torch.zeros(len(shelf.lengths), heads, count, dtype=torch.long)
            for place, rows in places.items():
                wanted = torch.tensor(rows)
                index[place, :, : len(rows)] = wanted * heads + head.unsqueeze(1)
                first = offset + place * heads * count + head * count
                back[wanted] = first + torch.arange(len(rows)).unsqueeze(1)
            offset += index.numel()
            self.readings.append(_Reading(shelf, index.flatten().to(device), count))
        self.is_whole = bool((back < num_results).all())
        self._back = back.flatten().to(device)

    def rearrange(self) -> None:
        """Lay what is read side by side, as planned; this level is of no use afterwards."""
        self._store.rearrange(self._shelves, self.plan)

    def attend(self, layer: int, query_RKGD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return outputs [R, K, G, D] and log-sum-exps [R, K, G].

        Rows without a segment here get log-sum-exp -inf, which a merge ignores.
        """
        num_rows, heads, group, width = query_RKGD.shape
        flat = query_RKGD.reshape(num_rows * heads, group * width)
        outs, lses = [], []
        for reading in self.readings:
            shelf = reading.shelf
            query = flat.index_select(0, reading.index).view(
                len(shelf.lengths), heads, reading.num_readers * group, width
            )
            key, value = shelf.layers[layer]
            if shelf.bias is None:
                out, lse = flash_forward(query, key, value, False, scale)
            else:
                out, lse = masked_attention(query, key, value, shelf.bias, scale)
            # The kernel lays its output out as [P, queries, K, D].
            outs.append(out.reshape(-1, group * width))
            lses.append(lse.reshape(-1, group))
        if not self.is_whole:
            outs.append(outs[0].new_zeros(1, group * width))
            lses.append(lses[0].new_full((1, group), float("-inf")))
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        lse = lses[0] if len(lses) == 1 else torch.cat(lses)
        out = out.index_select(0, self._back).view(num_rows, heads, group, width)
        return out, lse.index_select(0, self._back).view(num_rows, heads, group)


class DecodeContext:
    """Attention of each row's newest tokens: its own slot, then the segments of its chain.

    ``exact`` computes each row alone, so that no other row can change a bit of it.

    Args:
        width: new tokens of each row, T; more than one where drafts are tried.
    """

    def __init__(
        self,
        store: CacheStore,
        rows: Sequence[Row],
        levels: Sequence[Level],
        exact: bool,
        width: int = 1,
    ) -> None:
        self.store = store
        self.exact = exact
        self.levels = levels
        self.chains = [row.chain for row in rows]
        # The newest tokens sit behind the tokens already in the slot.
        self.lengths = [row.suffix_length + width for row in rows]
        store.reserve(max(self.lengths))
        device = store.slots.device
        capacity, heads = store.slots.shape[4], store.num_kv_heads
        firsts = torch.tensor(self.lengths) - width
        # (row, key or value, head, token) -> its place among the slots of a layer, a vector each.
        part = torch.arange(2)[None, :, None] * store.max_rows * heads
        place = part + torch.arange(len(rows))[:, None, None] * heads + torch.arange(heads)
        ends = firsts.unsqueeze(1) + torch.arange(width)
        self.places = (place.unsqueeze(3) * capacity + ends[:, None, None]).flatten().to(device)
        step = _EXTENT_STEP_CUDA if device.type == "cuda" else _EXTENT_STEP
        extent = min(-(-max(self.lengths) // step) * step, capacity)
        self.extent = extent
        bias = torch.zeros(len(rows), 1, width, extent, dtype=store.slots.dtype)
        outside = torch.arange(extent) > ends.unsqueeze(2)
        self.bias = bias.masked_fill_(outside[:, None], float("-inf")).to(device)
        self._own = store.own(len(rows), extent)

    def attend(
        self, layer: int, query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, scale: float
    ) -> Tensor:
        num_rows = len(self.chains)
        padded, heads, length, width = query_1HTD.shape
        kv_heads = key_1KTD.shape[1]
        query, key, value = query_1HTD, key_1KTD, value_1KTD
        if padded != num_rows:
            query, key, value = query[:num_rows], key[:num_rows], value[:num_rows]
        fresh = torch.cat([key, value], 1).view(-1, width)
        self.store.flat_slots[layer].index_copy_(0, self.places, fresh)
        # A head's queries of all new tokens lie side by side: [R, K, G * T, D].
        query = query.reshape(num_rows, kv_heads, -1, width)
        out = (self._alone if self.exact else self._together)(layer, query, scale)
        out = out.to(query_1HTD.dtype).reshape(num_rows, heads, length, width)
        if padded == num_rows:
            return out
        return torch.cat([out, out.new_zeros(padded - num_rows, heads, length, width)])

    def _together(self, layer: int, query: Tensor, scale: float) -> Tensor:
        key, value = self._own[layer]
        bias = self.bias
        if bias.shape[2] > 1:
            bias = bias.repeat(1, 1, query.shape[2] // bias.shape[2], 1)
        out, lse = masked_attention(query, key, value, bias, scale)
        for number, level in enumerate(self.levels):
            more, more_lse = level.attend(layer, query, scale)
            # Softmax over two disjoint key sets: the sets' own weights are a sigmoid apart.
            share = torch.sigmoid(more_lse - lse).unsqueeze(-1)
            out = torch.lerp(out.to(lse.dtype), more.to(lse.dtype), share)
            if number + 1 < len(self.levels):
                lse = torch.logaddexp(lse, more_lse)
        return out

    def _alone(self, layer: int, query: Tensor, scale: float) -> Tensor:
        outs = []
        key, value = self._own[layer]
        for row, (chain, length) in enumerate(zip(self.chains, self.lengths, strict=True)):
            one = query[row : row + 1]
            own = slice(row, row + 1)
            out, lse = flash_forward(
                one, key[own, :, :length], value[own, :, :length], False, scale
            )
            out = out.to(lse.dtype)
            for segment_id in chain:
                past = self.store.segment(segment_id)[layer]
                more, more_lse = flash_forward(one, past[0], past[1], False, scale)
                out, lse = merge(out, lse, more.to(lse.dtype), more_lse)
            outs.append(out)
        return torch.cat(outs)


class MixedContext:
    """One forward's tokens: one of each decoded row first, then those of the prompts it reads.

    The matrix products of a step are then paid once, not once for decode and once for prefill.
    """

    def __init__(self, decode: DecodeContext, prefill: PrefillContext) -> None:
        self._decode = decode
        self._prefill = prefill

    def attend(
        self, layer: int, query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, scale: float
    ) -> Tensor:
        count = len(self._decode.chains)

        def rows(packed: Tensor) -> Tensor:
            return packed[0, :, :count].transpose(0, 1).unsqueeze(2)

        decoded = self._decode.attend(
            layer, rows(query_1HTD), rows(key_1KTD), rows(value_1KTD), scale
        )
        read = self._prefill.attend(
            layer, query_1HTD[:, :, count:], key_1KTD[:, :, count:], value_1KTD[:, :, count:], scale
        )
        return torch.cat([decoded.squeeze(2).transpose(0, 1).unsqueeze(0), read], dim=2)


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention with an additive mask and its log-sum-exp (fp32 or wider)."""
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=bias, scale=scale
        )
        return out, lse
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-1, -2)).to(wide) * scale + bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().to(value.dtype)
    return weights @ value, lse
