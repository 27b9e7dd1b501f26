"""Losses on pairs of completions, as functions of sequence log-probabilities.

P pairs; ``*_logprobs_P`` are sums of a completion's token log-probabilities unless a name says
``mean``. Each function returns one loss a pair, differentiable in the policy; values and gradients
are finite at any finite log-ratio (which is cut at a million before it is squared).

A trainer that only sums per-token streams can take these without holding both completions in one
pack: :func:`sequence_coefficients` turns a loss into one number for each sequence, and -A log p
with A = -that number has the very gradient of the pair's loss at these weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

_FARTHEST = 1e6
PairLoss = Callable[..., Tensor]


def dpo(
    chosen_logprobs_P: Tensor,
    rejected_logprobs_P: Tensor,
    reference_chosen_logprobs_P: Tensor,
    reference_rejected_logprobs_P: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log sigmoid(beta h), h the difference of log-ratios (DPO, arXiv 2305.18290).

    ``label_smoothing`` e supposes a share e of flipped labels (conservative DPO).
    """
    margin = beta * _margin(
        chosen_logprobs_P,
        rejected_logprobs_P,
        reference_chosen_logprobs_P,
        reference_rejected_logprobs_P,
    )
    return -(1.0 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def ipo(
    chosen_logprobs_P: Tensor,
    rejected_logprobs_P: Tensor,
    reference_chosen_logprobs_P: Tensor,
    reference_rejected_logprobs_P: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """(h - 1 / (2 beta))^2 (IPO, Azar et al. 2023, arXiv 2310.12036)."""
    margin = _margin(
        chosen_logprobs_P,
        rejected_logprobs_P,
        reference_chosen_logprobs_P,
        reference_rejected_logprobs_P,
    )
    return (margin - 1.0 / (2.0 * beta)) ** 2


def kto(
    logprobs_S: Tensor,
    reference_logprobs_S: Tensor,
    desirable_S: Tensor,
    reference_point: float,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """w_D (1 - sigmoid(beta (h - z))) or w_U (1 - sigmoid(beta (z - h))), unpaired.

    (KTO, arXiv 2402.01306.) h is the log-ratio to the reference; ``reference_point`` z is the
    batch's estimate of KL(policy || reference), see :func:`kto_reference_point`.
    """
    h = (logprobs_S - reference_logprobs_S).clamp(-_FARTHEST, _FARTHEST)
    liked = desirable_S.to(torch.bool)
    gain = beta * torch.where(liked, h - reference_point, reference_point - h)
    weight = torch.where(liked, desirable_weight, undesirable_weight).to(h)
    return weight * torch.sigmoid(-gain)


def kto_reference_point(mismatched_log_ratio_sum: float, count: float) -> float:
    """Return z = max(0, mean log-ratio of completions under *other* prompts), from global sums."""
    return max(0.0, mismatched_log_ratio_sum / count) if count > 0 else 0.0


def orpo(
    mean_chosen_logprobs_P: Tensor, mean_rejected_logprobs_P: Tensor, *, weight: float = 0.1
) -> Tensor:
    """-log p_chosen - weight log sigmoid(log odds ratio), p per token (ORPO, arXiv 2403.07691).

    Needs no reference. Log-probabilities are means over a completion's tokens.
    """
    odds = _log_odds(mean_chosen_logprobs_P) - _log_odds(mean_rejected_logprobs_P)
    return -mean_chosen_logprobs_P - weight * logsigmoid(odds)


def simpo(
    mean_chosen_logprobs_P: Tensor,
    mean_rejected_logprobs_P: Tensor,
    *,
    beta: float = 2.0,
    margin: float = 1.0,
) -> Tensor:
    """-log sigmoid(beta (mean difference) - margin) (SimPO, arXiv 2405.14734); no reference."""
    difference = mean_chosen_logprobs_P - mean_rejected_logprobs_P
    return -logsigmoid(beta * difference - margin)


def sequence_coefficients(
    loss: Callable[..., Tensor], *logprobs: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return (loss of each pair, d sum of losses / d each of ``logprobs``), without a graph.

    With the coefficient c of a sequence's log-probability, the per-token stream A = -c (divided by
    the length where the loss takes means) under the loss -A log p gives the pair's gradient.
    """
    leaves = tuple(x.detach().clone().requires_grad_() for x in logprobs)
    with torch.enable_grad():
        value = loss(*leaves)
        gradients = torch.autograd.grad(value.sum(), leaves)
    return value.detach(), gradients


def _margin(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor
) -> Tensor:
    h = (chosen - reference_chosen) - (rejected - reference_rejected)
    return h.clamp(-_FARTHEST, _FARTHEST)


def _log_odds(logprobs_P: Tensor) -> Tensor:
    """log p / (1 - p), finite and of bounded slope up to p = 1."""
    bounded = logprobs_P.clamp(min=-_FARTHEST, max=-1e-6)
    return bounded - torch.log(-torch.expm1(bounded))
