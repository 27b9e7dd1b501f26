"""Shares within bounds: as wished, never below a floor or above a ceiling, and of sum 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS = 40


def bounded_shares(wished: Floats, lowest: Floats, highest: Floats) -> Floats:
    """Return shares in proportion to ``wished``, clipped to [lowest, highest], of sum 1.

    One factor scales all wishes; it is found by bisection on its logarithm, so what a bound takes
    from one domain goes to the others in proportion to their wishes.

    Args:
        wished: (..., D), ``>= 0``; where a domain's wish is 0 it stays at its lowest share.
        lowest: (..., D); scaled down where they add up to more than 1.
        highest: (..., D); must add up to 1 or more.
    """
    lowest = lowest / np.maximum(1.0, lowest.sum(axis=-1, keepdims=True))
    highest = np.maximum(highest, lowest)
    top = np.maximum(wished.max(axis=-1, keepdims=True), 1e-300)
    wishes = wished / top
    small = np.full_like(top, -60.0)
    large = np.full_like(top, 60.0)
    for _ in range(_ROUNDS):
        middle = (small + large) / 2.0
        total = np.clip(wishes * np.exp2(middle), lowest, highest).sum(axis=-1, keepdims=True)
        is_short = total < 1.0
        small = np.where(is_short, middle, small)
        large = np.where(is_short, large, middle)
    shares = np.clip(wishes * np.exp2(large), lowest, highest)
    return _topped_up(shares, highest)


def _topped_up(shares: Floats, highest: Floats) -> Floats:
    """Give what is missing (only wishes of 0 are left) to whoever has room; then sum to 1."""
    missing = np.maximum(1.0 - shares.sum(axis=-1, keepdims=True), 0.0)
    room = highest - shares
    total = np.maximum(room.sum(axis=-1, keepdims=True), 1e-300)
    shares = shares + room * np.minimum(1.0, missing / total)
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
