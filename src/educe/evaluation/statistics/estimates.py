"""Estimates of one number with an interval: proportions, and means of clustered items.

Knows nothing about models or domains: arrays in, :class:`Estimate` out.

Legend: an *item* is one task; its *samples* are several completions of it; a *cluster* is a set of
items that are not independent (the same question drawn twice, questions on one document). Samples
of one item never count as items.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, its interval and where both come from.

    Attributes:
        value: the point estimate.
        low, high: limits of the interval.
        level: coverage that the interval is built for.
        standard_error: of ``value``, NaN where the method has none.
        num_items: items (tasks) behind it.
        num_clusters: independent clusters behind it.
        method: name of the interval.
    """

    value: float
    low: float
    high: float
    level: float
    standard_error: float
    num_items: int
    num_clusters: int
    method: str

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        """Whether ``value`` lies outside the interval."""
        return not self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Estimate:
        return Estimate(**raw)


def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile."""
    return float(special.ndtri(probability))


def two_sided_z(level: float) -> float:
    """Return z with P(|Z| <= z) = level, e.g. 1.96 for 0.95."""
    _check_level(level)
    return normal_quantile(0.5 + level / 2)


def two_sided_t(level: float, degrees: float) -> float:
    """Return t with P(|T| <= t) = level at ``degrees`` of freedom."""
    _check_level(level)
    return float(special.stdtrit(degrees, 0.5 + level / 2))


def wilson(successes: float, trials: float, *, level: float = 0.95) -> Estimate:
    """Return Wilson's score interval of a proportion (Wilson 1927).

    Fractional arguments are allowed: an effective number of trials is one way to carry a design
    effect. Covers well from a handful of trials on, where value ± z·SE does not.
    """
    _check_counts(successes, trials)
    return wilson_interval(successes / trials, trials, two_sided_z(level), level, "wilson")


def wilson_interval(share: float, trials: float, z: float, level: float, method: str) -> Estimate:
    """Return Wilson's interval for a share of (effective) trials at quantile ``z``."""
    spread = z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    low = 0.0 if share <= 0 else max(0.0, centre - half)
    high = 1.0 if share >= 1 else min(1.0, centre + half)
    error = math.sqrt(share * (1 - share) / trials)
    count = round(trials)
    return Estimate(share, low, high, level, error, count, count, method)


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Estimate:
    """Return the exact interval of a proportion (Clopper and Pearson 1934): never undercovers."""
    _check_counts(successes, trials)
    tail = (1 - level) / 2
    _check_level(level)
    failures = trials - successes
    low = 0.0 if successes == 0 else float(special.betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures == 0 else float(special.betaincinv(successes + 1, failures, 1 - tail))
    share = successes / trials
    error = math.sqrt(share * (1 - share) / trials)
    return Estimate(share, low, high, level, error, trials, trials, "clopper-pearson")


def beta_posterior(
    successes: float, trials: float, *, level: float = 0.95, prior: float = 1.0
) -> Estimate:
    """Return mean and equal-tailed interval of the posterior under a Beta(prior, prior) prior.

    ``prior`` 1 is uniform, 0.5 is Jeffreys'.
    """
    _check_counts(successes, trials)
    _check_level(level)
    a, b = successes + prior, trials - successes + prior
    tail = (1 - level) / 2
    low, high = special.betaincinv(a, b, tail), special.betaincinv(a, b, 1 - tail)
    error = math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    count = round(trials)
    return Estimate(a / (a + b), float(low), float(high), level, error, count, count, "beta")


def zero_failure_bound(trials: int, *, level: float = 0.95) -> float:
    """Return the one-sided upper bound of a failure rate after ``trials`` without any failure.

    Exact: 1 - (1 - level)^(1/n); the "rule of three" 3/n is its approximation at 0.95.
    """
    if trials < 1:
        raise ValueError(f"a zero-failure bound needs at least one trial, got {trials}")
    _check_level(level)
    return float(1 - (1 - level) ** (1 / trials))


def standard_error(values: ArrayLike) -> float:
    """Return the standard error of the mean of independent items: sd / sqrt(n)."""
    x = as_floats(values)
    return float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def clustered_standard_error(values: ArrayLike, clusters: Sequence[Hashable] | None) -> float:
    """Return the cluster-robust standard error of a mean (Miller 2024, arXiv 2411.00640).

    (1/n) sqrt(sum over clusters of the squared sum of residuals), times sqrt(C / (C - 1)).
    With clusters of one it equals :func:`standard_error`. NaN with fewer than two clusters.
    """
    x = as_floats(values)
    sums, _ = cluster_sums(x - x.mean(), clusters)
    count = len(sums)
    if count < 2:
        return math.nan
    error = float(math.sqrt(np.square(sums).sum() * count / (count - 1)) / len(x))
    # Equal values leave rounding dust of the mean behind, which is no spread.
    return error if error > 1e-13 * float(np.abs(x).max()) else 0.0


def cluster_sums(values: Floats, clusters: Sequence[Hashable] | None) -> tuple[Floats, Floats]:
    """Return (sum of values, number of items) of every cluster, in order of first appearance."""
    if clusters is None:
        return values.astype(np.float64), np.ones(len(values))
    labels = cluster_labels(clusters)
    if len(labels) != len(values):
        raise ValueError(f"{len(values)} values but {len(labels)} cluster labels")
    size = int(labels.max()) + 1 if len(labels) else 0
    return (
        np.asarray(np.bincount(labels, weights=values, minlength=size), dtype=np.float64),
        np.bincount(labels, minlength=size).astype(np.float64),
    )


def cluster_labels(clusters: Sequence[Hashable]) -> NDArray[np.intp]:
    """Return integers 0..C-1 for arbitrary labels, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(c, len(seen)) for c in clusters], dtype=np.intp)


def mean_estimate(
    values: ArrayLike, clusters: Sequence[Hashable] | None = None, *, level: float = 0.95
) -> Estimate:
    """Return the mean with a t interval on C - 1 degrees of freedom, clustered if told.

    For unbounded or many values. Do not use it for few 0/1 items: see ``scores.score_estimate``.
    """
    x = as_floats(values)
    sums, _ = cluster_sums(x, clusters)
    error = clustered_standard_error(x, clusters)
    mean = float(x.mean())
    half = two_sided_t(level, len(sums) - 1) * error if len(sums) > 1 else math.inf
    name = "t" if clusters is None else "clustered-t"
    return Estimate(mean, mean - half, mean + half, level, error, len(x), len(sums), name)


@dataclass(frozen=True, slots=True)
class VarianceSplit:
    """How the variance of a mean splits: more items or more samples of each?

    Var(mean) = (item_variance + sample_variance / K) / n (Miller 2024).
    """

    item_variance: float
    sample_variance: float
    num_items: int
    num_samples: int

    def standard_error(self, num_items: int, num_samples: int) -> float:
        """Return the predicted standard error of another design."""
        return math.sqrt((self.item_variance + self.sample_variance / num_samples) / num_items)


def variance_split(samples_NK: ArrayLike) -> VarianceSplit:
    """Return the split for N items with K >= 2 samples each (method of moments)."""
    x = np.asarray(samples_NK, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] < 2 or x.shape[0] < 2:
        raise ValueError(f"variance_split needs [items >= 2, samples >= 2], got shape {x.shape}")
    within = float(x.var(axis=1, ddof=1).mean())
    between = float(x.mean(axis=1).var(ddof=1)) - within / x.shape[1]
    return VarianceSplit(max(between, 0.0), within, x.shape[0], x.shape[1])


def chance_corrected(estimate: Estimate, floor: float) -> Estimate:
    """Return (s - floor) / (1 - floor) with its interval: 0 is chance, 1 is perfect."""
    if not 0 <= floor < 1:
        raise ValueError(f"a floor must lie in [0, 1), got {floor}")
    scale = 1 / (1 - floor)
    return Estimate(
        (estimate.value - floor) * scale, (estimate.low - floor) * scale,
        (estimate.high - floor) * scale, estimate.level, estimate.standard_error * scale,
        estimate.num_items, estimate.num_clusters, estimate.method,
    )  # fmt: skip


def as_floats(values: ArrayLike) -> Floats:
    """Return a one-dimensional float64 array; raises ValueError when empty or not finite."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise ValueError(f"expected a non-empty one-dimensional array, got shape {x.shape}")
    _check_finite(x)
    return x


def _check_finite(x: Floats) -> None:
    if not np.isfinite(x).all():
        raise ValueError(
            f"{int((~np.isfinite(x)).sum())} of {x.size} values are not finite; unscored samples "
            f"must be left out and counted, not passed as NaN"
        )


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"a coverage level must lie in (0, 1), got {level}")


def _check_counts(successes: float, trials: float) -> None:
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(f"expected 0 <= successes <= trials > 0, got {successes} of {trials}")
