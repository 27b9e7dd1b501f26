"""Credit token by token: T tokens of one sequence, of which the mask marks the action tokens.

Everything runs over action tokens only. The recursions step from one action token to the next,
across whatever the environment wrote between them, and read nothing at masked positions: rewards
and KL of observation tokens change nothing. So an environment's reward belongs on the last action
token before the reply (:func:`token_rewards` puts it there). Masked positions of results are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from educe.algorithms.advantages.batch import whitened
from educe.algorithms.advantages.group import ROUNDING, BoolArray, FloatArray

_FARTHEST = 1e6
_STEEPEST = 20.0


def token_rewards(
    turn_ends: Sequence[int], turn_scores: Sequence[float | None], length: int
) -> FloatArray:
    """Return rewards of a sequence of ``length`` tokens, each turn's on its last action token.

    ``turn_ends[j]`` is the index of that token; a turn without a score adds nothing. For one
    outcome: the last turn's end and the score.
    """
    rewards = np.zeros(length)
    for end, value in zip(turn_ends, turn_scores, strict=True):
        if value is not None and np.isfinite(value):
            rewards[end] += value
    return rewards


def kl_values(log_ratio_T: FloatArray, estimator: str) -> FloatArray:
    """Return k1, k2 or k3 of d = log policy - log reference; finite at any d (see ``kl``).

    Raises:
        ValueError: for an estimator that is no plain value.
    """
    d = np.clip(log_ratio_T, -_FARTHEST, _FARTHEST)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return np.asarray(0.5 * d * d)
    if estimator == "k3":
        near = np.maximum(d, -_STEEPEST)
        return np.asarray(np.exp(-near) - 1.0 + near + (d - near) * (1.0 - np.exp(_STEEPEST)))
    raise ValueError(f"KL in the reward is k1, k2 or k3, got {estimator!r}")


def with_kl_penalty(
    rewards_T: FloatArray, mask_T: BoolArray, kl_T: FloatArray, coefficient: float
) -> FloatArray:
    """rewards - coefficient * KL on action tokens, 0 elsewhere (KL in the reward).

    ``kl_T`` is an estimate per token against the reference, usually k1 of the proximal policy.
    """
    mask = np.asarray(mask_T, np.bool_)
    out = np.zeros(len(rewards_T))
    out[mask] = rewards_T[mask] - coefficient * kl_T[mask]
    return out


def penalised_score(score: float, mask_T: BoolArray, kl_T: FloatArray, coefficient: float) -> float:
    """score - coefficient * sum of the action tokens' KL: one number for RLOO and its kin."""
    return float(score - coefficient * kl_T[np.asarray(mask_T, np.bool_)].sum())


def discounted_returns(rewards_T: FloatArray, mask_T: BoolArray, gamma: float = 1.0) -> FloatArray:
    """G_t = R_t + gamma G_(t+1), t and t + 1 consecutive action tokens."""
    actions = np.flatnonzero(mask_T)
    out = np.zeros(len(rewards_T))
    following = 0.0
    for t in actions[::-1]:
        following = float(rewards_T[t]) + gamma * following
        out[t] = following
    return out


def generalised_advantages(
    rewards_T: FloatArray,
    values_T: FloatArray,
    mask_T: BoolArray,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[FloatArray, FloatArray]:
    """Return (advantages, returns) of GAE (Schulman et al. 2015, arXiv 1506.02438).

    delta_t = R_t + gamma V_(t+1) - V_t, A_t = delta_t + gamma lam A_(t+1), return_t = A_t + V_t;
    V after the last action is 0.
    """
    actions = np.flatnonzero(mask_T)
    advantages, returns = np.zeros(len(rewards_T)), np.zeros(len(rewards_T))
    next_advantage = next_value = 0.0
    for t in actions[::-1]:
        value = float(values_T[t])
        delta = float(rewards_T[t]) + gamma * next_value - value
        next_advantage = delta + gamma * lam * next_advantage
        next_value = value
        advantages[t], returns[t] = next_advantage, next_advantage + value
    return advantages, returns


def length_adaptive_lambda(num_action_tokens: int, alpha: float = 0.05) -> float:
    """1 - 1 / (alpha length), at least 0 (VAPO, arXiv 2504.05118): the policy's GAE lambda."""
    if num_action_tokens <= 0:
        return 0.0
    return max(0.0, 1.0 - 1.0 / (alpha * num_action_tokens))


def reinforce_plus_plus(
    rewards: Sequence[FloatArray],
    masks: Sequence[BoolArray],
    gamma: float = 1.0,
    eps: float = 1e-8,
) -> list[FloatArray]:
    """Discounted returns, whitened over all action tokens (REINFORCE++, arXiv 2501.03262).

    ``rewards[i]`` are the token rewards of sequence i (KL already taken off); an unscored sequence
    comes with an empty mask. The list is the global batch.
    """
    returns = [discounted_returns(r, m, gamma) for r, m in zip(rewards, masks, strict=True)]
    return whitened(returns, masks, eps)


def process_rewards(
    steps: Sequence[Sequence[tuple[int, float | None]]],
    lengths: Sequence[int],
    eps: float = 1e-6,
) -> list[FloatArray]:
    """A_t = sum of the normalised rewards of steps that end at or after t.

    (GRPO with process rewards, arXiv 2402.03300.) ``steps[i]`` are sibling i's (index of the
    step's last token, reward); all rewards of the group are normalised together, std with n - 1.
    A reward of None or NaN leaves the statistics and adds nothing. ``lengths[i]`` is the number of
    sibling i's tokens; multiply by the mask where observations lie between.
    """
    known = [
        [(end, float(value)) for end, value in own if value is not None and np.isfinite(value)]
        for own in steps
    ]
    rewards = np.array([value for own in known for _, value in own])
    out = [np.zeros(n) for n in lengths]
    if len(rewards) < 2 or np.ptp(rewards) <= ROUNDING * np.abs(rewards).max():
        return out
    mean, scale = rewards.mean(), rewards.std(ddof=1) + eps
    for result, own in zip(out, known, strict=True):
        for end, value in own:
            result[: end + 1] += (value - mean) / scale
    return out


def explained_variance(
    returns: Sequence[FloatArray], values: Sequence[FloatArray], masks: Sequence[BoolArray]
) -> float | None:
    """1 - var(return - value) / var(return) over all action tokens; None without variance."""
    used = [np.asarray(m, np.bool_) for m in masks]
    target = np.concatenate([r[m] for r, m in zip(returns, used, strict=True)] or [np.zeros(0)])
    guess = np.concatenate([v[m] for v, m in zip(values, used, strict=True)] or [np.zeros(0)])
    if len(target) < 2 or target.var() == 0:
        return None
    return float(1.0 - (target - guess).var() / target.var())
