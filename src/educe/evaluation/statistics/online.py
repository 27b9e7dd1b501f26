"""Two models before real users: who sees which, whether the split is sound, what was gained.

Check the sample ratio before any metric: a split that is off says that users were lost on the way,
and then no metric means anything. Cluster by user, never by request.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from educe.evaluation.statistics.estimates import (
    Estimate,
    Floats,
    as_floats,
    cluster_sums,
    mean_estimate,
    two_sided_t,
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The arm of one unit and the probability with which it was drawn (log it with the answer)."""

    arm: str
    propensity: float


def assign_arm(unit: str, weights: Mapping[str, float], *, salt: str) -> Assignment:
    """Return the arm of a user or session: a pure function of (unit, salt, weights), so sticky.

    Args:
        weights: share of each arm; in the mapping's order. Growing one arm's share at the cost of
            the next one only moves units between these two.
        salt: name of the experiment, so that experiments split independently.
    """
    total = sum(weights.values())
    if total <= 0 or min(weights.values()) < 0:
        raise ValueError(f"arm weights must be >= 0 with a positive sum, got {dict(weights)}")
    digest = hashlib.blake2b(f"{salt}\x1f{unit}".encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "little") / 2**64 * total
    passed = 0.0
    chosen = ""
    for arm, weight in weights.items():
        if weight == 0:
            continue
        chosen, passed = arm, passed + weight
        if position < passed:
            break
    return Assignment(chosen, weights[chosen] / total)


def sample_ratio_mismatch(counts: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """Return the chi-square p-value that counts of *units* fit the intended shares.

    Stop and look for the cause below about 0.001; nothing else of the experiment counts then.
    """
    arms = [a for a, w in weights.items() if w > 0]
    if len(arms) < 2:
        raise ValueError(f"a ratio needs two arms with a positive weight, got {arms}")
    observed = np.array([counts.get(a, 0) for a in arms], dtype=np.float64)
    if sum(n for a, n in counts.items() if a not in arms):
        return 0.0  # units in an arm that should have none
    if observed.sum() == 0:
        return 1.0
    shares = np.array([weights[a] for a in arms])
    expected = observed.sum() * shares / shares.sum()
    statistic = float((np.square(observed - expected) / expected).sum())
    return float(special.chdtrc(len(arms) - 1, statistic))


@dataclass(frozen=True, slots=True)
class Adjusted:
    """Outcomes after CUPED: same mean, less variance. ``reduction`` is the share removed."""

    values: Floats
    theta: float
    reduction: float


def cuped(values: ArrayLike, covariate: ArrayLike) -> Adjusted:
    """Return outcomes less what a pre-period covariate explains (Deng et al. 2013).

    Y - theta (X - mean X) with theta = Cov(Y, X) / Var(X), both over *all* arms together. The
    covariate must be from before the assignment, or the effect itself is subtracted.
    """
    y, x = as_floats(values), as_floats(covariate)
    if len(x) != len(y):
        raise ValueError(f"{len(y)} outcomes but {len(x)} covariates")
    spread = float(x.var())
    if spread == 0:
        return Adjusted(y, 0.0, 0.0)
    theta = float(((y - y.mean()) * (x - x.mean())).mean() / spread)
    adjusted = y - theta * (x - x.mean())
    before = float(y.var())
    return Adjusted(adjusted, theta, 1 - float(adjusted.var()) / before if before > 0 else 0.0)


def ratio_estimate(
    numerator: ArrayLike,
    denominator: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
) -> Estimate:
    """Return sum(numerator) / sum(denominator) with its delta-method interval.

    For metrics whose denominator is random too (clicks an answer, tokens a second); clusters are
    users. The linearised residual (a - r b) / mean b carries the variance.
    """
    a, b = as_floats(numerator), as_floats(denominator)
    if len(a) != len(b) or b.sum() <= 0:
        raise ValueError("a ratio needs as many denominators, with a positive sum")
    ratio = float(a.sum() / b.sum())
    sums, _ = cluster_sums(a - ratio * b, clusters)
    count = len(sums)
    if count < 2:
        return Estimate(ratio, -math.inf, math.inf, level, math.nan, len(a), count, "delta")
    error = math.sqrt(float(np.square(sums).sum()) * count / (count - 1)) / float(b.sum())
    half = two_sided_t(level, count - 1) * error
    return Estimate(ratio, ratio - half, ratio + half, level, error, len(a), count, "delta")


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """The value of another policy from logged answers. Distrust it when few effective samples
    remain: ``effective_samples`` is (sum w)² / sum w²."""

    value: Estimate
    effective_samples: float
    clipped_share: float


def inverse_propensity(
    rewards: ArrayLike,
    logged: ArrayLike,
    target: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    predicted: ArrayLike | None = None,
    predicted_target: ArrayLike | None = None,
    clip: float = 20.0,
    level: float = 0.95,
) -> OffPolicy:
    """Return mean(pi_new / pi_log · r), doubly robust where a reward model is given.

    Args:
        logged, target: probability of the logged action under the logging and the new policy.
        predicted: model's reward of the logged action; ``predicted_target`` its mean under the new
            policy. With both, the estimate is mean(predicted_target + w (r - predicted)).
        clip: largest weight; what is clipped biases towards zero and is reported.
    """
    r, p, q = as_floats(rewards), as_floats(logged), as_floats(target)
    if not len(r) == len(p) == len(q):
        raise ValueError(f"got {len(r)} rewards, {len(p)} logged and {len(q)} target propensities")
    if (p <= 0).any() or (q < 0).any():
        raise ValueError("logged propensities must be positive and target ones not negative")
    raw = q / p
    weights = np.minimum(raw, clip)
    if (predicted is None) != (predicted_target is None):
        raise ValueError("give both predicted and predicted_target, or neither")
    terms = weights * r
    if predicted is not None and predicted_target is not None:
        terms = as_floats(predicted_target) + weights * (r - as_floats(predicted))
    squares = float(np.square(weights).sum())
    return OffPolicy(
        mean_estimate(terms, clusters, level=level),
        float(weights.sum()) ** 2 / squares if squares > 0 else 0.0,
        float((raw > clip).mean()),
    )
