"""Many tests at once: which of them may be claimed.

Every function takes p-values (or e-values) and returns *adjusted* values: claim those at or below
the level (for e-values, a boolean array).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from educe.evaluation.statistics.estimates import Floats


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Return BH-adjusted p-values (false discovery rate; independent or positively dependent)."""
    from scipy.stats import false_discovery_control

    p = _check(p_values)
    return np.asarray(false_discovery_control(p, method="bh")) if len(p) else p


def benjamini_yekutieli(p_values: ArrayLike) -> Floats:
    """Return BY-adjusted p-values (false discovery rate under any dependence)."""
    from scipy.stats import false_discovery_control

    p = _check(p_values)
    return np.asarray(false_discovery_control(p, method="by")) if len(p) else p


def holm(p_values: ArrayLike) -> Floats:
    """Return Holm-adjusted p-values (family-wise error; for guardrails that block a release)."""
    p = _check(p_values)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0) if len(p) else scaled
    return adjusted


def bonferroni(p_values: ArrayLike) -> Floats:
    """Return Bonferroni-adjusted p-values (family-wise error; Holm is never worse)."""
    p = _check(p_values)
    return np.minimum(p * len(p), 1.0)


def e_benjamini_hochberg(e_values: ArrayLike, level: float) -> NDArray[np.bool_]:
    """Return which hypotheses e-BH rejects at FDR ``level`` (Wang and Ramdas 2022).

    Valid under any dependence, so for e-values of sequential tests. Rejects the k* largest, where
    k* is the largest k whose k-th largest e-value is at least m / (k level).
    """
    e = np.asarray(e_values, dtype=np.float64)
    if e.ndim != 1 or (e < 0).any() or np.isnan(e).any():
        raise ValueError("e-values must be a one-dimensional array of numbers >= 0")
    if not 0 < level < 1:
        raise ValueError(f"the FDR level must lie in (0, 1), got {level}")
    order = np.argsort(-e, kind="stable")
    ranks = np.arange(1, len(e) + 1)
    passing = np.flatnonzero(e[order] * ranks * level >= len(e))
    rejected = np.zeros(len(e), dtype=np.bool_)
    if len(passing):
        rejected[order[: passing[-1] + 1]] = True
    return rejected


def _check(p_values: ArrayLike) -> Floats:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values must be a one-dimensional array within [0, 1]")
    return p
