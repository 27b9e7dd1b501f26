"""Numbers from an imperfect judge, corrected by a sample that people (or a verifier) judged."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from educe.evaluation.statistics.estimates import (
    Estimate,
    as_floats,
    mean_estimate,
    two_sided_z,
)


def rogan_gladen(
    num_positive: int,
    num_judged: int,
    *,
    true_positives: int,
    num_positives_labelled: int,
    true_negatives: int,
    num_negatives_labelled: int,
    level: float = 0.95,
) -> Estimate:
    """Return the true rate behind a judge's rate: (p + Sp - 1) / (Se + Sp - 1).

    Rogan and Gladen 1978, with the delta-method variance that carries the uncertainty of
    sensitivity and specificity, after adding 1/2 to every count's success and failure so that a
    perfect sample of ten does not count as a perfect judge (Lang and Reiczigel 2014). Limits and
    value are cut to [0, 1].

    Args:
        num_positive, num_judged: the judge's verdicts on the unlabelled data.
        true_positives, num_positives_labelled: of labelled positives, how many it saw.
        true_negatives, num_negatives_labelled: of labelled negatives, how many it passed.

    Raises ValueError when the judge is no better than a coin (Se + Sp <= 1).
    """
    if min(num_judged, num_positives_labelled, num_negatives_labelled) < 1:
        raise ValueError("rogan_gladen needs judged data and labelled positives and negatives")
    z = two_sided_z(level)
    sensitivity = true_positives / num_positives_labelled
    specificity = true_negatives / num_negatives_labelled
    rate = num_positive / num_judged
    youden = sensitivity + specificity - 1
    if youden <= 0:
        raise ValueError(
            f"the judge is no better than chance (sensitivity {sensitivity:.2f}, specificity "
            f"{specificity:.2f}); its rate cannot be corrected"
        )
    value = (rate + specificity - 1) / youden
    # Variances at shrunk rates.
    p, n = (num_positive + 0.5) / (num_judged + 1), num_judged
    se, n_se = (true_positives + 0.5) / (num_positives_labelled + 1), num_positives_labelled
    sp, n_sp = (true_negatives + 0.5) / (num_negatives_labelled + 1), num_negatives_labelled
    slope = max(se + sp - 1, 1e-9)
    shrunk = min(max((p + sp - 1) / slope, 0.0), 1.0)
    variance = p * (1 - p) / n
    variance += shrunk**2 * se * (1 - se) / n_se + (1 - shrunk) ** 2 * sp * (1 - sp) / n_sp
    error = math.sqrt(variance) / slope
    low, high = max(0.0, min(value, shrunk) - z * error), min(1.0, max(value, shrunk) + z * error)
    return Estimate(
        min(max(value, 0.0), 1.0), low, high, level, error, num_judged, num_judged, "rogan-gladen"
    )


def prediction_powered_mean(
    judged: ArrayLike, judged_labelled: ArrayLike, labels: ArrayLike, *, level: float = 0.95
) -> Estimate:
    """Return mean(judged) + mean(labels - judged_labelled): a judge's mean, its bias removed.

    Angelopoulos et al. 2023 (2301.09633); variance Var(f)/N + Var(Y - f)/n. Needs no model of the
    judge's errors; the labelled items must be a random sample of the same kind.

    Args:
        judged: the judge's scores of N unlabelled items.
        judged_labelled, labels: the judge's and the true scores of the n labelled ones.
    """
    f, g, y = as_floats(judged), as_floats(judged_labelled), as_floats(labels)
    if len(g) != len(y):
        raise ValueError(f"{len(g)} judged labelled items but {len(y)} labels")
    if len(f) < 2 or len(y) < 2:
        raise ValueError("prediction_powered_mean needs two items of each kind at least")
    value = float(f.mean() + (y - g).mean())
    error = math.sqrt(f.var(ddof=1) / len(f) + (y - g).var(ddof=1) / len(y))
    half = two_sided_z(level) * error
    count = len(f) + len(y)
    return Estimate(
        value, value - half, value + half, level, error, count, count, "prediction-powered"
    )


Preference = Literal["first", "second", "tie"]


@dataclass(frozen=True, slots=True)
class WinRate:
    """``rate`` of B over A with ties as one half; ``inconsistent`` flipped with the order."""

    rate: Estimate
    wins: int
    losses: int
    ties: int
    inconsistent: int


def win_rate(
    a_first: Sequence[Preference],
    b_first: Sequence[Preference],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
) -> WinRate:
    """Return how often B beats A when every pair was judged in both orders.

    Args:
        a_first: verdicts with A shown first; ``b_first``: the same pairs, B first. A verdict that
            changes sides with the order is a tie and counted as inconsistent.
        clusters: the prompt of every pair.
    """
    if len(a_first) != len(b_first) or not a_first:
        raise ValueError(f"both orders need the same pairs: {len(a_first)} and {len(b_first)}")
    points, inconsistent = [], 0
    for one, other in zip(a_first, b_first, strict=True):
        for_b = (one == "second", other == "first")
        for_a = (one == "first", other == "second")
        inconsistent += (for_b[0] and for_a[1]) or (for_a[0] and for_b[1])
        points.append(1.0 if all(for_b) else 0.0 if all(for_a) else 0.5)
    return WinRate(
        mean_estimate(points, clusters, level=level),
        points.count(1.0), points.count(0.0), points.count(0.5), inconsistent,
    )  # fmt: skip


def swap_consistency(a_first: Sequence[Preference], b_first: Sequence[Preference]) -> float:
    """Return the share of pairs whose verdict is the same in both orders."""
    swapped = {"first": "second", "second": "first", "tie": "tie"}
    if len(a_first) != len(b_first) or not a_first:
        raise ValueError(f"both orders need the same pairs: {len(a_first)} and {len(b_first)}")
    return float(np.mean([a == swapped[b] for a, b in zip(a_first, b_first, strict=True)]))
