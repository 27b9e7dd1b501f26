"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from educe.algorithms.streams import LossFunction, Segments, Streams, TokenLoss

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
        return TokenLoss(plain, {"value_clip": torch.zeros_like(plain).detach()})
    bounded = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    clipped = _half_square(bounded - returns_N)
    told = {"value_clip": (clipped > plain).to(plain).detach()}
    # Not torch.maximum, which halves the gradient where both are equal: within the clip, always.
    return TokenLoss(torch.where(clipped > plain, clipped, plain), told)


def with_value_loss(loss: LossFunction, *, coefficient: float, clip: float) -> LossFunction:
    """Return the loss plus coefficient * the value loss of each token.

    ``streams["values"]`` are the head's, with a gradient; ``old_values`` and ``returns`` were
    fixed before the update. The token's weight multiplies both losses, so the value loss is
    averaged as the policy's is.
    """

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        own = value_loss(streams["values"], streams["old_values"], streams["returns"], clip=clip)
        told = {**inner.diagnostics, **own.diagnostics, "value_loss": own.loss_N.detach()}
        return TokenLoss(inner.loss_N + coefficient * own.loss_N, told)

    return combined


def _half_square(error_N: Tensor) -> Tensor:
    error = error_N.clamp(-_FARTHEST, _FARTHEST)
    return 0.5 * error * error
