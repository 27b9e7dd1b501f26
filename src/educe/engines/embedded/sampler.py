"""Exact sampling from logits with one counted uniform a row.

Shapes: B rows, V vocabulary. The token is the first whose cumulative probability passes the
uniform (inverse distribution function), found in two levels so that no [B, V] cumulative sum is
made. A row's token depends on its own logits and its own uniform only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from educe.core.protocols import SamplingParameters
from educe.core.seeds import uniforms
from educe.native.kernels import Kernels

_BLOCK = 256
_CHUNK_VALUES = 300_000


def sample(
    logits_BV: Tensor,
    parameters_B: Sequence[SamplingParameters],
    positions_B: Sequence[int],
    kernels: Kernels | None = None,
) -> tuple[list[int], list[float]]:
    """Return one token id and its behaviour log-probability for each row.

    Args:
        logits_BV: raw logits, any float type; computed in fp32 or wider.
        parameters_B: temperature, truncation and seed key of each row.
        positions_B: index of the token within its completion; the counter of the draw.
        kernels: compiled ones, used where no row truncates its distribution.
    """
    device = logits_BV.device
    keys = np.array([p.seed_key for p in parameters_B], np.uint64)
    uniforms_B = uniforms(keys, np.array(positions_B, np.uint64))
    if kernels is not None and not any(p.top_k or p.top_p < 1 for p in parameters_B):
        logits_BV = logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous()
        return kernels.sample(logits_BV, [p.temperature for p in parameters_B], uniforms_B)
    draws = torch.from_numpy(uniforms_B).to(device)
    greedy = torch.tensor([p.temperature == 0 for p in parameters_B], device=device)
    temperatures = torch.tensor([p.temperature or 1.0 for p in parameters_B], device=device)
    size = _chunk_rows(logits_BV)
    chosen, picked = [], []
    for first in range(0, len(logits_BV), size):
        rows = slice(first, first + size)
        tokens, logprobs = _sample_chunk(
            logits_BV[rows], parameters_B[rows], temperatures[rows], greedy[rows], draws[rows]
        )
        chosen.append(tokens)
        picked.append(logprobs)
    return torch.cat(chosen).tolist(), torch.cat(picked).tolist()


def _chunk_rows(logits_BV: Tensor) -> int:
    """On a CPU, as many rows as stay in the cores' caches from one pass over them to the next."""
    if logits_BV.device.type != "cpu":
        return max(1, len(logits_BV))
    return max(1, _CHUNK_VALUES * torch.get_num_threads() // logits_BV.shape[1])


def _sample_chunk(
    logits_BV: Tensor,
    parameters_B: Sequence[SamplingParameters],
    temperatures_B: Tensor,
    greedy_B: Tensor,
    draws_B: Tensor,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(logits_BV.dtype, torch.float32)
    values = logits_BV.to(wide, copy=True)
    if bool((temperatures_B != 1).any()):
        values /= temperatures_B.to(wide).unsqueeze(1)
    if any(p.top_k or p.top_p < 1 for p in parameters_B):
        values = truncate(values, parameters_B)
    values -= values.amax(-1, keepdim=True)
    weights = values.exp_()
    chosen, totals = _inverse(weights, draws_B)
    if bool(greedy_B.any()):
        # The best token's weight is exp(0) = 1; the first of equals wins.
        chosen = torch.where(greedy_B, weights.argmax(-1), chosen)
    picked = weights.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return chosen, (picked.double() / totals).log().to(wide)


def _inverse(weights_BV: Tensor, draws_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the drawn tokens [B] and the sums of the weights [B]."""
    num_rows, vocabulary = weights_BV.shape
    padding = -vocabulary % _BLOCK
    padded = torch.nn.functional.pad(weights_BV, (0, padding)) if padding else weights_BV
    blocks = padded.view(num_rows, -1, _BLOCK)
    block_ends = blocks.sum(-1).double().cumsum(-1)
    totals = block_ends[:, -1]
    target = (draws_B * totals).unsqueeze(1)
    block = (block_ends <= target).sum(-1, keepdim=True).clamp(max=blocks.shape[1] - 1)
    before = torch.where(
        block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), torch.zeros_like(target)
    )
    inner = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK)).squeeze(1).double()
    ends = inner.cumsum(-1)
    within = (ends <= target - before).sum(-1)
    # Rounding at the very end of a block must not pick a token of probability zero.
    last_positive = _BLOCK - 1 - (inner > 0).flip(-1).to(torch.uint8).argmax(-1)
    tokens = block.squeeze(1) * _BLOCK + torch.minimum(within, last_positive)
    return tokens.clamp(max=vocabulary - 1), totals


def truncate(logits_BV: Tensor, parameters_B: Sequence[SamplingParameters]) -> Tensor:
    """Return logits with tokens outside each row's top-k and nucleus at -inf."""
    out = logits_BV.clone()
    for row, parameters in enumerate(parameters_B):
        if parameters.top_k and parameters.top_k < out.shape[1]:
            kept = out[row].topk(parameters.top_k).values[-1]
            out[row, out[row] < kept] = float("-inf")
        if parameters.top_p < 1:
            ordered, index = out[row].sort(descending=True)
            probs = ordered.softmax(-1)
            outside = probs.cumsum(-1) - probs >= parameters.top_p
            out[row, index[outside]] = float("-inf")
    return out
