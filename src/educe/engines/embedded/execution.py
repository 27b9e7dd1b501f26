"""Runs a forward for prefill and decode, and owns the cached keys and values.

Shapes: L layers, K key/value heads, D head width, R rows, T tokens of a prefill, G = H / K.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from educe.engines.embedded.scheduler import CacheBook, PrefillJob, Row
from educe.models.attention import flash_forward, merge
from educe.models.load import LoadedModel

_GROW = 64


class CacheStore:
    """Keys and values: segments [L, 2, 1, K, T, D] by id, and slots [L, 2, R, K, capacity, D]."""

    def __init__(self, config: Any, max_rows: int, dtype: torch.dtype, device: Any) -> None:
        heads = config.num_attention_heads
        self.num_layers: int = config.num_hidden_layers
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", heads)
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.segments: dict[int, Tensor] = {}
        self._shape = (self.num_layers, 2, max_rows, self.num_kv_heads)
        self.width: int = width
        self.slots = torch.zeros((*self._shape, 0, width), dtype=dtype, device=device)

    def reserve(self, capacity: int) -> None:
        """Grow the slots so that each holds ``capacity`` tokens."""
        have = self.slots.shape[4]
        if capacity <= have:
            return
        size = -(-max(capacity, have * 3 // 2) // _GROW) * _GROW
        grown = self.slots.new_zeros((*self._shape, size, self.width))
        grown[:, :, :, :, :have] = self.slots
        self.slots = grown

    def new_segment(self, segment_id: int, length: int) -> Tensor:
        shape = (self.num_layers, 2, 1, self.num_kv_heads, length, self.width)
        self.segments[segment_id] = self.slots.new_empty(shape)
        return self.segments[segment_id]

    def freeze(self, segment_id: int, slot: int, length: int) -> None:
        """Keep a slot's first ``length`` tokens as a segment."""
        self.segments[segment_id] = self.slots[:, :, slot : slot + 1, :, :length].clone()

    def move(self, source: int, target: int, length: int) -> None:
        self.slots[:, :, target, :, :length] = self.slots[:, :, source, :, :length]

    def forget(self, segment_ids: Sequence[int]) -> None:
        for segment_id in segment_ids:
            self.segments.pop(segment_id, None)


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
                past = self.store.segments[segment_id][layer]
                more, more_lse = flash_forward(query, past[0], past[1], False, scale)
                out, lse = merge(out.to(lse.dtype), lse, more.to(lse.dtype), more_lse)
            outs.append(out.to(query.dtype))
        return torch.cat(outs, dim=2)


