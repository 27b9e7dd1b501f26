"""Policy-gradient losses per token: ``loss(policy_logprobs_N, entropy_N, streams, segments)``.

r is policy / proximal. Every loss is multiplied by a correction weight without gradient where the
behaviour differs from the proximal policy (see ``importance``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from educe.algorithms.importance import Correction, correction_weights
from educe.algorithms.streams import (
    LossFunction,
    Segments,
    Streams,
    TokenLoss,
    bounded_ratio,
    proximal_logprobs,
)


def cross_entropy(
    policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
) -> TokenLoss:
    """-log p(target): supervised fine-tuning."""
    return TokenLoss(-policy_logprobs_N)


def reinforce(
    policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
) -> TokenLoss:
    """-A log p: the plain policy gradient (Williams 1992)."""
    return TokenLoss(-streams["advantage"] * policy_logprobs_N)


def clipped_surrogate(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
    level: str = "token",
    dual_clip: float = 0.0,
) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    (PPO, Schulman et al. 2017, arXiv 1707.06347.) ``level`` "sequence" takes the geometric mean of
    a sequence's ratios, with gradients to each token (GSPO-token, arXiv 2507.18071).
    ``dual_clip`` c > 1 bounds the loss by c |A| where A < 0 (Ye et al. 2020, arXiv 1912.09729).
    """
    advantage_N = streams["advantage"]
    log_ratio = policy_logprobs_N - proximal_logprobs(policy_logprobs_N, streams)
    if level == "sequence":
        mean = segments.mean(log_ratio.detach())
        log_ratio = policy_logprobs_N - policy_logprobs_N.detach() + mean
    ratio = bounded_ratio(log_ratio)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain = torch.minimum(ratio * advantage_N, clipped * advantage_N)
    if dual_clip > 0:
        # Not torch.maximum, which halves the gradient where both are equal.
        floor = dual_clip * advantage_N
        gain = torch.where((advantage_N < 0) & (gain < floor), floor, gain)
    return TokenLoss(-gain, _diagnostics(ratio, advantage_N, 1.0 - clip_low, 1.0 + clip_high))


def truncated_reinforce(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
) -> TokenLoss:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p (CISPO, arXiv 2506.13585).

    The bounds are offsets: (1, 4) is no lower bound and an upper one of 5.
    """
    advantage_N = streams["advantage"]
    proximal_N = proximal_logprobs(policy_logprobs_N, streams)
    held = bounded_ratio(policy_logprobs_N.detach() - proximal_N)
    weight = held.clamp(1.0 - clip_low, 1.0 + clip_high)
    return TokenLoss(
        -weight * advantage_N * policy_logprobs_N,
        {
            "ratio": held,
            "clip_low": (held < 1.0 - clip_low).to(held),
            "clip_high": (held > 1.0 + clip_high).to(held),
        },
    )


def soft_adaptive(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    tau_positive: float,
    tau_negative: float,
) -> TokenLoss:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A (SAPO, arXiv 2511.20347).

    The gate's slope at r = 1 is 1, so on-policy the gradient is that of the policy gradient.
    """
    advantage_N = streams["advantage"]
    ratio = bounded_ratio(policy_logprobs_N - proximal_logprobs(policy_logprobs_N, streams))
    tau = torch.where(advantage_N > 0, tau_positive, tau_negative).to(ratio)
    gate = 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0))
    return TokenLoss(-gate * advantage_N, {"ratio": ratio.detach()})


def geometric_mean(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
) -> TokenLoss:
    """-A exp(mean over the sequence of clipped log r) (GMPO, arXiv 2507.20673).

    The bounds are on log r, each token's own, before the mean, and one-sided: above where A > 0,
    below where A < 0. Every token of a sequence holds the sequence's value.
    """
    advantage_N = streams["advantage"]
    log_ratio = policy_logprobs_N - proximal_logprobs(policy_logprobs_N, streams)
    bounded = torch.where(
        advantage_N > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low)
    )
    loss = -bounded_ratio(segments.mean(bounded)) * advantage_N
    edges = math.exp(-clip_low), math.exp(clip_high)
    return TokenLoss(loss, _diagnostics(bounded_ratio(log_ratio), advantage_N, *edges))


