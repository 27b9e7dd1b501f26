"""From a resolved bundle to its per-token loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from educe.algorithms.bundle import Bundle
from educe.algorithms.importance import build_correction
from educe.algorithms.kl import RATIO_WEIGHTED, kl_per_token, ratio_weighted_k3
from educe.algorithms.losses.policy import (
    clipped_surrogate,
    corrected,
    cross_entropy,
    divergence_masked,
    geometric_mean,
    negative_sequences_masked,
    reinforce,
    soft_adaptive,
    truncated_reinforce,
)
from educe.algorithms.losses.values import with_value_loss
from educe.algorithms.streams import (
    LossFunction,
    Segments,
    Streams,
    TokenLoss,
    proximal_logprobs,
)


def with_reference_kl(loss: LossFunction, coefficient: float | str, estimator: str) -> LossFunction:
    """Return the loss plus coefficient * KL(policy || reference) per token.

    ``coefficient`` is a number, or the name of the stream that holds it for each token (it changes
    from step to step, the loss is built once).
    """

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        reference = streams["reference_logprobs"]
        if estimator == RATIO_WEIGHTED:
            proximal = proximal_logprobs(policy_logprobs_N, streams)
            kl = ratio_weighted_k3(policy_logprobs_N, proximal, reference)
        else:
            kl = kl_per_token(policy_logprobs_N, reference, estimator)
        weight = streams[coefficient] if isinstance(coefficient, str) else coefficient
        return TokenLoss(inner.loss_N + weight * kl, inner.diagnostics)

    return combined


def with_entropy_bonus(loss: LossFunction, coefficient: float | str) -> LossFunction:
    """Return the loss minus coefficient * the policy's entropy at each token.

    ``coefficient`` as in :func:`with_reference_kl`.
    """

    def combined(
        policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
    ) -> TokenLoss:
        inner = loss(policy_logprobs_N, entropy_N, streams, segments)
        weight = streams[coefficient] if isinstance(coefficient, str) else coefficient
        return TokenLoss(inner.loss_N - weight * entropy_N, inner.diagnostics)

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

    Composed from the inside out: loss, sequence drop, correction, reference KL, entropy bonus,
    value loss. Coefficients that a controller moves are read from the streams
    ``kl_coefficient`` and ``entropy_coefficient``.

    Raises:
        ValueError: for correction bounds that are no interval.
    """
    loss = _BUILDERS[bundle.loss](bundle)
    drop = bundle.option("sequence_drop", 0.0)
    if drop > 0:
        loss = negative_sequences_masked(loss, limit=drop)
    if bundle.loss != "cross_entropy":
        low, high = bundle.importance_floor, bundle.importance_cap
        loss = corrected(loss, build_correction(bundle.correction, low, high))
    if bundle.kl_in_loss:
        steered = bundle.option("kl_target", 0.0) > 0
        weight = "kl_coefficient" if steered else bundle.kl_coefficient
        loss = with_reference_kl(loss, weight, bundle.kl_estimator)
    if bundle.option("entropy_target", 0.0) > 0:
        loss = with_entropy_bonus(loss, "entropy_coefficient")
    elif bundle.entropy_coefficient:
        loss = with_entropy_bonus(loss, bundle.entropy_coefficient)
    if bundle.needs_values:
        loss = with_value_loss(
            loss,
            coefficient=bundle.option("value_coefficient", 0.1),
            clip=bundle.option("value_clip", 0.2),
        )
    return loss