class _Level:
    """The segments at one depth of the rows' chains, each read once for all rows that share it.

    Rows are sorted by segment once a step, so that a layer gathers its queries once, attends to
    each segment with a slice of them, and scatters once.
    """

    def __init__(self, runs: list[tuple[int, int, int]], order: Tensor, back: Tensor) -> None:
        self.runs = runs  # (segment id, first, end) among the sorted rows
        self.order = order
        self.back = back  # place of each row among the sorted ones; one past them: no segment here

    @staticmethod
    def build(chains: Sequence[tuple[int, ...]], level: int, device: torch.device) -> _Level:
        rows = [r for r, chain in enumerate(chains) if len(chain) > level]
        rows.sort(key=lambda r: chains[r][level])
        runs: list[tuple[int, int, int]] = []
        for place, row in enumerate(rows):
            segment_id = chains[row][level]
            first = runs.pop()[1] if runs and runs[-1][0] == segment_id else place
            runs.append((segment_id, first, place + 1))
        back = [len(rows)] * len(chains)
        for place, row in enumerate(rows):
            back[row] = place
        return _Level(runs, torch.tensor(rows, device=device), torch.tensor(back, device=device))

    def attend(
        self, store: CacheStore, layer: int, query: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [R, K, G, D] and log-sum-exps [R, K, G] for queries [R, K, G, D].

        Rows without a segment here get log-sum-exp -inf, which a merge ignores.
        """
        _, kv_heads, group, width = query.shape
        stacked = query[self.order].transpose(0, 1).reshape(1, kv_heads, -1, width)
        outs, lses = [], []
        for segment_id, first, end in self.runs:
            past = store.segments[segment_id][layer]
            out, lse = flash_forward(
                stacked[:, :, first * group : end * group], past[0], past[1], False, scale
            )
            outs.append(out.to(lse.dtype))
            lses.append(lse)
        if len(self.order) < len(self.back):
            outs.append(outs[0].new_zeros(1, kv_heads, group, width))
            lses.append(lses[0].new_full((1, kv_heads, group), float("-inf")))
        out = torch.cat(outs, 2).view(kv_heads, -1, group, width).transpose(0, 1)
        lse = torch.cat(lses, 2).view(kv_heads, -1, group).transpose(0, 1)
        return out[self.back], lse[self.back]


class DecodeContext:
    """Attention of one new token for each row: its own slot, then the segments of its chain.

    A segment's keys are read once for all rows that share it. ``exact`` computes each row alone,
    so that no other row can change a bit of it.
    """

    def __init__(self, store: CacheStore, rows: Sequence[Row], exact: bool) -> None:
        self.store = store
        self.exact = exact
        self.chains = [row.chain for row in rows]
        # The newest token sits behind the tokens already in the slot.
        self.lengths = [row.suffix_length + 1 for row in rows]
        store.reserve(max(self.lengths))
        device = store.slots.device
        self.index = torch.arange(len(rows), device=device)
        self.ends = torch.tensor(self.lengths, device=device) - 1
        extent = min(-(-max(self.lengths) // 16) * 16, store.slots.shape[4])
        self.extent = extent
        outside = torch.arange(extent, device=device) > self.ends.unsqueeze(1)
        self.bias = torch.zeros(len(rows), 1, 1, extent, dtype=store.slots.dtype, device=device)
        self.bias.masked_fill_(outside[:, None, None, :], float("-inf"))
        depth = max((len(chain) for chain in self.chains), default=0)
        self.levels = [_Level.build(self.chains, level, device) for level in range(depth)]

    def attend(
        self, layer: int, query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, scale: float
    ) -> Tensor:
        num_rows = len(self.chains)
        padded, heads, _, width = query_1HTD.shape
        kv_heads = key_1KTD.shape[1]
        keys, values = self.store.slots[layer, 0], self.store.slots[layer, 1]
        keys[self.index, :, self.ends] = key_1KTD[:num_rows, :, 0]
        values[self.index, :, self.ends] = value_1KTD[:num_rows, :, 0]
        query = query_1HTD[:num_rows, :, 0].reshape(num_rows, kv_heads, heads // kv_heads, width)
        if self.exact:
            out = self._alone(layer, query, keys, values, scale)
        else:
            out = self._together(layer, query, keys, values, scale)
        result = query_1HTD.new_zeros(padded, heads, 1, width)
        result[:num_rows, :, 0] = out.reshape(num_rows, heads, width).to(result.dtype)
        return result

    def _together(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        num_rows = len(query)
        out, lse = masked_attention(
            query,
            keys[:num_rows, :, : self.extent],
            values[:num_rows, :, : self.extent],
            self.bias,
            scale,
        )
        for level in self.levels:
            more, more_lse = level.attend(self.store, layer, query, scale)
            out, lse = merge(out, lse, more, more_lse)
        return out

    def _alone(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        outs = []
        for row, (chain, length) in enumerate(zip(self.chains, self.lengths, strict=True)):
            one = query[row : row + 1]
            own = (slice(row, row + 1), slice(None), slice(0, length))
            out, lse = flash_forward(one, keys[own], values[own], False, scale)
            out = out.to(lse.dtype)
            for segment_id in chain:
                past = self.store.segments[segment_id][layer]
                more, more_lse = flash_forward(one, past[0], past[1], False, scale)
                out, lse = merge(out, lse, more.to(lse.dtype), more_lse)
            outs.append(out)
        return torch.cat(outs)


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention with an additive mask and its log-sum-exp, in fp32 or wider."""
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=bias, scale=scale
        )
        return out.to(lse.dtype), lse
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-1, -2)).to(wide) * scale + bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().to(value.dtype)
    return (weights @ value).to(wide), lse


