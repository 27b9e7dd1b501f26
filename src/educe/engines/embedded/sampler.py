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

_BLOCK = 256


def sample(
    logits_BV: Tensor, parameters_B: Sequence[SamplingParameters], positions_B: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return one token id and its behaviour log-probability for each row.

    Args:
        logits_BV: raw logits, any float type; computed in fp32 or wider.
        parameters_B: temperature, truncation and seed key of each row.
        positions_B: index of the token within its completion; the counter of the draw.
    """
    wide = torch.promote_types(logits_BV.dtype, torch.float32)
    device = logits_BV.device
    greedy = [p.temperature == 0 for p in parameters_B]
    scale = torch.tensor(
        [1.0 if g else p.temperature for p, g in zip(parameters_B, greedy, strict=True)],
        dtype=wide,
        device=device,
    )
    logits = logits_BV.to(wide) / scale.unsqueeze(1)
    if any(p.top_k or p.top_p < 1 for p in parameters_B):
        logits = truncate(logits, parameters_B)
    logprobs = logits.log_softmax(-1)
    keys = np.array([p.seed_key for p in parameters_B], np.uint64)
    draws = torch.from_numpy(uniforms(keys, np.array(positions_B, np.uint64))).to(device)
    chosen = _inverse(logprobs.exp(), draws)
    if any(greedy):
        best = logprobs.argmax(-1)
        chosen = torch.where(torch.tensor(greedy, device=device), best, chosen)
    picked = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return chosen.tolist(), picked.tolist()


def _inverse(probs_BV: Tensor, draws_B: Tensor) -> Tensor:
    num_rows, vocabulary = probs_BV.shape
    padded = torch.nn.functional.pad(probs_BV, (0, -vocabulary % _BLOCK))
    blocks = padded.view(num_rows, -1, _BLOCK)
    block_ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = (draws_B * block_ends[:, -1]).unsqueeze(1)
    block = (block_ends <= target).sum(-1, keepdim=True).clamp(max=blocks.shape[1] - 1)
    before = torch.where(
        block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), torch.zeros_like(target)
    )
    inner = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK)).squeeze(1).double()
    ends = inner.cumsum(-1)
    within = (ends <= target - before).sum(-1)
    # Rounding at the very end of a block must not pick a token of probability zero.
    last_positive = _BLOCK - 1 - (inner > 0).flip(-1).to(torch.uint8).argmax(-1)
    return (block.squeeze(1) * _BLOCK + torch.minimum(within, last_positive)).clamp(
        max=vocabulary - 1
    )


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
