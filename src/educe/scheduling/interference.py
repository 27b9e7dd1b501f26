"""What domains' gradients do to each other: cosines and sizes over the run, and what follows.

Measurements are noisy (a few groups a domain), so every number is a faded mean over measurements
with its standard error, and nothing acts on a cosine that is within one of zero. Hundreds of
domains are read as a few clusters.

Axes: R clusters, K width of a sketch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from educe.core.types import JSON
from educe.scheduling.gradients import (
    Floats,
    conflict_free_weights,
    cosines,
    equal_norm_weights,
)

_EPS = 1e-12
_LEAST_PART = 0.02
OTHERS = "others"
_SQUARES = ("pairs", "pair_squares", "cosine", "cosine_square")
_ROWS = ("seen", "size", "force")


def clusters_of(
    families: Mapping[str, str], kinds: Mapping[str, str], limit: int
) -> dict[str, str]:
    """Return the cluster of each domain: itself, or its family, or its kind, whichever first
    gives at most ``limit``; of more kinds than that, the smallest share a cluster.

    Args:
        families, kinds: by domain.
    """
    if len(families) <= limit:
        return {name: name for name in sorted(families)}
    if len(set(families.values())) <= limit:
        return {name: families[name] for name in sorted(families)}
    sizes = Counter(kinds.values())
    if len(sizes) <= limit:
        return {name: kinds[name] for name in sorted(kinds)}
    kept = {k for k, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[: limit - 1]}
    return {n: kinds[n] if kinds[n] in kept else OTHERS for n in sorted(kinds)}


@dataclass(frozen=True, slots=True)
class Matrix:
    """What is known now.

    Attributes:
        names: of the R clusters.
        cosines: (R, R) mean cosines, NaN where never measured; the diagonal is the cosine between
            two halves of the cluster's own groups: how much of its gradient is not noise.
        errors: (R, R) standard errors, NaN below two measurements.
        corrected: (R, R) cosines of what is not noise (Spearman 1904, attenuation), NaN where the
            diagonal is not surely above 0.
        norms: (R,) size of a cluster's gradient a unit of its share, NaN where never measured.
        weights: (R,) what the clusters' losses are multiplied by.
    """

    names: tuple[str, ...]
    cosines: Floats
    errors: Floats
    corrected: Floats
    norms: Floats
    weights: Floats

    def to_json(self) -> dict[str, JSON]:
        """Return plain lists, None for NaN."""
        return {
            "names": list(self.names),
            "cosines": [_plain(row) for row in self.cosines],
            "errors": [_plain(row) for row in self.errors],
            "corrected": [_plain(row) for row in self.corrected],
            "norms": _plain(self.norms),
            "weights": _plain(self.weights),
        }


@dataclass(slots=True)
class Interference:
    """Faded means over measurements.

    Args:
        names: of the clusters.
        memory: measurements after which an earlier one counts half.
        power: of equal norms, see ``equal_norm_weights``; 0 leaves sizes alone.
        projects: whether conflicts are projected away.
        limit: largest factor of a weight, up or down.
    """

    names: tuple[str, ...]
    memory: float = 8.0
    power: float = 0.0
    projects: bool = False
    limit: float = 4.0
    num_measured: int = 0
    _sums: dict[str, Floats] = field(init=False)
    _weights: Floats = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.names)
        self._sums = {name: np.zeros((count, count)) for name in _SQUARES}
        self._sums |= {name: np.zeros(count) for name in _ROWS}
        self._weights = np.ones(count)

    @property
    def weights(self) -> dict[str, float]:
        """What each cluster's loss is multiplied by."""
        return dict(zip(self.names, self._weights.tolist(), strict=True))

    def observe(self, halves_R2K: Floats, shares_R: Floats) -> None:
        """Take in one measurement and decide the weights of the next steps.

        Args:
            halves_R2K: sketches of each cluster's gradient, from one half of its groups and the
                other, both without the weights in force; zeros for a cluster that took no part.
            shares_R: each cluster's share of the step's loss.
        """
        self.num_measured += 1
        whole = halves_R2K.sum(axis=1)
        norms = np.linalg.norm(whole, axis=1)
        # A gradient that is not finite is the step's business; it must not stay in the means.
        is_here = np.isfinite(norms) & (norms > _EPS) & (shares_R > 0)
        found = cosines(np.where(is_here[:, None], whole, 0.0))
        for i in np.flatnonzero(is_here):
            found[i, i] = cosines(halves_R2K[i])[0, 1]
        known = np.isfinite(found)
        found = np.where(known, found, 0.0)
        sizes = np.where(is_here, norms / np.where(is_here, shares_R, 1.0), 0.0)
        fade = 0.5 ** (1.0 / self.memory)
        for name, added in (
            ("pairs", known),
            ("cosine", found),
            ("cosine_square", found**2),
            ("seen", is_here),
            ("size", sizes**2),
            ("force", np.where(is_here, norms, 0.0) ** 2),
        ):
            self._sums[name] = self._sums[name] * fade + added
        self._sums["pair_squares"] = self._sums["pair_squares"] * fade**2 + known
        self._weights = self._decided()

    def matrix(self) -> Matrix:
        """Return what is known now."""
        mean, error = self._means()
        part = _reliabilities(mean, error)
        corrected = np.clip(mean / np.sqrt(np.outer(part, part)), -1.0, 1.0)
        return Matrix(self.names, mean, error, corrected, self._root("size"), self._weights.copy())

    def _means(self) -> tuple[Floats, Floats]:
        sums = self._sums
        count = np.where(sums["pairs"] > 0, sums["pairs"], np.nan)
        mean = sums["cosine"] / count
        variance = np.maximum(sums["cosine_square"] / count - mean**2, 0.0)
        effective = count**2 / np.where(sums["pair_squares"] > 0, sums["pair_squares"], np.nan)
        spare = np.where(effective > 1.5, effective - 1.0, np.nan)
        return mean, np.sqrt(variance / spare)

    def _root(self, name: str) -> Floats:
        seen = self._sums["seen"]
        return np.sqrt(self._sums[name] / np.where(seen > 0, seen, np.nan))

    def _decided(self) -> Floats:
        """Equal sizes first, then the conflicts that are left between what they give."""
        is_known = self._sums["seen"] > 0
        weights = np.ones(len(self.names))
        if not is_known.any():
            return weights
        if self.power:
            weights = equal_norm_weights(np.nan_to_num(self._root("size")), self.power)
            weights = np.clip(weights, 1.0 / self.limit, self.limit)
        if self.projects:
            mean, error = self._means()
            is_sure = np.abs(mean) > error  # False for NaN
            surely = np.where(is_sure, np.nan_to_num(mean), 0.0)
            # Inner products of two domains hold no noise on average, squared norms do; without
            # that a projection would take off too little.
            own = np.nan_to_num(_reliabilities(mean, error), nan=1.0)
            surely = np.clip(surely, -np.sqrt(np.outer(own, own)), None)
            np.fill_diagonal(surely, own)
            force = np.nan_to_num(self._root("force")) * weights
            conflicts = conflict_free_weights(surely * np.outer(force, force))
            # The rate stays what it is: only the proportions are the projection's.
            weights = weights * conflicts / conflicts[is_known].mean()
            weights[~is_known] = 1.0
        return np.clip(weights, 1.0 / self.limit, self.limit)

    # State

    def state(self) -> JSON:
        return {
            "names": list(self.names),
            "measured": self.num_measured,
            "sums": {name: values.tolist() for name, values in self._sums.items()},
            "weights": self._weights.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; clusters that are new or gone are tolerated."""
        old = {name: i for i, name in enumerate(state["names"])}
        kept = [name for name in self.names if name in old]
        here = np.array([self.names.index(n) for n in kept], dtype=np.int64)
        there = np.array([old[n] for n in kept], dtype=np.int64)
        self.num_measured = int(state["measured"])
        for name, values in state["sums"].items():
            saved = np.asarray(values, dtype=np.float64)
            if name in _ROWS:
                self._sums[name][here] = saved[there]
            elif len(kept):
                self._sums[name][np.ix_(here, here)] = saved[np.ix_(there, there)]
        self._weights[here] = np.asarray(state["weights"], dtype=np.float64)[there]


def _reliabilities(mean_RR: Floats, error_RR: Floats) -> Floats:
    """Return which part of each cluster's squared gradient is not noise, NaN where that is unsure.

    Two halves that agree to r make a whole of reliability 2 r / (1 + r) (Spearman and Brown 1910).
    """
    agreement = np.diag(mean_RR)
    is_sure = agreement > 2.0 * np.diag(error_RR)  # False for NaN
    halves = np.where(is_sure, agreement, np.nan)
    return np.asarray(np.maximum(2.0 * halves / (1.0 + halves), _LEAST_PART))


def _plain(values: Sequence[float] | Floats) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
