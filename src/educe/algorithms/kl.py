"""Estimators of KL(policy || reference) per token, finite in value and gradient everywhere.

With d = log policy - log reference (Schulman, joschu.net/blog/kl-approx.html):
k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. The exponent is clamped before exp, so that a
log-ratio of any size keeps a finite value and a finite gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
ESTIMATORS = ("k1", "k2", "k3")


def kl_per_token(policy_logprobs_T: Tensor, other_logprobs_T: Tensor, estimator: str) -> Tensor:
    """Return the estimator's value for each token, differentiable in the policy.

    Raises:
        ValueError: for an unknown estimator.
    """
    d = policy_logprobs_T - other_logprobs_T
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d * d
    if estimator == "k3":
        return torch.exp((-d).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - 1.0 + d
    raise ValueError(f"kl estimator must be one of {ESTIMATORS}, got {estimator!r}")