def corrected(loss: LossFunction, correction: Correction | None) -> LossFunction:
    """Return the loss times the correction's weight, and the share that it rejects."""
    if correction is None:
        return loss

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        proximal_N = proximal_logprobs(policy_logprobs_N, streams)
        weight = correction_weights(proximal_N, streams, segments, correction)
        if weight is None:
            return inner
        rejected = (weight == 0).to(weight)
        if "rejected" in inner.diagnostics:
            rejected = torch.maximum(rejected, inner.diagnostics["rejected"])
        told = {**inner.diagnostics, "correction": weight, "rejected": rejected}
        return TokenLoss(inner.loss_N * weight, told)

    return combined


def divergence_masked(
    loss: LossFunction, *, kind: str, limit_low: float, limit_high: float
) -> LossFunction:
    """Return the loss without tokens that already moved too far the way their advantage points.

    With pi the policy's and mu the behaviour's probability of the token (DPPO, arXiv 2602.04879):
    ``kind`` "tv" drops A > 0 where pi - mu > limit_high, A < 0 where mu - pi > limit_low; "kl"
    measures KL(mu || pi) of the two outcomes "this token" and "another" instead.
    """
    if kind not in ("tv", "kl"):
        raise ValueError(f"divergence must be 'tv' or 'kl', got {kind!r}")

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        policy = policy_logprobs_N.detach().exp()
        behaviour = streams["behaviour_logprobs"].exp()
        up, down = policy > behaviour, policy < behaviour
        distance = (
            (policy - behaviour).abs() if kind == "tv" else _two_outcome_kl(behaviour, policy)
        )
        advantage_N = streams["advantage"]
        dropped = (advantage_N > 0) & up & (distance > limit_high)
        dropped |= (advantage_N < 0) & down & (distance > limit_low)
        kept = (~dropped).to(policy)
        return TokenLoss(inner.loss_N * kept, {**inner.diagnostics, "rejected": 1.0 - kept})

    return combined


def negative_sequences_masked(loss: LossFunction, *, limit: float) -> LossFunction:
    """Return the loss without sequences of A < 0 that the policy has left behind.

    Those with mean over tokens of log proximal - log policy > limit (off-policy sequence masking,
    DeepSeek-V3.2, arXiv 2512.02556).
    """

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        proximal_N = proximal_logprobs(policy_logprobs_N, streams)
        left = segments.mean(proximal_N - policy_logprobs_N.detach()) > limit
        kept = (~((streams["advantage"] < 0) & left)).to(inner.loss_N)
        return TokenLoss(inner.loss_N * kept, {**inner.diagnostics, "rejected": 1.0 - kept})

    return combined


def _two_outcome_kl(p_N: Tensor, q_N: Tensor) -> Tensor:
    """KL of Bernoulli(p) from Bernoulli(q), finite at the ends."""
    tiny = torch.finfo(p_N.dtype).tiny
    p, q = p_N.clamp(0.0, 1.0), q_N.clamp(0.0, 1.0)
    same = torch.special.xlogy(p, p.clamp(min=tiny)) - torch.special.xlogy(p, q.clamp(min=tiny))
    rest_p, rest_q = 1.0 - p, (1.0 - q).clamp(min=tiny)
    other = torch.special.xlogy(rest_p, rest_p.clamp(min=tiny))
    total: Tensor = same + other - torch.special.xlogy(rest_p, rest_q)
    return total


def _diagnostics(ratio: Tensor, advantage_N: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """Ratio, and which tokens have no gradient because of the clip."""
    held = ratio.detach()
    return {
        "ratio": held,
        "clip_low": ((held < low) & (advantage_N < 0)).to(held),
        "clip_high": ((held > high) & (advantage_N > 0)).to(held),
    }
