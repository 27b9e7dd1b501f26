"""Correction for tokens that another distribution sampled than the one the update starts from.

Engine and trainer never agree to the last bit, and asynchronous samples are stale: the behaviour
distribution is what sampled, the proximal one is the trainer's at the start of the update. With
l_t = log proximal - log behaviour, a *correction* is a function ``(log_ratio_N, segments) ->
weight_N`` that multiplies each token's loss, without gradient. Corrections are composed by
multiplying; a mask is one whose values are 0 and 1. Denominators are in the ``weight`` stream,
counted before any rejection, so a rejected token takes nothing from the others.

Tokens whose behaviour log-probability is NaN (unknown) have weight 1 and count as l = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from educe.algorithms.catalogue import CORRECTION_BOUNDS
from educe.algorithms.streams import Segments, Streams, bounded_ratio

Correction = Callable[[Tensor, Segments], Tensor]


def token_truncated(
    log_ratio_N: Tensor, segments: Segments, *, cap: float, floor: float = 0.0
) -> Tensor:
    """min(max(w, floor), cap) per token: truncated importance sampling (Yao et al. 2025)."""
    return bounded_ratio(log_ratio_N).clamp(floor, cap)


def sequence_truncated(
    log_ratio_N: Tensor, segments: Segments, *, cap: float, floor: float = 0.0
) -> Tensor:
    """min(max(W, floor), cap) for all tokens of a sequence, W = exp(sum of its log-ratios)."""
    return bounded_ratio(segments.sum(log_ratio_N)).clamp(floor, cap)


def icepop(log_ratio_N: Tensor, segments: Segments, *, low: float, high: float) -> Tensor:
    """w where low <= w <= high, else 0 (IcePop, Ling team 2025, arXiv 2510.18855)."""
    ratio = bounded_ratio(log_ratio_N)
    return torch.where(_within(ratio, low, high), ratio, torch.zeros_like(ratio))


def sequence_mask(log_ratio_N: Tensor, segments: Segments, *, low: float, high: float) -> Tensor:
    """1 for all tokens of a sequence whose W is within [low, high], else 0."""
    return _within(bounded_ratio(segments.sum(log_ratio_N)), low, high).to(log_ratio_N)


def geometric_mask(log_ratio_N: Tensor, segments: Segments, *, low: float, high: float) -> Tensor:
    """1 for all tokens of a sequence whose geometric mean of w is within [low, high], else 0."""
    return _within(bounded_ratio(segments.mean(log_ratio_N)), low, high).to(log_ratio_N)


def composed(*corrections: Correction) -> Correction:
    """Return the product of corrections, each computed from the same log-ratios."""

    def product(log_ratio_N: Tensor, segments: Segments) -> Tensor:
        weight = torch.ones_like(log_ratio_N)
        for correction in corrections:
            weight = weight * correction(log_ratio_N, segments)
        return weight

    return product


CORRECTIONS = tuple(CORRECTION_BOUNDS)


def build_correction(name: str, low: float, high: float) -> Correction | None:
    """Return the named correction with its bounds on the weight; a ``high`` of 0 is none.

    Raises:
        ValueError: for an unknown name, or bounds that are no interval.
    """
    if name not in CORRECTIONS:
        raise ValueError(f"correction must be one of {CORRECTIONS}, got {name!r}")
    if high == 0:
        return None
    if not 0 <= low < high:
        raise ValueError(f"correction bounds must be 0 <= low < high, got {low} and {high}")
    builders: Mapping[str, Correction] = {
        "token_truncated": partial(token_truncated, floor=low, cap=high),
        "sequence_truncated": partial(sequence_truncated, floor=low, cap=high),
        "icepop": partial(icepop, low=low, high=high),
        "sequence_mask": partial(sequence_mask, low=low, high=high),
        "geometric_mask": partial(geometric_mask, low=low, high=high),
    }
    return builders[name]


@torch.no_grad()
def correction_weights(
    proximal_N: Tensor, streams: Streams, segments: Segments, correction: Correction | None
) -> Tensor | None:
    """Return each token's weight without gradient, or None when there is nothing to correct.

    When the proximal policy *is* the behaviour (bypass) every log-ratio is 0 and every weight 1:
    the policy ratio does the work, and nothing is corrected twice.
    """
    behaviour_N = streams.get("behaviour_logprobs")
    if correction is None or behaviour_N is None:
        return None
    unknown = behaviour_N.isnan()
    log_ratio = torch.where(unknown, torch.zeros_like(proximal_N), proximal_N - behaviour_N)
    weight = correction(log_ratio, segments)
    return torch.where(unknown, torch.ones_like(weight), weight)


@torch.no_grad()
def mismatch_per_token(proximal_N: Tensor, behaviour_N: Tensor) -> dict[str, Tensor]:
    """Return how far trainer and engine are apart, for each token; NaN where it is unknown.

    ``mismatch`` is |p - q| (below 0.005 is fine, above 0.01 bad), ``mismatch_k1`` and
    ``mismatch_k3`` estimate KL(behaviour || proximal) in nats, ``mismatch_ratio`` is
    exp |log p - log q| (its mean above 1.01 to 1.02 points to weights out of step).
    """
    log_ratio = proximal_N - behaviour_N
    ratio = bounded_ratio(log_ratio)
    return {
        "mismatch": (proximal_N.exp() - behaviour_N.exp()).abs(),
        "mismatch_k1": -log_ratio,
        "mismatch_k3": ratio - 1.0 - log_ratio,
        "mismatch_ratio": bounded_ratio(log_ratio.abs()),
    }


def effective_sample_share(sum_w: float, sum_w_squared: float, count: float) -> float:
    """Return (sum w)^2 / (n sum w^2) from global sums: 1 when all weights are equal."""
    if count <= 0 or sum_w_squared <= 0:
        return 0.0
    return sum_w * sum_w / (count * sum_w_squared)


def _within(values_N: Tensor, low: float, high: float) -> Tensor:
    return (values_N >= low) & (values_N <= high)
