"""From a resolved bundle to its per-token loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from educe.algorithms.catalogue import Bundle
from educe.algorithms.importance import build_correction
from educe.algorithms.kl import kl_per_token
from educe.algorithms.losses.policy import (
    clipped_surrogate,
    corrected,
    cross_entropy,
    divergence_masked,
    geometric_mean,
    reinforce,
    soft_adaptive,
    truncated_reinforce,
)
from educe.algorithms.streams import LossFunction, Segments, Streams, TokenLoss


def with_reference_kl(loss: LossFunction, coefficient: float, estimator: str) -> LossFunction:
    """Return the loss plus coefficient * KL(policy || reference) per token."""

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        kl = kl_per_token(policy_logprobs_N, streams["reference_logprobs"], estimator)
        return TokenLoss(inner.loss_N + coefficient * kl, inner.diagnostics)

    return combined


def with_entropy_bonus(loss: LossFunction, coefficient: float) -> LossFunction:
    """Return the loss minus coefficient * the policy's entropy at each token."""

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        return TokenLoss(inner.loss_N - coefficient * entropy_N, inner.diagnostics)

    return combined


def _clipped(bundle: Bundle, level: str = "token") -> LossFunction:
    return partial(
        clipped_surrogate,
        clip_low=bundle.clip_low,
        clip_high=bundle.clip_high,
        level=level,
        dual_clip=bundle.option("dual_clip", 0.0),
    )


def _truncated(bundle: Bundle) -> LossFunction:
    return partial(truncated_reinforce, clip_low=bundle.clip_low, clip_high=bundle.clip_high)


def _soft(bundle: Bundle) -> LossFunction:
    return partial(
        soft_adaptive,
        tau_positive=bundle.option("tau_positive", 1.0),
        tau_negative=bundle.option("tau_negative", 1.05),
    )


def _geometric(bundle: Bundle) -> LossFunction:
    return partial(geometric_mean, clip_low=bundle.clip_low, clip_high=bundle.clip_high)


def _divergence(bundle: Bundle, kind: str) -> LossFunction:
    """DPPO: the clip offsets are limits of the divergence; the weight has a cap of its own."""
    weighted = partial(
        truncated_reinforce, clip_low=1.0, clip_high=bundle.option("weight_cap", 20.0) - 1.0
    )
    return divergence_masked(
        weighted, kind=kind, limit_low=bundle.clip_low, limit_high=bundle.clip_high
    )


_BUILDERS: dict[str, Callable[[Bundle], LossFunction]] = {
    "clipped_surrogate": _clipped,
    "sequence_surrogate": partial(_clipped, level="sequence"),
    "truncated_reinforce": _truncated,
    "reinforce": lambda bundle: reinforce,
    "soft_adaptive": _soft,
    "geometric_mean": _geometric,
    "divergence_tv": partial(_divergence, kind="tv"),
    "divergence_kl": partial(_divergence, kind="kl"),
    "cross_entropy": lambda bundle: cross_entropy,
}


def build_loss(bundle: Bundle) -> LossFunction:
    """Return the per-token loss of a resolved bundle.

    Composed from the inside out: loss, correction, reference KL, entropy bonus.

    Raises:
        ValueError: for correction bounds that are no interval.
    """
    loss = _BUILDERS[bundle.loss](bundle)
    if bundle.loss != "cross_entropy":
        low, high = bundle.importance_floor, bundle.importance_cap
        loss = corrected(loss, build_correction(bundle.correction, low, high))
    if bundle.kl_coefficient > 0:
        loss = with_reference_kl(loss, bundle.kl_coefficient, bundle.kl_estimator)
    if bundle.entropy_coefficient:
        loss = with_entropy_bonus(loss, bundle.entropy_coefficient)
    return loss
