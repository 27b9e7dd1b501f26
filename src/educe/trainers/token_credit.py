"""From one group's rewards to the advantage of every action token.

An action token is one that the policy sampled; A counts a trajectory's action tokens over all its
turns. Observations have no place in these arrays, so nothing that an environment wrote can enter
a return, a KL or a statistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from educe.algorithms.advantages import (
    ADVANTAGES,
    best_of_k,
    discounted_returns,
    generalised_advantages,
    kl_values,
    length_adaptive_lambda,
    length_weighted_baseline,
    multi_reward,
    over_greedy,
    penalised_score,
    process_rewards,
    token_rewards,
    with_kl_penalty,
)
from educe.algorithms.catalogue import Bundle
from educe.core.types import Trajectory

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
ActionStreams = Mapping[str, FloatArray]
"""Arrays over a trajectory's action tokens, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """The advantage of a trajectory: one number for all tokens, or ``tokens_A``.

    ``returns_A`` are what the value head learns, None without one.
    """

    value: float = 0.0
    tokens_A: FloatArray | None = None
    returns_A: FloatArray | None = None

    @property
    def mean(self) -> float:
        if self.tokens_A is None:
            return self.value
        return float(self.tokens_A.mean()) if len(self.tokens_A) else 0.0

    @property
    def is_nonzero(self) -> bool:
        return bool(self.value != 0 if self.tokens_A is None else self.tokens_A.any())

    def over(self, num_tokens: int) -> FloatArray:
        """Return the advantage of each of the trajectory's action tokens."""
        return np.full(num_tokens, self.value) if self.tokens_A is None else self.tokens_A


@dataclass(frozen=True, slots=True)
class Attempt:
    """What credit needs of one trajectory.

    Attributes:
        reward: of the whole, NaN where there is none.
        num_tokens: A, action tokens.
        steps: (index of an action token, value) of turns and steps that were judged.
        streams: what the model said about the action tokens.
    """

    reward: float
    num_tokens: int
    steps: tuple[tuple[int, float], ...]
    streams: ActionStreams

    @staticmethod
    def of(trajectory: Trajectory, reward: float, streams: ActionStreams) -> Attempt:
        ends = np.cumsum([len(t.completion_token_ids) for t in trajectory.turns])
        judged = [
            (max(int(end) - 1, 0), score.value)
            for end, score in zip(ends, trajectory.turn_scores, strict=False)
        ]
        steps = [
            (place, float(value))
            for place, value in (*judged, *trajectory.step_scores)
            if value is not None and np.isfinite(value)
        ]
        return Attempt(reward, trajectory.num_completion_tokens, tuple(sorted(steps)), streams)

    def measured(self, name: str) -> FloatArray:
        """Return an array over the action tokens that a forward made before credit.

        Raises:
            ValueError: no forward made it.
        """
        if name not in self.streams:
            raise ValueError(f"credit needs {name} of every action token; none were measured")
        return self.streams[name]

    def kl(self, estimator: str) -> FloatArray:
        """Return the KL of each action token to the reference, for the reward."""
        gap = self.measured("policy_logprobs") - self.measured("reference_logprobs")
        return kl_values(gap, estimator)

    def token_rewards(self, kl_coefficient: float, estimator: str) -> FloatArray:
        """Return R_A: judged turns and steps at their ends, the whole's reward at the last token.

        Less ``kl_coefficient`` times each token's KL.
        """
        places, values = zip(*self.steps, (self.num_tokens - 1, self.reward), strict=True)
        rewards = token_rewards(places, values, self.num_tokens)
        if not kl_coefficient:
            return rewards
        everything = np.ones(self.num_tokens, np.bool_)
        return with_kl_penalty(rewards, everything, self.kl(estimator), kl_coefficient)


