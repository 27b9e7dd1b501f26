"""Two runs on the same tasks: differences, exact tests, non-inferiority.

Convention: ``before`` and ``after``; a positive difference means that ``after`` is better. An item
*learned* was wrong before and is right after; *forgotten* is the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from educe.core.seeds import numpy_random
from educe.evaluation.statistics.estimates import (
    Estimate,
    Floats,
    as_floats,
    cluster_sums,
    clustered_standard_error,
    two_sided_t,
)

Alternative = Literal["two-sided", "greater", "less"]

# Cluster sums with a common denominator up to this get an exact null distribution.
_MAX_DENOMINATOR = 5040
_MAX_LATTICE = 200_000
_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """What pairing says about after - before.

    ``p_value`` is two-sided, ``p_greater`` tests "after is better", ``p_less`` "after is worse";
    all mid-p. ``discordant`` is the share of items whose scores differ. ``plain_error`` is the
    cluster-robust error without pseudo-observations (NaN with one cluster), ``pseudo`` their size:
    what ``macro.macro_difference`` needs.
    """

    estimate: Estimate
    p_value: float
    p_greater: float
    p_less: float
    discordant: float
    method: str
    plain_error: float
    pseudo: float


def paired_difference(
    before: ArrayLike,
    after: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    samples_per_item: float = 1.0,
) -> PairedDifference:
    """Return the mean difference of per-item scores with interval and tests.

    Args:
        before, after: per-item means over samples, same items in the same order.
        clusters: label of every item (content hash, document); None: items are independent.
        samples_per_item: samples behind every mean; sets the size of the pseudo-observations.

    The interval is cluster-robust t, with one pseudo-cluster at +1/sqrt(K) and one at
    -1/sqrt(K) added to the variance. For single 0/1 samples that is the adjusted interval of
    Bonett and Price (2012), which covers where nothing or almost nothing changed and the plain one
    has width zero. The tests flip the signs of whole clusters; for independent 0/1 items this is
    McNemar's mid-p test exactly.
    """
    x, y = as_floats(before), as_floats(after)
    if len(x) != len(y):
        raise ValueError(f"paired runs need the same items: {len(x)} before, {len(y)} after")
    d = y - x
    sums, sizes = cluster_sums(d, clusters)
    pseudo = 1 / math.sqrt(max(samples_per_item, 1.0))
    estimate = adjusted_difference(sums, sizes, level=level, pseudo=pseudo)
    if min(x.min(), y.min()) >= 0 and max(x.max(), y.max()) <= 1:
        low, high = max(-1.0, estimate.low), min(1.0, estimate.high)
        estimate = replace(estimate, low=low, high=high)
    two, greater, less, method = sign_flip_test(sums)
    return PairedDifference(
        estimate, two, greater, less, float(np.mean(d != 0)), method,
        clustered_standard_error(d, clusters), pseudo,
    )  # fmt: skip


def adjusted_difference(
    sums: Floats, sizes: Floats, *, level: float = 0.95, pseudo: float = 1.0
) -> Estimate:
    """Return the mean of clustered differences with its adjusted interval.

    Args:
        sums, sizes: of the differences in each cluster.
        pseudo: size of the two opposite pseudo-observations (0 gives the plain clustered t).
    """
    num_items, num_clusters = float(sizes.sum()), len(sums)
    mean = float(sums.sum() / num_items)
    items = num_items + (2 if pseudo else 0)
    count = num_clusters + (2 if pseudo else 0)
    centre = float(sums.sum()) / items
    residual = float(np.square(sums - centre * sizes).sum())
    residual += (pseudo - centre) ** 2 + (pseudo + centre) ** 2 if pseudo else 0.0
    error = math.sqrt(residual * count / max(count - 1, 1)) / items
    if num_clusters < 2 and not pseudo:
        return Estimate(
            mean, -math.inf, math.inf, level, math.nan, round(num_items), num_clusters, "paired"
        )
    half = two_sided_t(level, count - 1) * error
    # The observed mean always lies inside, the shrunk centre only steers the limits.
    low, high = min(centre - half, mean), max(centre + half, mean)
    return Estimate(
        mean, low, high, level, error, round(num_items), num_clusters, "paired-adjusted"
    )


def paired_t_interval(
    before: ArrayLike,
    after: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
) -> Estimate:
    """Return the plain (cluster-robust) t interval of the mean difference, for many items."""
    d = as_floats(after) - as_floats(before)
    sums, sizes = cluster_sums(d, clusters)
    return adjusted_difference(sums, sizes, level=level, pseudo=0.0)


@dataclass(frozen=True, slots=True)
class McNemar:
    """McNemar's test on discordant pairs. ``exact`` never exceeds its level; ``mid_p`` is the
    less conservative one to prefer (Fagerland et al. 2013)."""

    learned: int
    forgotten: int
    exact: float
    mid_p: float
    exact_greater: float
    mid_p_greater: float
    exact_less: float
    mid_p_less: float


def mcnemar(learned: int, forgotten: int) -> McNemar:
    """Return exact binomial(b + c, 1/2) tests; "greater" means more learned than forgotten."""
    if learned < 0 or forgotten < 0:
        raise ValueError(f"counts must be >= 0, got {learned} and {forgotten}")
    total = learned + forgotten

    def upper(count: int) -> tuple[float, float]:
        if total == 0:
            return 1.0, 0.5
        tail = 1.0 if count == 0 else float(special.bdtrc(count - 1, total, 0.5))
        point = float(special.binom(total, count)) * 0.5**total if total < 1000 else _point(
            count, total
        )  # fmt: skip
        return tail, tail - point / 2

    greater, mid_greater = upper(learned)
    less, mid_less = upper(forgotten)
    return McNemar(
        learned, forgotten,
        exact=min(1.0, 2 * min(greater, less)), mid_p=min(1.0, 2 * min(mid_greater, mid_less)),
        exact_greater=greater, mid_p_greater=mid_greater,
        exact_less=less, mid_p_less=mid_less,
    )  # fmt: skip


def _point(count: int, total: int) -> float:
    log = special.gammaln(total + 1) - special.gammaln(count + 1)
    log -= special.gammaln(total - count + 1)
    return float(math.exp(log - total * math.log(2)))


def sign_flip_test(cluster_totals: ArrayLike, *, seed: int = 0) -> tuple[float, float, float, str]:
    """Return mid-p values (two-sided, greater, less) and the method's name.

    Under the null, the sign of every cluster's total is a coin flip. The distribution of their sum
    is computed exactly by convolution when the totals share a small denominator (0/1 scores with K
    samples do), else drawn 20,000 times.
    """
    totals = as_floats(cluster_totals)
    moving = totals[totals != 0]
    if len(moving) == 0:
        return 1.0, 0.5, 0.5, "sign-flip-exact"
    steps = _lattice(moving)
    observed = float(moving.sum())
    if steps is not None:
        above, at, below = _exact_tails(steps)
        greater, less = min(1.0, above + at / 2), min(1.0, below + at / 2)
        return min(1.0, 2 * min(greater, less)), greater, less, "sign-flip-exact"
    rng = numpy_random("sign-flip", seed, len(moving))
    size = np.abs(moving)
    draws = np.concatenate(
        [(rng.integers(0, 2, (1000, len(size))) * 2.0 - 1.0) @ size for _ in range(_DRAWS // 1000)]
    )
    tolerance = 1e-9 * float(size.sum())
    above = float((draws > observed + tolerance).sum())
    at = float((np.abs(draws - observed) <= tolerance).sum())
    # The observed assignment is one of the draws, so no p-value is ever zero.
    greater = (above + at / 2 + 0.5) / (_DRAWS + 1)
    less = (_DRAWS - above - at / 2 + 0.5) / (_DRAWS + 1)
    return min(1.0, 2 * min(greater, less)), greater, less, "sign-flip-drawn"


def _lattice(moving: Floats) -> list[int] | None:
    """Return the totals as integers over their common denominator, or None when there is none."""
    denominator = 1
    for value in set(moving.tolist()):
        part = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
        if abs(float(part) - value) > 1e-9:
            return None
        denominator = math.lcm(denominator, part.denominator)
        if denominator > _MAX_DENOMINATOR:
            return None
    steps = [round(v * denominator) for v in moving.tolist()]
    shared = math.gcd(*steps)
    steps = [s // shared for s in steps]
    return steps if sum(abs(s) for s in steps) <= _MAX_LATTICE else None


def _exact_tails(steps: list[int]) -> tuple[float, float, float]:
    """Return P(S > s), P(S = s) and P(S < s) for S = sum of ±|step| and s = sum of steps."""
    # With U = sum of the steps that came out positive: S = 2U - total, so a one-sided lattice.
    sizes = sorted(abs(s) for s in steps)
    chances = np.ones(1)
    for size in sizes:
        grown = np.zeros(len(chances) + size)
        grown[: len(chances)] += chances / 2
        grown[size:] += chances / 2
        chances = grown
    observed = sum(s for s in steps if s > 0)
    # Each tail is summed by itself: 1 minus the others would lose small p-values to rounding.
    above, below = chances[observed + 1 :].sum(), chances[:observed].sum()
    return float(above), float(chances[observed]), float(below)


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """Whether ``after`` is shown to be no worse than ``before`` by more than ``margin``.

    Not being significantly worse is not the same: with few items nothing is. ``p_value`` is
    one-sided, for the hypothesis difference <= -margin.
    """

    difference: float
    lower_bound: float
    margin: float
    level: float
    p_value: float
    is_non_inferior: bool


def non_inferiority(
    before: ArrayLike,
    after: ArrayLike,
    margin: float,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    samples_per_item: float = 1.0,
) -> NonInferiority:
    """Test that after - before > -margin, at one-sided coverage ``level``."""
    if margin <= 0:
        raise ValueError(f"a non-inferiority margin must be positive, got {margin}")
    # A one-sided bound at ``level`` is the lower limit of a two-sided interval at 2·level - 1.
    estimate = paired_difference(
        before, after, clusters, level=2 * level - 1, samples_per_item=samples_per_item
    ).estimate
    degrees = estimate.num_clusters + 1
    ratio = (estimate.value + margin) / estimate.standard_error
    p_value = float(1 - special.stdtr(degrees, ratio))
    return NonInferiority(
        estimate.value, estimate.low, margin, level, p_value, estimate.low > -margin
    )
