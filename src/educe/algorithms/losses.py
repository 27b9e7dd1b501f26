"""Per-token losses: ``loss(policy_logprobs_N, entropy_N, streams, segments) -> TokenLoss``.

N trained tokens of a pack. Losses know nothing of batches, domains or aggregation: the optimizer
step multiplies by the ``weight`` stream and sums. Diagnostics are per token, without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from educe.algorithms.catalogue import Bundle
from educe.algorithms.kl import MAX_LOG_RATIO, kl_per_token

Streams = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Segments:
    """Which sequence each trained token belongs to: ``sequence_N`` in 0 … num_sequences - 1."""

    sequence_N: Tensor
    num_sequences: int

    def mean(self, values_N: Tensor) -> Tensor:
        """Return the mean of a sequence's tokens, for each token."""
        total = values_N.new_zeros(self.num_sequences).index_add(0, self.sequence_N, values_N)
        count = torch.bincount(self.sequence_N, minlength=self.num_sequences).to(values_N)
        return (total / count.clamp(min=1))[self.sequence_N]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    loss_N: Tensor
    diagnostics: dict[str, Tensor] = field(default_factory=dict)


LossFunction = Callable[[Tensor, Tensor, Streams, Segments], TokenLoss]


def proximal_logprobs(policy_logprobs_N: Tensor, streams: Streams) -> Tensor:
    """Return the ratio's denominator; where the stream has none it is the policy itself.

    So on the first update the ratio is exactly 1 by construction, whatever the micro-batch.
    """
    given = streams.get("proximal_logprobs")
    if given is None:
        return policy_logprobs_N.detach()
    return torch.where(given.isnan(), policy_logprobs_N.detach(), given)


def _ratio(log_ratio_N: Tensor) -> Tensor:
    return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def cross_entropy(
    policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
) -> TokenLoss:
    """-log p(target): supervised fine-tuning."""
    return TokenLoss(-policy_logprobs_N)


def clipped_surrogate(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
    level: str = "token",
) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = policy / proximal.

    (PPO, Schulman et al. 2017, arXiv 1707.06347.) ``level`` "sequence" takes the geometric mean of
    a sequence's ratios, with gradients to each token (GSPO, arXiv 2507.18071). ``importance_cap``
    multiplies by sg(min(proximal / behaviour, cap)), 0 switches that off.
    """
    advantage_N = streams["advantage"]
    proximal_N = proximal_logprobs(policy_logprobs_N, streams)
    log_ratio = policy_logprobs_N - proximal_N
    if level == "sequence":
        mean = segments.mean(log_ratio.detach())
        log_ratio = policy_logprobs_N - policy_logprobs_N.detach() + mean
    ratio = _ratio(log_ratio)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantage_N, clipped * advantage_N)
    held = ratio.detach()
    importance = importance_weights(proximal_N, streams, importance_cap)
    if importance is not None:
        loss = loss * importance
    return TokenLoss(
        loss,
        {
            "ratio": held,
            "clip_low": ((held < 1.0 - clip_low) & (advantage_N < 0)).to(held),
            "clip_high": ((held > 1.0 + clip_high) & (advantage_N > 0)).to(held),
        },
    )


def truncated_reinforce(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
) -> TokenLoss:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p (CISPO, arXiv 2506.13585)."""
    advantage_N = streams["advantage"]
    proximal_N = proximal_logprobs(policy_logprobs_N, streams)
    held = _ratio(policy_logprobs_N.detach() - proximal_N)
    weight = held.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -weight * advantage_N * policy_logprobs_N
    importance = importance_weights(proximal_N, streams, importance_cap)
    if importance is not None:
        loss = loss * importance
    return TokenLoss(
        loss,
        {
            "ratio": held,
            "clip_low": (held < 1.0 - clip_low).to(held),
            "clip_high": (held > 1.0 + clip_high).to(held),
        },
    )


def importance_weights(proximal_N: Tensor, streams: Streams, cap: float) -> Tensor | None:
    """Return sg(min(proximal / behaviour, cap)) per token (truncated importance sampling).

    The behaviour distribution is what the engine really sampled from; where it is the proximal one
    up to rounding, the weight is 1 up to rounding.
    """
    behaviour_N = streams.get("behaviour_logprobs")
    if cap <= 0 or behaviour_N is None:
        return None
    weight = _ratio(proximal_N - behaviour_N).clamp(max=cap)
    return torch.where(behaviour_N.isnan(), torch.ones_like(weight), weight).detach()


def with_reference_kl(loss: LossFunction, coefficient: float, estimator: str) -> LossFunction:
    """Return the loss plus coefficient * KL(policy || reference) per token."""

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        kl = kl_per_token(policy_logprobs_N, streams["reference_logprobs"], estimator)
        return TokenLoss(inner.loss_N + coefficient * kl, inner.diagnostics)

    return combined


def build_loss(bundle: Bundle) -> LossFunction:
    """Return the per-token loss of a resolved bundle."""
    clip: dict[str, Any] = {
        "clip_low": bundle.clip_low,
        "clip_high": bundle.clip_high,
        "importance_cap": bundle.importance_cap,
    }
    builders: dict[str, LossFunction] = {
        "clipped_surrogate": partial(clipped_surrogate, **clip),
        "sequence_surrogate": partial(clipped_surrogate, **clip, level="sequence"),
        "truncated_reinforce": partial(truncated_reinforce, **clip),
        "cross_entropy": cross_entropy,
    }
    loss = builders[bundle.loss]
    if bundle.kl_coefficient > 0:
        return with_reference_kl(loss, bundle.kl_coefficient, bundle.kl_estimator)
    return loss
