"""Rates of many domains drawn towards their family, for ranking and display only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from educe.evaluation.statistics.estimates import Floats, as_floats


def shrunk_rates(
    num_right: ArrayLike, num_items: ArrayLike, families: Sequence[Hashable] | None = None
) -> Floats:
    """Return rates of many domains shrunk towards their family's mean, for ranking and display.

    Empirical Bayes on the logit scale with the method-of-moments spread between domains. The
    largest of 300 noisy rates is mostly luck; shrunk ones can be ranked. Never use them for a claim
    about error rates: they are biased on purpose.
    """
    right, total = as_floats(num_right), as_floats(num_items)
    if len(right) != len(total) or (total < 1).any() or (right > total).any() or (right < 0).any():
        raise ValueError("expected 0 <= num_right <= num_items >= 1 for every domain")
    # Haldane-Anscombe: half a success and half a failure keep logits finite.
    logits = np.log((right + 0.5) / (total - right + 0.5))
    variances = 1 / (right + 0.5) + 1 / (total - right + 0.5)
    names = list(families) if families is not None else ["all"] * len(right)
    if len(names) != len(right):
        raise ValueError(f"{len(right)} domains but {len(names)} families")
    shrunk = np.empty_like(logits)
    for family in dict.fromkeys(names):
        index = np.flatnonzero([n == family for n in names])
        shrunk[index] = _shrink(logits[index], variances[index])
    return np.asarray(special.expit(shrunk), dtype=np.float64)


def _shrink(values: Floats, variances: Floats) -> Floats:
    """Normal-normal empirical Bayes with the DerSimonian-Laird spread."""
    if len(values) < 2:
        return values
    weights = 1 / variances
    centre = float((weights * values).sum() / weights.sum())
    excess = float((weights * (values - centre) ** 2).sum()) - (len(values) - 1)
    scale = float(weights.sum() - np.square(weights).sum() / weights.sum())
    between = max(0.0, excess / scale)
    mean = float((values / (variances + between)).sum() / (1 / (variances + between)).sum())
    keep = between / (between + variances)
    return np.asarray(mean + keep * (values - mean))
