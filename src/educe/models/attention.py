"""Attention over forests of segments, plugged into transformers' attention interface.

Shapes: T packed tokens, H query heads, K key/value heads, D head width.

A pack is one row of T tokens laid out depth first: each segment is followed at once by everything
that descends from it. A token attends to the tokens before it in its own segment and to all tokens
of its segment's ancestors. So each segment needs one causal call for itself and, if anything
descends from it, one dense call whose queries are all its descendants together; the parts are
merged by their log-sum-exp. A shared prompt is thereby computed once, forwards and backwards.

The context travels in the forward's keyword arguments (``educe_context=``), never in a global: a
checkpointed layer recomputes with the pack it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface

from educe.core.forest import Span
from educe.models import flex
from educe.models.activations import Shelf, Take
from educe.native.kernels import Kernels, kernels
from educe.native.tables import ForestTable, TiledTable

ATTENTION_NAME = "educe"


class AttentionContext(Protocol):
    """What the attention function asks for the layer's output."""

    def attend(
        self, layer: int, query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, scale: float
    ) -> Tensor:
        """Return the attention output [1, H, T, D]."""
        ...


def attention_function(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    educe_context: AttentionContext | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers; returns ([1, T, H, D], None)."""
    if educe_context is None:
        raise ValueError("a module with educe's attention needs the keyword educe_context=")
    if dropout:
        raise ValueError(f"shared segments need attention dropout 0, got {dropout}")
    if query.dtype != value.dtype:
        # Under autocast the rotary embedding leaves queries and keys wide.
        query, key = query.to(value.dtype), key.to(value.dtype)
    out = educe_context.attend(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, attention_function)


def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention with its log-sum-exp: ([N, H, Q, D], [N, H, Q] in fp32 or wider).

    The CPU operator is private to torch; ``tests/models/test_attention.py`` pins its behaviour.
    Elsewhere the plain formula is used.
    """
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return cast(Tensor, out), cast(Tensor, lse)
    return plain_attention(query, key, value, causal, scale)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The same by the plain formula, differentiable, on any device."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-1, -2)).to(wide) * scale
    if causal:
        keep = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(~keep.tril(), float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().to(value.dtype)
    return weights @ value, lse


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Combine attention over two disjoint key sets: outputs [..., D], log-sum-exps [...]."""
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a = (lse_a - lse).exp().unsqueeze(-1)
    weight_b = (lse_b - lse).exp().unsqueeze(-1)
    return out_a * weight_a + out_b * weight_b, lse


@dataclass(frozen=True, slots=True)
class _Batch:
    """Segments of similar length, computed in one causal call of N rows of L tokens.

    Packed tensors are [1, H, T, …] to the kernel, but token after token in memory, as the
    projections make them: so a token moves as one run of H * D numbers.

    ``index`` [N * L] says which packed token stands where; places past a segment's end repeat
    token 0 and are not ``kept``. Causality keeps them from every real query, and their gradient
    rows are zero. Segments of one length that follow each other, and one alone, are a ``run``: they
    are read where they lie, without a copy.
    """

    index: Tensor
    kept: Tensor | None
    num_rows: int
    length: int
    run: slice | None = None

    def take(self, packed_1HTD: Tensor) -> Tensor:
        """Return [N, H, L, D] of a packed tensor."""
        tokens = packed_1HTD[0].transpose(0, 1)
        picked = tokens.index_select(0, self.index) if self.run is None else tokens[self.run]
        return picked.view(self.num_rows, self.length, *tokens.shape[1:]).transpose(1, 2)

    def put(self, packed_1HT: Tensor, rows_NHL: Tensor) -> None:
        """Write rows [N, H, L, …] to their places of a packed tensor."""
        if self.run is not None:
            self.take(packed_1HT).copy_(rows_NHL)
            return
        flat, places = rows_NHL.transpose(1, 2).flatten(0, 1), self.index
        if self.kept is not None:
            flat, places = flat.index_select(0, self.kept), places.index_select(0, self.kept)
        packed_1HT[0].transpose(0, 1).index_copy_(0, places, flat)


def _packed_like(whole_1HT: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zeros of this shape that lie token after token in memory."""
    order = whole_1HT.transpose(1, 2)
    return torch.zeros(order.shape, dtype=dtype, device=whole_1HT.device).transpose(1, 2)


def _batches(spans: Sequence[Span]) -> list[_Batch]:
    """Group segments into batches that waste less than half their places."""
    by_size: dict[int, list[Span]] = {}
    for span in spans:
        by_size.setdefault((span.end - span.start - 1).bit_length(), []).append(span)
    out = []
    for members in by_size.values():
        length = max(s.end - s.start for s in members)
        offsets = torch.arange(length)
        starts = torch.tensor([s.start for s in members]).unsqueeze(1)
        sizes = torch.tensor([s.end - s.start for s in members]).unsqueeze(1)
        inside = (offsets < sizes).flatten()
        index = torch.where(offsets < sizes, starts + offsets, torch.zeros_like(starts)).flatten()
        kept = None if bool(inside.all()) else inside.nonzero().squeeze(1)
        out.append(_Batch(index, kept, len(members), length, _run(members)))
    return out


def _run(spans: Sequence[Span]) -> slice | None:
    """Return where segments of one length that follow each other lie, None for others."""
    length = spans[0].end - spans[0].start
    for number, span in enumerate(spans):
        start = spans[0].start + number * length
        if (span.start, span.end) != (start, start + length):
            return None
    return slice(spans[0].start, spans[-1].end)


class _CpuForest(torch.autograd.Function):
    """Forest attention on CPU through the flash kernel and its own backward.

    Gives the output and its log-sum-exp; ``known`` ones are not computed again. The kernel's
    backward is right for a part of the keys when it is fed the *merged* output and log-sum-exp,
    since softmax weights are exp(score - merged lse).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        spans: Sequence[Span],
        batches: Sequence[_Batch],
        known: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = known or _forest(query, key, value, scale, spans, batches)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale, ctx.spans, ctx.batches = scale, spans, batches
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        *given, out, lse = ctx.saved_tensors
        wide = lse.dtype
        query, key, value = (x.to(wide) for x in given)
        out, grad_out = out.to(wide), grads[0].to(wide)
        if grad_out.stride(-1) != 1:
            grad_out = grad_out.contiguous()  # the kernel reads a token's head as one run
        into = [_packed_like(x, wide) for x in (query, key, value)]
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        for batch in ctx.batches:
            rows = [batch.take(x) for x in (grad_out, query, key, value, out)]
            row_lse = batch.take(lse.unsqueeze(-1)).squeeze(-1).contiguous()
            if batch.kept is not None:
                # Places past a segment's end hold token 0; their gradient must be zero.
                inside = torch.zeros(batch.num_rows * batch.length, dtype=grad_out.dtype)
                inside[batch.kept] = 1
                rows[0] = rows[0] * inside.view(batch.num_rows, 1, batch.length, 1)
            parts = backward(*rows, row_lse, 0.0, True, scale=ctx.scale)
            # No token is in two batches.
            for whole, part in zip(into, parts, strict=True):
                batch.put(whole, part)
        for span in ctx.spans:
            if span.last == span.end:
                continue
            own, below = slice(span.start, span.end), slice(span.end, span.last)
            dq, dk, dv = backward(
                grad_out[:, :, below],
                query[:, :, below],
                key[:, :, own],
                value[:, :, own],
                out[:, :, below],
                lse[:, :, below].contiguous(),
                0.0,
                False,
                scale=ctx.scale,
            )
            into[0][:, :, below] += dq
            into[1][:, :, own] += dk
            into[2][:, :, own] += dv
        q, k, v = (x.to(y.dtype) for x, y in zip(into, given, strict=True))
        return q, k, v, None, None, None, None


def _forest(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    spans: Sequence[Span],
    batches: Sequence[_Batch],
) -> tuple[Tensor, Tensor]:
    """Return the output [1, H, T, D] in the inputs' type and its log-sum-exp [1, H, T]."""
    narrow = query.dtype
    # The kernel's backward is several times slower in bf16 than in fp32 (docs/log.md).
    wide = torch.promote_types(narrow, torch.float32)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    out = _packed_like(query, wide)
    lse = _packed_like(query[..., 0], wide)
    for batch in batches:
        part, part_lse = flash_forward(
            batch.take(query), batch.take(key), batch.take(value), True, scale
        )
        batch.put(out, part)
        batch.put(lse, part_lse)
    for span in spans:
        if span.last == span.end:
            continue
        own, below = slice(span.start, span.end), slice(span.end, span.last)
        part, part_lse = flash_forward(
            query[:, :, below], key[:, :, own], value[:, :, own], False, scale
        )
        # As ``merge``, in place: the sets' own weights are a sigmoid of their sums apart.
        share = torch.sigmoid(part_lse - lse[:, :, below]).unsqueeze(-1)
        out[:, :, below].lerp_(part, share)
        lse[:, :, below] = torch.logaddexp(lse[:, :, below], part_lse)
    return out.to(narrow), lse


def forest_mask(spans: Sequence[Span], device: torch.device | str = "cpu") -> Tensor:
    """Return the dense boolean mask [T, T] (true = may attend) of a forest; the test oracle."""
    total = max(span.last for span in spans)
    allowed = torch.zeros(total, total, dtype=torch.bool, device=device)
    for span in spans:
        length = span.end - span.start
        causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        allowed[span.start : span.end, span.start : span.end] = causal
        allowed[span.end : span.last, span.start : span.end] = True
    return allowed


class _NativeForest(torch.autograd.Function):
    """Forest attention by the compiled kernels: no batch of segments, no padding, no copies.

    Gives the output and its log-sum-exp as :class:`_CpuForest` does. The kind of table says which
    kernels: for short segments in fp32, or in bf16 on matrix tiles.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        table: ForestTable | TiledTable,
        native: Kernels,
        known: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        if known is None:
            q, k, v = (_by_token(x) for x in (query, key, value))
            if isinstance(table, TiledTable):
                rows, sums = native.tiled_forward(table, q, k, v, scale)
            else:
                rows, sums = native.forest_forward(table, q, k, v, scale)
            known = rows.unsqueeze(0).transpose(1, 2), sums.unsqueeze(0)
        out, lse = known
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale, ctx.table, ctx.native = scale, table, native
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        is_tiled = isinstance(ctx.table, TiledTable)
        backward = ctx.native.tiled_backward if is_tiled else ctx.native.forest_backward
        found = backward(
            ctx.table,
            (_by_token(query), _by_token(key), _by_token(value)),
            _by_token(out),
            lse[0],
            _by_token(grads[0]),
            ctx.scale,
        )
        return *(x.unsqueeze(0).transpose(1, 2) for x in found), None, None, None, None


def _by_token(packed_1HTD: Tensor) -> Tensor:
    """Return [T, H, D], token after token in memory, as projections make them."""
    return packed_1HTD[0].transpose(0, 1).contiguous()


class ForestContext:
    """Attention of a packed forest, for training and scoring. ``spans`` cover all T tokens.

    Args:
        shelf: keeps each layer's output and log-sum-exp, so that a layer that is recomputed for the
            backward takes them from there; None where no layer is.
    """

    def __init__(self, spans: Sequence[Span], shelf: Shelf | None = None) -> None:
        self.spans = tuple(spans)
        self._batches = _batches(self.spans)
        self._table: ForestTable | None = None
        self._tiled: TiledTable | None = None
        self._is_short = _keys_a_query(self.spans) <= _FEW_KEYS
        self._mask: Tensor | None = None
        self._blocks: BlockMask | None = None
        self._shelf = shelf
        self._known: dict[int, tuple[Take, Take]] = {}

    def attend(
        self, layer: int, query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, scale: float
    ) -> Tensor:
        if query_1HTD.device.type == "cpu":
            takes = self._known.pop(layer, None)
            known = None if takes is None else (takes[0](), takes[1]())
            out, lse = self._on_cpu(query_1HTD, key_1KTD, value_1KTD, scale, known)
            if self._shelf is not None and takes is None and out.requires_grad:
                self._known[layer] = self._shelf.put(out.detach()), self._shelf.put(lse)
            return out
        if flex.serves(query_1HTD):
            if self._blocks is None:
                self._blocks = flex.block_mask(flex.last_readers(self.spans, query_1HTD.device))
            fused = flex.flex_forest(query_1HTD, key_1KTD, value_1KTD, self._blocks, scale)
            if fused is not None:
                return fused
        if self._mask is None:
            self._mask = forest_mask(self.spans, query_1HTD.device)
        return torch.nn.functional.scaled_dot_product_attention(
            query_1HTD, key_1KTD, value_1KTD, self._mask, scale=scale, enable_gqa=True
        )

    def _on_cpu(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        known: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        native = _serving(query, key, value)
        table = None if native is None else self._table_of(native, query)
        if table is None:
            apply = cast(Callable[..., tuple[Tensor, Tensor]], _CpuForest.apply)
            return apply(query, key, value, scale, self.spans, self._batches, known)
        apply = cast(Callable[..., tuple[Tensor, Tensor]], _NativeForest.apply)
        return apply(query, key, value, scale, table, native, known)

    def _table_of(self, native: Kernels, query: Tensor) -> ForestTable | TiledTable | None:
        """Return the table of the kernels that are fastest here, None for torch's."""
        if query.dtype == torch.bfloat16 and native.can_tile(query.shape[-1]):
            self._tiled = self._tiled or TiledTable(self._bounds())
            return self._tiled
        if self._is_short:
            self._table = self._table or ForestTable(self._bounds())
            return self._table
        return None

    def _bounds(self) -> list[tuple[int, int, int]]:
        return [(span.start, span.end, span.last) for span in self.spans]


def _keys_a_query(spans: Sequence[Span]) -> float:
    """Return how many tokens a token sees, in the mean."""
    above: list[Span] = []
    pairs = num_tokens = 0
    for span in spans:
        while above and above[-1].last <= span.start:
            above.pop()
        length = span.end - span.start
        pairs += length * (sum(s.end - s.start for s in above) + (length + 1) // 2)
        num_tokens += length
        above.append(span)
    return pairs / max(1, num_tokens)


_FEW_KEYS = 512
"""Beyond, the flash kernel's matrix products win. Forward and backward of a layer, bf16, two cores,
ours against its own (``benchmarks/native_attention.py``): five prompts of 110 with eight answers of
73, 67 against 140 ms; 64 segments of 64 tokens 32 against 30; one segment of 2,048 (1,024 keys a
query) 188 against 137."""


def _serving(query: Tensor, key: Tensor, value: Tensor) -> Kernels | None:
    """Return the compiled kernels where they can read these."""
    same = query.dtype is key.dtype is value.dtype
    if not same or query.dtype not in (torch.float32, torch.bfloat16) or query.shape[0] != 1:
        return None
    native = kernels()
    return native if native is not None and native.can_attend(query.shape[-1]) else None
