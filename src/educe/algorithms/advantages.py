"""Credit within a group: scores of G siblings in, one advantage each out.

Every function takes ``scores_G`` and the mask ``in_baseline_G``; a sibling outside the baseline
has advantage 0 and changes nothing for the others. With fewer than two scored siblings there is no
baseline and every advantage is 0. Equal scores give exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Advantage = Callable[[FloatArray, BoolArray, float], FloatArray]


def _scored(scores_G: FloatArray, in_baseline_G: BoolArray) -> FloatArray | None:
    """Return the baseline's scores, or None when there is no signal in them."""
    scored = scores_G[in_baseline_G]
    if len(scored) < 2 or scored.max() == scored.min():
        return None
    return scored


def group_normalised(
    scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 1e-6
) -> FloatArray:
    """(s - mean) / (std + eps), std with n - 1 (GRPO, Shao et al. 2024, arXiv 2402.03300)."""
    out = np.zeros(len(scores_G))
    scored = _scored(scores_G, in_baseline_G)
    if scored is not None:
        out[in_baseline_G] = (scored - scored.mean()) / (scored.std(ddof=1) + eps)
    return out


def group_centred(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """s - mean (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783). ``eps`` is not used."""
    out = np.zeros(len(scores_G))
    scored = _scored(scores_G, in_baseline_G)
    if scored is not None:
        out[in_baseline_G] = scored - scored.mean()
    return out


def leave_one_out(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """s_i - mean of the others = n / (n - 1) (s_i - mean) (RLOO, arXiv 2402.14740)."""
    out = np.zeros(len(scores_G))
    scored = _scored(scores_G, in_baseline_G)
    if scored is not None:
        count = len(scored)
        out[in_baseline_G] = count / (count - 1) * (scored - scored.mean())
    return out


def mean_scaled(scores_G: FloatArray, in_baseline_G: BoolArray, eps: float = 0.0) -> FloatArray:
    """(s - mean) / mean, 0 where the mean is not positive (MaxRL, arXiv 2602.02710)."""
    out = np.zeros(len(scores_G))
    scored = _scored(scores_G, in_baseline_G)
    if scored is not None and scored.mean() > 0:
        out[in_baseline_G] = (scored - scored.mean()) / scored.mean()
    return out


ADVANTAGES: dict[str, Advantage] = {
    "group_normalised": group_normalised,
    "group_centred": group_centred,
    "leave_one_out": leave_one_out,
    "mean_scaled": mean_scaled,
}
