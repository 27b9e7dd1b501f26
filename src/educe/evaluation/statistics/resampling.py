"""Bootstrap intervals, with whole clusters resampled and pairs kept together."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from educe.core.seeds import numpy_random
from educe.evaluation.statistics.estimates import (
    Estimate,
    Floats,
    as_floats,
    cluster_labels,
    cluster_sums,
    two_sided_t,
    two_sided_z,
)

# Numbers drawn at a time, so that a large bootstrap stays small in memory.
_CHUNK = 4_000_000


def bootstrap_mean(
    values: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the mean with a cluster-bootstrap interval.

    Resamples clusters with replacement; every replicate is (sum of values) / (number of items), so
    unequal clusters are weighted as in the estimate. The percentile interval is expanded for few
    clusters (Hesterberg 2015): without it, it is too short by about sqrt((C-1)/C) and z for t.
    The standard error is that of the replicates, times sqrt(C/(C-1)).
    """
    x = as_floats(values)
    sums, sizes = cluster_sums(x, clusters)
    count = len(sums)
    if count < 2:
        return Estimate(
            float(x.mean()), -math.inf, math.inf, level, math.nan, len(x), count, "bootstrap"
        )
    rng = numpy_random("bootstrap", seed, count, resamples)
    replicates = np.empty(resamples)
    step = max(1, _CHUNK // count)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        picks = rng.integers(0, count, size=(rows, count))
        replicates[start : start + rows] = sums[picks].sum(1) / sizes[picks].sum(1)
    low, high = expanded_percentiles(replicates, count, level)
    error = float(replicates.std(ddof=1)) * math.sqrt(count / (count - 1))
    return Estimate(float(x.mean()), low, high, level, error, len(x), count, "bootstrap")


def bootstrap_statistic(
    statistic: Callable[[NDArray[np.intp]], float],
    num_items: int,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Return any statistic of items (F1, a median, AUROC, pass^k, a difference of them).

    Args:
        statistic: maps an index array of items (with repeats) to a number. For a paired
            comparison it indexes both runs by the same array, which keeps pairs together. A
            replicate that is NaN (a resample without any positive, say) is left out.
        num_items: items available; the estimate itself uses ``arange(num_items)``.

    Raises ValueError when over half of the replicates are undefined.
    """
    labels = np.arange(num_items) if clusters is None else cluster_labels(clusters)
    if len(labels) != num_items:
        raise ValueError(f"{num_items} items but {len(labels)} cluster labels")
    count = int(labels.max()) + 1
    order = np.argsort(labels, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(labels))[:-1])
    rng = numpy_random("bootstrap-statistic", seed, num_items, count, resamples)
    values = np.array(
        [
            statistic(np.concatenate([members[c] for c in rng.integers(0, count, count)]))
            for _ in range(resamples)
        ]
    )
    defined = values[np.isfinite(values)]
    if len(defined) < resamples / 2:
        raise ValueError(f"the statistic is undefined in {resamples - len(defined)} resamples")
    low, high = expanded_percentiles(defined, count, level)
    error = float(defined.std(ddof=1)) * math.sqrt(count / max(count - 1, 1))
    value = float(statistic(np.arange(num_items)))
    return Estimate(value, low, high, level, error, num_items, count, "bootstrap")


def expanded_percentiles(
    replicates: Floats, num_clusters: int, level: float
) -> tuple[float, float]:
    """Return percentile limits at a level widened for ``num_clusters`` (Hesterberg 2015)."""
    if num_clusters < 2:
        return -math.inf, math.inf
    widen = math.sqrt(num_clusters / (num_clusters - 1))
    z = widen * two_sided_t(level, num_clusters - 1)
    z = max(z, two_sided_z(level))
    tail = float(special.ndtr(-z))
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return float(low), float(high)