class Forward(Protocol):
    """Tokens to hidden states to logits; keeps no cache of its own."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the keys and values that ``hidden`` hands to the context."""
        ...

    def load(self) -> None:
        """Read the module's weights again."""
        ...

    def hidden(self, tokens_BT: Tensor, positions_BT: Tensor, context: Any) -> Tensor:
        """Return states [B, T, W]."""
        ...

    def logits(self, hidden_NW: Tensor) -> Tensor:
        """Return logits [N, V]."""
        ...


class ModuleForward:
    """The module itself: the reference path of every engine.

    With a ``dtype`` of its own it works on a copy, else on the trainer's own tensors.
    """

    def __init__(self, model: LoadedModel, dtype: torch.dtype | None) -> None:
        self._source = model
        self._copies = dtype is not None and dtype != model.head_weight().dtype
        if self._copies:
            causal = copy.deepcopy(model.causal).to(dtype)
            model = replace(model, causal=causal, adapter=None)
        self._model = model

    @property
    def dtype(self) -> torch.dtype:
        return self._model.head_weight().dtype

    @torch.no_grad()
    def load(self) -> None:
        if self._copies:
            pairs = zip(
                self._model.causal.parameters(), self._source.causal.parameters(), strict=True
            )
            for mine, theirs in pairs:
                mine.copy_(theirs)

    def hidden(self, tokens_BT: Tensor, positions_BT: Tensor, context: Any) -> Tensor:
        return self._model.hidden(tokens_BT, positions_BT, context)

    def logits(self, hidden_NW: Tensor) -> Tensor:
        logits: Tensor = hidden_NW @ self._model.head_weight().T
        return logits


class Runner:
    """Computes the logits that rows are sampled from, and fills the cache."""

    def __init__(
        self, forward: Forward, config: Any, device: torch.device, max_rows: int, exact: bool
    ) -> None:
        self.forward = forward
        self.exact = exact
        self.device = device
        # exact mode pads decode rows to the count from which a row's bits stop depending on it.
        self.row_multiple = 8 if exact else 1
        self.store = CacheStore(config, max_rows, forward.dtype, device)

    @torch.no_grad()
    def prefill(self, jobs: Sequence[PrefillJob], book: CacheBook) -> tuple[Tensor, list[int]]:
        """Compute the jobs' tokens; return the logits after each job's last token and segments."""
        kept, segment_ids = [], []
        for job in jobs:
            segment = book.add(job.start, job.token_ids)
            segment_ids.append(segment.segment_id)
            kept.append((job, self.store.new_segment(segment.segment_id, len(job.token_ids))))
        tokens = [t for job in jobs for t in job.token_ids]
        positions = [job.start + i for job in jobs for i in range(len(job.token_ids))]
        hidden = self.forward.hidden(
            torch.tensor([tokens], device=self.device),
            torch.tensor([positions], device=self.device),
            PrefillContext(self.store, kept),
        )
        ends = torch.tensor([len(job.token_ids) for job in jobs], device=self.device).cumsum(0) - 1
        return self._logits(hidden[0, ends]), segment_ids

    @torch.no_grad()
    def decode(self, rows: Sequence[Row]) -> Tensor:
        """Return the logits [R, V] after each row's newest token."""
        padding = -len(rows) % self.row_multiple
        tokens = [[row.token_ids[-1]] for row in rows] + [[0]] * padding
        positions = [[row.prefix_length + row.suffix_length] for row in rows] + [[0]] * padding
        hidden = self.forward.hidden(
            torch.tensor(tokens, device=self.device),
            torch.tensor(positions, device=self.device),
            DecodeContext(self.store, rows, self.exact),
        )
        return self._logits(hidden[:, 0])[: len(rows)]

    def _logits(self, hidden: Tensor) -> Tensor:
        if self.exact and len(hidden) < self.row_multiple:
            padded = hidden.new_zeros(self.row_multiple, hidden.shape[1])
            padded[: len(hidden)] = hidden
            return self._logits(padded)[: len(hidden)]
        return self.forward.logits(hidden)
