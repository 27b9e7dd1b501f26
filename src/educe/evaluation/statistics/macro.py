"""Averages over domains that all weigh the same: of scores, chance-corrected scores, differences.

The claims are about the domains at hand, with new tasks of them. Variances add; what makes the
intervals right over many domains is that they are built for the mean itself, never put together
from the domains' own guarded or skewed limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from educe.evaluation.statistics.estimates import (
    Estimate,
    Floats,
    two_sided_t,
    two_sided_z,
    wilson_interval,
)
from educe.evaluation.statistics.paired import PairedDifference


def macro_average(
    estimates: Sequence[Estimate], *, weights: Sequence[float] | None = None
) -> Estimate:
    """Return the mean over *these* domains with its interval; all weigh the same by default.

    The claim is about the domains at hand (fixed), with new tasks of them: variances add. Within
    [0, 1] the interval is Wilson's on the effective number of trials p(1 - p) / SE² of the mean
    itself, so it neither leaves [0, 1] nor has width zero; elsewhere it is t with Satterthwaite's
    degrees. (Combining the domains' own limits instead undercovers over many domains of low
    scores.) For a claim about domains not seen, use :func:`mean_estimate` over one value a domain.

    Args:
        weights: relative, one an estimate.

    Raises ValueError without estimates, for mixed coverage levels or wrong weights.
    """
    if not estimates:
        raise ValueError("macro_average needs at least one estimate")
    levels = {e.level for e in estimates}
    if len(levels) > 1:
        raise ValueError(f"macro_average cannot mix coverage levels, got {sorted(levels)}")
    w = np.ones(len(estimates)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(estimates),) or not (w > 0).all():
        raise ValueError(f"macro_average needs {len(estimates)} positive weights, got {weights}")
    level = levels.pop()
    # Exactly 1 where all are 1: a rounded mean would have an interval that ends below it.
    value = math.fsum(w * [e.value for e in estimates]) / math.fsum(w)
    w = w / w.sum()
    variances = np.square(w) * [e.standard_error**2 for e in estimates]
    variance = float(np.nansum(variances))
    counts = np.array([e.num_clusters for e in estimates])
    t = two_sided_t(level, satterthwaite(variances, counts))
    num_items, num_clusters = sum(e.num_items for e in estimates), int(counts.sum())
    if all(e.low >= 0 and e.high <= 1 for e in estimates):
        trials = float(num_clusters)
        if variance > 0:
            trials = max(1.0, value * (1 - value) / variance * (two_sided_z(level) / t) ** 2)
        e = wilson_interval(value, trials, two_sided_z(level), level, "macro-wilson")
        low, high, method = e.low, e.high, e.method
    else:
        half = t * math.sqrt(variance)
        low, high, method = value - half, value + half, "macro-t"
    error = math.sqrt(variance)
    return Estimate(value, low, high, level, error, num_items, num_clusters, method)


def satterthwaite(variances: Floats, num_clusters: ArrayLike) -> float:
    """Return the degrees of freedom of a sum of independent variance estimates.

    (sum v)² / sum (v² / (C - 1)); of nothing but zeros, the clusters themselves.
    """
    v = np.nan_to_num(np.asarray(variances, dtype=np.float64))
    counts = np.asarray(num_clusters, dtype=np.float64)
    below = float((np.square(v) / np.maximum(counts - 1, 1)).sum())
    return float(v.sum()) ** 2 / below if below > 0 else max(float(counts.sum()) - 1, 1.0)


def macro_chance_corrected(estimates: Sequence[Estimate], floors: Sequence[float]) -> Estimate:
    """Return the mean over domains of (s - floor) / (1 - floor), each with its own floor.

    It is a linear map of a weighted mean of the scores, and so is its interval.
    """
    if len(floors) != len(estimates) or not all(0 <= f < 1 for f in floors):
        raise ValueError(f"expected {len(estimates)} floors in [0, 1), got {list(floors)}")
    scales = [1 / (1 - f) for f in floors]
    mean = macro_average(estimates, weights=scales)
    count = len(estimates)
    scale = sum(scales) / count
    shift = sum(f * s for f, s in zip(floors, scales, strict=True)) / count
    return replace(
        mean,
        value=scale * mean.value - shift,
        low=scale * mean.low - shift,
        high=scale * mean.high - shift,
        standard_error=scale * mean.standard_error,
    )


def macro_difference(differences: Sequence[PairedDifference]) -> Estimate:
    """Return the unweighted mean difference over *these* domains with its interval.

    Variances of the domains add, without their pseudo-observations: one pair for the whole mean,
    of the weight of one task, guards against a width of zero. (A pair in every domain would cost a
    comparison over a hundred domains most of its power.) t with Satterthwaite's degrees.
    """
    if not differences:
        raise ValueError("macro_difference needs at least one domain")
    if len(differences) == 1:
        return differences[0].estimate
    estimates = [d.estimate for d in differences]
    level, count = estimates[0].level, len(estimates)
    value = sum(e.value for e in estimates) / count
    # A domain with a single cluster has no variance of its own: its guarded one stands in.
    errors = [
        e.standard_error if math.isnan(d.plain_error) else d.plain_error
        for d, e in zip(differences, estimates, strict=True)
    ]
    variances = np.square(errors) / count**2
    num_items, num_clusters = (
        sum(e.num_items for e in estimates),
        sum(e.num_clusters for e in estimates),
    )
    guard = 2 * (max(d.pseudo for d in differences) / num_items) ** 2
    error = math.sqrt(float(variances.sum()) + guard)
    half = error * two_sided_t(level, satterthwaite(variances, [e.num_clusters for e in estimates]))
    return Estimate(
        value, value - half, value + half, level, error, num_items, num_clusters, "macro-paired"
    )
