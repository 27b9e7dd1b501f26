"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from educe.algorithms.streams import TokenLoss

_FARTHEST = 1e6


def value_loss(
    values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip: float = 0.2
) -> TokenLoss:
    """0.5 max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2) per token.

    (PPO, arXiv 1707.06347, with the value clip of its reference implementation.) The returns R
    carry no gradient; errors are cut at a million, which no reward scale should come near. A
    ``clip`` of 0 is none.
    """
    plain = _half_square(values_N - returns_N)
    if clip <= 0:
        return TokenLoss(plain, {"value_clip": torch.zeros_like(plain)})
    bounded = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    clipped = _half_square(bounded - returns_N)
    told = {"value_clip": (clipped > plain).to(plain).detach()}
    return TokenLoss(torch.maximum(plain, clipped), told)


def _half_square(error_N: Tensor) -> Tensor:
    error = error_N.clamp(-_FARTHEST, _FARTHEST)
    return 0.5 * error * error