def assign_credit(
    attempts: Sequence[Attempt],
    in_baseline_G: BoolArray,
    bundle: Bundle,
    *,
    parts: tuple[FloatArray, Sequence[float]],
    num_greedy: int = 0,
    kl_coefficient: float = 0.0,
) -> list[Credit]:
    """Return a group's credit by the bundle's advantage, in sample order.

    Args:
        in_baseline_G: who takes part; the others get nothing and change nothing.
        parts: (values [K, G], weights K) of the terms of the rewards.
        num_greedy: how many of the last samples are greedy.
        kl_coefficient: of the KL in the reward, where the bundle takes it there.

    Raises:
        ValueError: a greedy baseline is needed and there is none.
    """
    weight = kl_coefficient if bundle.kl_in_reward else 0.0
    if bundle.advantage in ("returns", "gae"):
        return [
            _token_credit(a, bundle, weight) if used and a.num_tokens else Credit()
            for a, used in zip(attempts, in_baseline_G, strict=True)
        ]
    if bundle.advantage == "process":
        return _process_credit(attempts, in_baseline_G, bundle)
    scores = np.array([a.reward for a in attempts], np.float64)
    if weight:
        for i in np.flatnonzero(in_baseline_G).tolist():
            kl = attempts[i].kl(bundle.kl_estimator)
            scores[i] = penalised_score(scores[i], np.ones(len(kl), np.bool_), kl, weight)
    values = _group_credit(scores, in_baseline_G, bundle, attempts, parts, num_greedy)
    return [Credit(float(v)) for v in values]


def _group_credit(
    scores_G: FloatArray,
    in_baseline_G: BoolArray,
    bundle: Bundle,
    attempts: Sequence[Attempt],
    parts: tuple[FloatArray, Sequence[float]],
    num_greedy: int,
) -> FloatArray:
    """One advantage a sample."""
    match bundle.advantage:
        case "length_weighted":
            lengths = np.array([a.num_tokens for a in attempts], np.float64)
            return length_weighted_baseline(scores_G, in_baseline_G, lengths)
        case "over_greedy":
            if num_greedy < 1:
                raise ValueError(f"{bundle.name} needs a greedy sample in every group")
            greedy = scores_G[len(scores_G) - num_greedy :]
            known = greedy[np.isfinite(greedy)]
            return over_greedy(scores_G, in_baseline_G, float(known.mean()) if len(known) else None)
        case "multi_reward":
            return multi_reward(parts[0], in_baseline_G, parts[1], bundle.advantage_eps)
        case "best_of_k":
            return best_of_k(scores_G, in_baseline_G, int(bundle.option("k", 4.0)))
        case name:
            return ADVANTAGES[name](scores_G, in_baseline_G, bundle.advantage_eps)


def _token_credit(attempt: Attempt, bundle: Bundle, kl_coefficient: float) -> Credit:
    rewards = attempt.token_rewards(kl_coefficient, bundle.kl_estimator)
    everything = np.ones(attempt.num_tokens, np.bool_)
    gamma = bundle.option("gamma", 1.0)
    if bundle.advantage == "returns":
        return Credit(tokens_A=discounted_returns(rewards, everything, gamma))
    values, lam = attempt.measured("values"), bundle.option("lam", 0.95)
    alpha = bundle.option("lam_alpha", 0.0)
    advantages, returns = generalised_advantages(rewards, values, everything, gamma, lam)
    if alpha > 0:
        # VAPO: values learn unbiased returns, advantages take a lambda that grows with length.
        lam = length_adaptive_lambda(attempt.num_tokens, alpha)
        advantages, _ = generalised_advantages(rewards, values, everything, gamma, lam)
        _, returns = generalised_advantages(rewards, values, everything, gamma, 1.0)
    return Credit(tokens_A=advantages, returns_A=returns)


def _process_credit(
    attempts: Sequence[Attempt], in_baseline_G: BoolArray, bundle: Bundle
) -> list[Credit]:
    """Steps of the group normalised together; the whole is the one step of who has none."""
    used = [bool(u) and a.num_tokens > 0 for a, u in zip(attempts, in_baseline_G, strict=True)]
    if sum(used) < 2:
        return [Credit() for _ in attempts]
    steps = [
        (a.steps or ((a.num_tokens - 1, a.reward),)) if u else ()
        for a, u in zip(attempts, used, strict=True)
    ]
    values = process_rewards(steps, [a.num_tokens for a in attempts], bundle.advantage_eps)
    return [Credit(tokens_A=v) if u else Credit() for v, u in zip(values, used, strict=True)]
