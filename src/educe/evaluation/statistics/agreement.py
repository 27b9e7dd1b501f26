"""How far raters (or a judge and people) agree, beyond chance.

Ratings are an items x raters array; ``nan`` is "not rated". Codes are numbers; for nominal scales
they are only names. Report raw agreement and prevalence beside any coefficient: when one class
dominates, kappa is low at high agreement (the kappa paradox), which Gwet's AC1 avoids.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from educe.evaluation.statistics.estimates import Estimate, Floats
from educe.evaluation.statistics.resampling import bootstrap_statistic

Scale = Literal["nominal", "ordinal", "interval", "ratio"]


def raw_agreement(ratings_NR: ArrayLike) -> float:
    """Return the share of agreeing pairs of raters, over items with two ratings or more."""
    counts, _ = _category_counts(_table(ratings_NR))
    totals = counts.sum(1)
    use = totals >= 2
    agreeing = (counts * (counts - 1)).sum(1)[use] / (totals * (totals - 1))[use]
    return float(agreeing.mean()) if use.any() else float("nan")


def cohen_kappa(
    first: ArrayLike,
    second: ArrayLike,
    *,
    weights: Literal["none", "linear", "quadratic"] = "none",
) -> float:
    """Return Cohen's kappa of two raters; weighted for ordinal codes (Cohen 1960, 1968).

    Weights go by the *values* of the codes, so an unused middle category keeps its distance. NaN
    where both raters use one and the same single category: chance agreement is then certain.
    """
    x, y = _complete_pair(first, second)
    values = np.unique(np.concatenate([x, y]))
    table = np.zeros((len(values), len(values)))
    np.add.at(table, (np.searchsorted(values, x), np.searchsorted(values, y)), 1.0)
    table /= table.sum()
    gap = np.abs(values[:, None] - values[None, :])
    cost = {"none": (gap > 0).astype(float), "linear": gap, "quadratic": gap**2}[weights]
    expected = float((cost * np.outer(table.sum(1), table.sum(0))).sum())
    return float(1 - (cost * table).sum() / expected) if expected > 0 else float("nan")


def fleiss_kappa(ratings_NR: ArrayLike) -> float:
    """Return Fleiss' kappa: a fixed number of interchangeable raters an item (Fleiss 1971)."""
    table = _table(ratings_NR)
    counts, _ = _category_counts(table)
    totals = counts.sum(1)
    if len(set(totals.tolist())) != 1 or totals[0] < 2:
        raise ValueError(
            "Fleiss' kappa needs the same number (>= 2) of ratings for every item; "
            "use krippendorff_alpha where some are missing"
        )
    observed = float(((counts * (counts - 1)).sum(1) / (totals * (totals - 1))).mean())
    expected = float(np.square(counts.sum(0) / counts.sum()).sum())
    return (observed - expected) / (1 - expected) if expected < 1 else float("nan")


def krippendorff_alpha(ratings_NR: ArrayLike, *, scale: Scale = "nominal") -> float:
    """Return Krippendorff's alpha = 1 - D_o / D_e; missing ratings are fine (Krippendorff 2004).

    Items with fewer than two ratings pair with nothing and are left out.
    """
    counts, values = _category_counts(_table(ratings_NR))
    counts = counts[counts.sum(1) >= 2]
    if len(counts) == 0:
        raise ValueError("krippendorff_alpha needs an item with at least two ratings")
    per_item = counts.sum(1)
    # Coincidences: ordered pairs within an item, each weighted by 1 / (ratings - 1).
    weighted = counts / (per_item - 1)[:, None]
    coincidences = counts.T @ weighted - np.diag(weighted.sum(0))
    margins = coincidences.sum(1)
    total = margins.sum()
    distance = _distances(values, margins, scale)
    observed = float((coincidences * distance).sum() / total)
    expected = float((np.outer(margins, margins) * distance).sum() / (total * (total - 1)))
    return 1 - observed / expected if expected > 0 else float("nan")


def _distances(values: Floats, margins: Floats, scale: Scale) -> Floats:
    gap = values[:, None] - values[None, :]
    if scale == "nominal":
        return np.asarray((gap != 0).astype(np.float64))
    if scale == "interval":
        return np.asarray(gap**2)
    if scale == "ratio":
        total = values[:, None] + values[None, :]
        return np.asarray(np.where(total != 0, gap / np.where(total != 0, total, 1), 0) ** 2)
    cumulative = np.cumsum(margins) - margins / 2
    # Ratings between two ranks, counting each end by half.
    return np.asarray((cumulative[:, None] - cumulative[None, :]) ** 2)


def gwet_ac1(ratings_NR: ArrayLike, *, num_categories: int | None = None) -> float:
    """Return Gwet's AC1 (Gwet 2008): chance agreement from the spread of categories.

    Args:
        num_categories: categories that raters could use; by default those that occur.
    """
    counts, values = _category_counts(_table(ratings_NR))
    totals = counts.sum(1)
    q = num_categories or len(values)
    if q < len(values):
        raise ValueError(f"{len(values)} categories occur, more than num_categories={q}")
    if q < 2:
        return 1.0
    use = totals >= 2
    pairs = (counts * (counts - 1)).sum(1)[use] / (totals * (totals - 1))[use]
    rated = totals >= 1
    prevalence = (counts[rated] / totals[rated][:, None]).mean(0)
    chance = float((prevalence * (1 - prevalence)).sum() / (q - 1))
    return (float(pairs.mean()) - chance) / (1 - chance)


@dataclass(frozen=True, slots=True)
class Agreement:
    """A coefficient with its interval, and the two numbers it must never be read without."""

    coefficient: Estimate
    raw: float
    prevalence: dict[float, float]


def agreement_estimate(
    ratings_NR: ArrayLike,
    coefficient: Callable[[Floats], float],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
) -> Agreement:
    """Return a coefficient with a bootstrap interval over items (or clusters of items).

    Args:
        coefficient: e.g. ``krippendorff_alpha`` or ``lambda r: cohen_kappa(r[:, 0], r[:, 1])``.
    """
    table = _table(ratings_NR)
    estimate = bootstrap_statistic(
        lambda index: coefficient(table[index]),
        len(table), clusters, level=level, resamples=resamples,
    )  # fmt: skip
    counts, values = _category_counts(table)
    shares = counts.sum(0) / counts.sum()
    return Agreement(
        estimate, raw_agreement(table), dict(zip(values.tolist(), shares.tolist(), strict=True))
    )


def _table(ratings_NR: ArrayLike) -> Floats:
    table = np.asarray(ratings_NR, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(f"ratings must be items x raters (>= 2 raters), got shape {table.shape}")
    return table


def _category_counts(table: Floats) -> tuple[Floats, Floats]:
    """Return (ratings of each item in each category, category values)."""
    values = np.unique(table[~np.isnan(table)])
    return (table[:, :, None] == values).sum(1).astype(np.float64), values


def _complete_pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"two raters need equally many ratings, got {x.shape} and {y.shape}")
    both: NDArray[np.bool_] = ~(np.isnan(x) | np.isnan(y))
    if not both.any():
        raise ValueError("no item was rated by both raters")
    return x[both], y[both]
