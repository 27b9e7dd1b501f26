"""Attention over a forest on CUDA by torch's flex attention: one fused kernel, no [T, T] mask.

Shapes: T packed tokens, H query heads, K key/value heads, D head width, B blocks of 128 tokens.

In a pack that is laid out depth first, a token's readers are the tokens from itself to the end of
what descends from its segment. So one number a token says it all: query q sees key k exactly if
k <= q < last[k]. Which blocks are seen at all, and which wholly, follows from the smallest and the
largest ``last`` of a block of keys; the [T, T] matrix is never looked at.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from educe.core.forest import Span

BLOCK = 128
_FEW_TOKENS = 1024
_NARROWEST = 16  # the smallest head that the kernel's products take

_log = logging.getLogger(__name__)
_is_broken = False


def serves(query_1HTD: Tensor) -> bool:
    """Return whether the fused kernel is used: enough tokens, a type and width that it knows."""
    return (
        not _is_broken
        and query_1HTD.device.type == "cuda"
        and query_1HTD.dtype is not torch.float64
        and query_1HTD.shape[2] > _FEW_TOKENS
        and query_1HTD.shape[3] >= _NARROWEST
        and find_spec("triton") is not None
    )


def last_readers(spans: Sequence[Span], device: torch.device) -> Tensor:
    """Return, for each token, one past the last token that may attend to it [T]."""
    sizes = torch.tensor([s.end - s.start for s in spans])
    ends = torch.tensor([s.last for s in spans], dtype=torch.int32)
    return ends.repeat_interleave(sizes).to(device)


def block_mask(last_T: Tensor) -> BlockMask:
    """Return which blocks of keys each block of queries sees, and where to look closer."""
    (length,) = last_T.shape
    count = -(-length // BLOCK)
    missing = count * BLOCK - length
    number = torch.arange(count, device=last_T.device)
    first, end = number * BLOCK, ((number + 1) * BLOCK).clamp(max=length)
    largest = pad(last_T, (0, missing), value=0).view(count, BLOCK).amax(1)
    smallest = pad(last_T, (0, missing), value=length).view(count, BLOCK).amin(1)
    is_below = number[:, None] > number[None, :]  # queries [B, 1], keys [1, B]
    is_whole = is_below & (smallest[None, :] >= end[:, None])
    is_seen = is_below & (largest[None, :] > first[:, None])
    is_partly = (is_seen & ~is_whole) | (number[:, None] == number[None, :])

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < last_T[key])

    return BlockMask.from_kv_blocks(
        *_listed(is_partly), *_listed(is_whole), BLOCK_SIZE=BLOCK, mask_mod=sees,
        seq_lengths=(length, length),
    )  # fmt: skip


def _listed(is_chosen_BB: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each row of blocks has, and which, the chosen ones first."""
    counts = is_chosen_BB.sum(1, dtype=torch.int32)
    order = torch.argsort(is_chosen_BB.int(), dim=1, descending=True, stable=True)
    return counts[None, None], order.to(torch.int32)[None, None]


def flex_forest(
    query_1HTD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, mask: BlockMask, scale: float
) -> Tensor | None:
    """Return the attention [1, H, T, D]; None where the kernel cannot be made here, told once."""
    global _is_broken
    try:
        if torch.is_grad_enabled() and query_1HTD.requires_grad:
            heads, width = query_1HTD.shape[1], query_1HTD.shape[3]
            _try_backward(query_1HTD.device, query_1HTD.dtype, heads, key_1KTD.shape[1], width)
        return _kernel()(
            query_1HTD, key_1KTD, value_1KTD, block_mask=mask, scale=scale, enable_gqa=True
        )
    except Exception as error:  # compilers fail in many ways; the plain formula is always there
        if isinstance(error, torch.OutOfMemoryError):
            raise
        _is_broken = True
        _log.warning("flex attention does not work here, a dense mask is used: %s", error)
        return None


@functools.cache
def _try_backward(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, width: int
) -> None:
    """Go forwards and backwards once over two blocks: the backward kernel is compiled only when it
    is called, where its failure could not be mended any more."""
    length = 2 * BLOCK
    given = [
        torch.zeros(1, count, length, width, device=device, dtype=dtype, requires_grad=True)
        for count in (heads, kv_heads, kv_heads)
    ]
    mask = block_mask(torch.full((length,), length, dtype=torch.int32, device=device))
    with torch.enable_grad():
        out = _kernel()(*given, block_mask=mask, scale=1.0, enable_gqa=True)
        torch.autograd.grad(out.sum(), given)


@functools.cache
def _kernel() -> Callable[..., Tensor]:
    compiled: Any = torch.compile(flex_attention, dynamic=True)
    return cast(Callable[..., Tensor], compiled)
