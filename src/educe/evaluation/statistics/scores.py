"""The mean score of tasks with several samples each, with the interval that suits its kind."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from educe.evaluation.statistics.estimates import (
    Estimate,
    Floats,
    as_floats,
    cluster_sums,
    clustered_standard_error,
    two_sided_t,
    two_sided_z,
    wilson_interval,
)
from educe.evaluation.statistics.resampling import bootstrap_mean


def score_estimate(
    samples_per_item: Sequence[Sequence[float]],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 2000,
) -> Estimate:
    """Return a mean score over items with the interval that suits the kind of score.

    Args:
        samples_per_item: for every item the scores of its samples; every item needs one or more.
        clusters: label of every item; None makes every item its own cluster.
        resamples: of the bootstrap, where it is used.

    0/1 scores take Wilson's interval on the *effective* number of trials p(1 - p)/SE², where SE is
    cluster-robust over items, with t quantiles on C - 1 degrees (Korn and Graubard 1998). So K
    samples of an item count for as much as they really say. Graded scores take the cluster
    bootstrap; graded scores in [0, 1] without any spread take Wilson's on the number of clusters,
    which is conservative, instead of an interval of width zero.

    Raises ValueError without items or where an item has no samples.
    """
    if not samples_per_item or any(len(s) == 0 for s in samples_per_item):
        raise ValueError("score_estimate needs at least one item and one sample of every item")
    means = np.array([math.fsum(s) / len(s) for s in samples_per_item])
    flat = as_floats([v for s in samples_per_item for v in s])
    is_binary = bool(np.isin(flat, (0.0, 1.0)).all())
    is_bounded = bool(((flat >= 0) & (flat <= 1)).all())
    sums, _ = cluster_sums(means, clusters)
    error = clustered_standard_error(means, clusters)
    if not is_binary and (error > 0 or not is_bounded):
        return bootstrap_mean(means, clusters, level=level, resamples=resamples)
    return _effective_wilson(means, len(flat), len(sums), error, level)


def _effective_wilson(
    means: Floats, num_samples: int, num_clusters: int, error: float, level: float
) -> Estimate:
    share = float(means.mean())
    z = two_sided_z(level)
    num_items = len(means)
    if num_items == num_samples == num_clusters:
        # The interval is Wilson's; the error kept for averages over domains is the unbiased one.
        plain = wilson_interval(share, num_items, z, level, "wilson")
        return replace(plain, standard_error=error) if error > 0 else plain
    is_mixed = 0 < share < 1 and num_clusters > 1 and num_samples > num_clusters
    trials = float(num_clusters)
    if is_mixed:
        # n_eff cannot exceed the samples drawn; t for z because few clusters estimate SE badly.
        ratio = z / two_sided_t(level, num_clusters - 1)
        wanted = share * (1 - share) / error**2 if error > 0 else math.inf
        trials = max(1.0, min(wanted, float(num_samples)) * ratio**2)
    e = wilson_interval(share, trials, z, level, "clustered-wilson")
    known = error if error > 0 else e.standard_error
    return replace(e, standard_error=known, num_items=num_items, num_clusters=num_clusters)
