"""Credit within a group: scores of G siblings in, one advantage each out.

Every function takes ``scores_G`` and the mask ``in_baseline_G``; a sibling outside the baseline
(or whose score is not finite) has advantage 0 and changes nothing for the others. With fewer than
two scored siblings there is no baseline and every advantage is 0. Scores that are equal up to
rounding give exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Advantage = Callable[[FloatArray, BoolArray, float], FloatArray]

ROUNDING = 1e-12
"""A spread below this share of the largest score is rounding: means of equal parts, say."""

_HUGE = 1e100


def scored_mask(scores_G: FloatArray, in_baseline_G: BoolArray) -> BoolArray:
    """Return who counts in the baseline: those in the mask whose score is a finite number."""
    return np.asarray(in_baseline_G, np.bool_) & np.isfinite(scores_G)


def has_spread(scores_G: FloatArray, in_baseline_G: BoolArray) -> bool:
    """Whether a group says anything about better and worse: its scores are not all equal.

    The filter of dynamic sampling (DAPO, arXiv 2503.14476), for graded scores too. Ask it of the
    task's own metric, before length or format shaping: shaped all-wrong groups have a spread.
    """
    scored = scores_G[scored_mask(scores_G, in_baseline_G)]
    return len(scored) >= 2 and not is_flat(scored)


def is_flat(values: FloatArray) -> bool:
    """Whether values are equal up to rounding (true of none or one)."""
    if len(values) < 2:
        return True
    low, high = values.min(), values.max()
    return bool(high - low <= ROUNDING * max(abs(low), abs(high)))


def over_baseline(
    scores_G: FloatArray,
    in_baseline_G: BoolArray,
    credit: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    """Return ``credit`` of the scored siblings' scores in their places, 0 elsewhere."""
    out = np.zeros(len(scores_G))
    if has_spread(scores_G, in_baseline_G):
        used = scored_mask(scores_G, in_baseline_G)
        out[used] = credit(np.asarray(scores_G, np.float64)[used])
    return out


def group_normalised(
    scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 1e-6
) -> FloatArray:
    """(s - mean) / (std + eps), std with n - 1 (GRPO, Shao et al. 2024, arXiv 2402.03300)."""

    def credit(scored: FloatArray) -> FloatArray:
        # The squares of huge scores overflow; the quotient does not depend on their unit.
        largest = float(np.abs(scored).max())
        unit = largest if largest > _HUGE else 1.0
        deviations = _deviations(scored / unit)
        return deviations / (float(deviations.std(ddof=1)) + eps / unit)

    return over_baseline(scores_G, in_baseline_G, credit)


def group_centred(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """s - mean (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783). ``eps`` is not used."""
    return over_baseline(scores_G, in_baseline_G, _deviations)


def leave_one_out(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """s_i - mean of the others = n / (n - 1) (s_i - mean) (RLOO, arXiv 2402.14740)."""
    return over_baseline(scores_G, in_baseline_G, lambda s: len(s) / (len(s) - 1) * _deviations(s))


def mean_scaled(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """(s - mean) / mean, 0 where the mean is not positive (MaxRL, arXiv 2602.02710).

    Meant for scores >= 0, whose advantages are at most n - 1; that bound is kept for others too,
    where a mean near 0 would make them as large as one likes.
    """

    def credit(scored: FloatArray) -> FloatArray:
        mean, most = float(scored.mean()), len(scored) - 1.0
        if mean <= 0:
            return np.zeros(len(scored))
        with np.errstate(over="ignore"):
            scaled = _deviations(scored) / mean
        return np.minimum(np.maximum(scaled, -most), most)

    return over_baseline(scores_G, in_baseline_G, credit)


def _deviations(scored: FloatArray) -> FloatArray:
    """s - mean, taken from the smallest score up: exact digits where scores hardly differ."""
    above = scored - scored.min()
    deviations: FloatArray = above - above.mean()
    return deviations


def best_over_second(
    scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0
) -> FloatArray:
    """The best gets its lead over the second best, the others 0.

    The leave-one-out credit for the best of the whole group (Tang et al. 2025, arXiv 2503.19595):
    :func:`best_of_k` with k = n.
    """
    return over_baseline(scores_G, in_baseline_G, lambda s: _best_of_k(s, len(s)))


def best_of_k(scores_G: FloatArray, in_baseline_G: BoolArray, k: int) -> FloatArray:
    """Credit for the best of k, from n >= k scored siblings (PKPO, arXiv 2505.15201).

    The mean over all subsets of size k of what sibling i adds to the subset's best, that is 0 when
    i is not in it: A_i = 1 / C(n, k) sum over S containing i of max(S) - max(S without i). Summed
    with the siblings' scores log p it is an unbiased gradient of the expected best of k. Groups
    with fewer than k scored siblings take k = n.

    Raises:
        ValueError: for k < 2, which has no "without i".
    """
    if k < 2:
        raise ValueError(f"the best of k needs k >= 2, got {k}")
    return over_baseline(scores_G, in_baseline_G, lambda s: _best_of_k(s, min(k, len(s))))


def _best_of_k(scored: FloatArray, k: int) -> FloatArray:
    count = len(scored)
    order = np.argsort(scored, kind="stable")
    out = np.zeros(count)
    for rank in range(k - 1, count):
        best = scored[order[rank]]
        # Subsets whose best is this one and whose second best has rank q: C(q, k - 2).
        total = sum(comb(q, k - 2) * (best - scored[order[q]]) for q in range(k - 2, rank))
        out[order[rank]] = total / comb(count, k)
    return out


def score(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """s itself, no baseline (REINFORCE, Williams 1992); 0 outside the baseline's mask."""
    used = scored_mask(scores_G, in_baseline_G)
    out = np.zeros(len(scores_G))
    out[used] = np.asarray(scores_G, np.float64)[used]
    return out


def over_greedy(
    scores_G: FloatArray, in_baseline_G: BoolArray, greedy_score: float | None
) -> FloatArray:
    """s - the greedy completion's score (ReMax, Li et al. 2023, arXiv 2310.10505).

    All 0 when the greedy completion is unscored: without its baseline there is no credit.
    """
    out = np.zeros(len(scores_G))
    if greedy_score is None or not np.isfinite(greedy_score):
        return out
    used = scored_mask(scores_G, in_baseline_G)
    out[used] = np.asarray(scores_G, np.float64)[used] - greedy_score
    return out


def length_weighted_baseline(
    scores_G: FloatArray, in_baseline_G: BoolArray, lengths_G: FloatArray
) -> FloatArray:
    """s - sum(length s) / sum(length), the baseline of least variance (OPO, arXiv 2505.23585).

    ``lengths_G`` are action tokens; siblings without any leave the baseline.
    """
    lengths = np.asarray(lengths_G, np.float64)
    used = scored_mask(scores_G, in_baseline_G) & (lengths > 0)
    weights = lengths[used]
    return over_baseline(scores_G, used, lambda s: s - float(np.average(s, weights=weights)))


ADVANTAGES: dict[str, Advantage] = {
    "group_normalised": group_normalised,
    "group_centred": group_centred,
    "leave_one_out": leave_one_out,
    "mean_scaled": mean_scaled,
    "best_over_second": best_over_second,
    "score": score,
}
