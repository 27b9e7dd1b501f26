"""Learning from a teacher's log-probabilities.

On-policy distillation needs the teacher's log-probability of each *sampled* token only: a stream
``teacher_logprobs`` like the reference's. The divergences over whole distributions need rows of
log-probabilities over the vocabulary V (or over a shared top-k, renormalised).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from educe.algorithms.streams import (
    Segments,
    Streams,
    TokenLoss,
    bounded_ratio,
    proximal_logprobs,
)


def on_policy_distillation(
    policy_logprobs_N: Tensor,
    entropy_N: Tensor,
    streams: Streams,
    segments: Segments,
    *,
    coefficient: float = 1.0,
    limit: float = 20.0,
    weight_cap: float = 5.0,
) -> TokenLoss:
    """-sg(min(r, cap)) A log p with A = coefficient * sg(log teacher - log policy).

    The policy gradient of KL(policy || teacher) per token (MiniLLM, arXiv 2306.08543; GKD, arXiv
    2306.13649), r = policy / proximal. ``limit`` bounds the log-ratio. Where the teacher's
    stream is NaN the token is left out.
    """
    teacher_N = streams["teacher_logprobs"]
    held = policy_logprobs_N.detach()
    known = ~teacher_N.isnan()
    gap = torch.where(known, teacher_N - held, torch.zeros_like(held))
    centred = gap.clamp(-limit, limit)
    if "baseline" in streams:
        # What does not depend on the token takes variance and no mean from the gradient.
        centred = torch.where(known, centred - streams["baseline"], centred)
    advantage = coefficient * centred
    ratio = bounded_ratio(held - proximal_logprobs(policy_logprobs_N, streams))
    loss = -ratio.clamp(max=weight_cap) * advantage * policy_logprobs_N
    return TokenLoss(loss, {"ratio": ratio, "teacher_gap": -gap})


def generalised_divergence(
    policy_logprobs_NV: Tensor, teacher_logprobs_NV: Tensor, *, mixture: float
) -> Tensor:
    """Divergence of whole distributions per row (GKD, Agarwal et al. 2023, arXiv 2306.13649).

    ``mixture`` 0 is KL(teacher || policy), 1 is KL(policy || teacher), between them the
    generalised Jensen-Shannon divergence b KL(teacher || m) + (1 - b) KL(policy || m) with
    m = b teacher + (1 - b) policy.

    Raises:
        ValueError: for a mixture outside [0, 1].
    """
    if not 0.0 <= mixture <= 1.0:
        raise ValueError(f"mixture must be in [0, 1], got {mixture}")
    if mixture == 0.0:
        return _kl_rows(teacher_logprobs_NV, policy_logprobs_NV)
    if mixture == 1.0:
        return _kl_rows(policy_logprobs_NV, teacher_logprobs_NV)
    middle = torch.logaddexp(
        teacher_logprobs_NV + math.log(mixture), policy_logprobs_NV + math.log1p(-mixture)
    )
    return mixture * _kl_rows(teacher_logprobs_NV, middle) + (1.0 - mixture) * _kl_rows(
        policy_logprobs_NV, middle
    )


def _kl_rows(p_logprobs_NV: Tensor, q_logprobs_NV: Tensor) -> Tensor:
    """sum_v p (log p - log q); log q is bounded below so that a hole in q stays finite."""
    lowest = torch.finfo(p_logprobs_NV.dtype).min / 1e8
    p, q = p_logprobs_NV.clamp(min=lowest), q_logprobs_NV.clamp(min=lowest)
    return (p.exp() * (p - q)).sum(-1)
