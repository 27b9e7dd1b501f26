"""Losses: per token for the optimizer step, per pair for preferences, per state for values.

The optimizer step reads :func:`build_loss`, :class:`Segments`, :class:`TokenLoss` and
:func:`proximal_logprobs`; the rest are the parts that bundles are composed of.
"""

from educe.algorithms.losses.build import build_loss, with_entropy_bonus, with_reference_kl
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
from educe.algorithms.losses.values import value_loss, with_value_loss
from educe.algorithms.streams import (
    LossFunction,
    Segments,
    Streams,
    TokenLoss,
    proximal_logprobs,
)

__all__ = [
    "LossFunction",
    "Segments",
    "Streams",
    "TokenLoss",
    "build_loss",
    "clipped_surrogate",
    "corrected",
    "cross_entropy",
    "divergence_masked",
    "geometric_mean",
    "negative_sequences_masked",
    "proximal_logprobs",
    "reinforce",
    "soft_adaptive",
    "truncated_reinforce",
    "value_loss",
    "with_entropy_bonus",
    "with_reference_kl",
    "with_value_loss",
]
