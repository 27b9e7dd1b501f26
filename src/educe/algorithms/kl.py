"""Estimators of KL(policy || reference) per token, finite in value and gradient everywhere.

With d = log policy - log reference (Schulman, joschu.net/blog/kl-approx.html):
k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. The expected value of k1 and k3 under the policy is the
KL; that of k2 is close to it for small d. As a *loss* only k2 has the right expected gradient,
on-policy: that of k1 is 0, that of k3 belongs to the other direction of the KL. ``k1+`` and ``k3+``
therefore keep the named value and take k2's gradient (the straight-through form).

Numbers: |d| is cut at a million, where nothing is left to tell; below d = -20 k3 goes on as a
straight line with the slope it has there, so it neither overflows nor turns its gradient around
(a clamped exponent alone would leave +1, which pushes the policy further from the reference).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from educe.algorithms.streams import MAX_LOG_RATIO, bounded_ratio

ESTIMATORS = ("k1", "k2", "k3", "k1+", "k3+")
RATIO_WEIGHTED = "rk3"
"""Name of :func:`ratio_weighted_k3`, which needs the proximal policy too."""
_FARTHEST = 1e6


def kl_per_token(policy_logprobs_T: Tensor, other_logprobs_T: Tensor, estimator: str) -> Tensor:
    """Return the estimator's value for each token, differentiable in the policy.

    Raises:
        ValueError: for an unknown estimator.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"kl estimator must be one of {ESTIMATORS}, got {estimator!r}")
    d = (policy_logprobs_T - other_logprobs_T).clamp(-_FARTHEST, _FARTHEST)
    if estimator.endswith("+"):
        gradient = _k2(d)
        return _VALUES[estimator[:-1]](d).detach() + gradient - gradient.detach()
    return _VALUES[estimator](d)


def _k1(d: Tensor) -> Tensor:
    return d


def _k2(d: Tensor) -> Tensor:
    return 0.5 * d * d


def _k3(d: Tensor) -> Tensor:
    near = d.clamp(min=-MAX_LOG_RATIO)
    slope = 1.0 - math.exp(MAX_LOG_RATIO)
    line = slope * (d + MAX_LOG_RATIO) - slope - MAX_LOG_RATIO
    # Chosen, not added: a sum of both branches loses the small gradient beside the steep one.
    return torch.where(d < -MAX_LOG_RATIO, line, torch.exp(-near) - 1.0 + near)


_VALUES = {"k1": _k1, "k2": _k2, "k3": _k3}


def ratio_weighted_k3(
    policy_logprobs_T: Tensor, proximal_logprobs_T: Tensor, reference_logprobs_T: Tensor
) -> Tensor:
    """Return r * k3 with r = policy / proximal, gradients through both.

    Under samples of the proximal policy its value and its gradient are those of
    KL(policy || reference), on- and off-policy (DeepSeek-V3.2, arXiv 2512.02556).
    """
    ratio = bounded_ratio(policy_logprobs_T - proximal_logprobs_T)
    return ratio * kl_per_token(policy_logprobs_T, reference_logprobs_T, "k3")
