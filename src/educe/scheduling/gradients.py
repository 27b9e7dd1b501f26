"""Balance between domains' gradients: how large each is, whether they conflict, and what to do.

Everything works on small things: a sketch of each domain's gradient (a few hundred numbers) gives
norms, cosines and the Gram matrix; equal norms and conflict projection come out as one weight a
domain, so applying them is scaling the domain's loss, and no second copy of a gradient is kept.

Axes: D domains, K width of a sketch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from educe.core.seeds import derive, uniforms
from educe.core.types import JSON

Floats = NDArray[np.float64]

_EPS = 1e-12


class CountSketch:
    """Reduces long vectors to K numbers (Charikar, Chen and Farach-Colton 2002).

    Inner products of sketches estimate those of the vectors without bias, with an error of about
    1 / sqrt(K) of the product of their norms. Sketches are linear: those of parts add up.

    Args:
        size: N, of every vector.
        width: K.
        seed: of the signs; sketches of different seeds do not compare.
    """

    def __init__(self, size: int, width: int, seed: int) -> None:
        self.size, self.width = size, width
        rows = -(-size // width)
        positions = np.arange(rows * width, dtype=np.uint64)
        key = np.array([derive("gradient sketch", seed)], dtype=np.uint64)
        # Buckets may be fixed, (position mod K): random signs alone remove the bias.
        self._signs = np.where(uniforms(key, positions) < 0.5, -1, 1).astype(np.int8)
        self._signs = self._signs.reshape(rows, width)

    def __call__(self, values_N: NDArray[np.floating]) -> Floats:
        """Return the sketch (K,) of a vector.

        Raises:
            ValueError: the vector has another size.
        """
        if values_N.size != self.size:
            raise ValueError(f"a sketch of {self.size} numbers was given {values_N.size}")
        padded = np.zeros(self._signs.size, dtype=np.float64)
        padded[: self.size] = values_N.ravel()
        with np.errstate(invalid="ignore"):  # infinite values give NaN, which callers look for
            return np.asarray((padded.reshape(self._signs.shape) * self._signs).sum(axis=0))


def cosines(sketches_DK: Floats) -> Floats:
    """Return the matrix (D, D) of cosines between domains' gradients; nan beside a zero one."""
    norms = np.linalg.norm(sketches_DK, axis=1)
    norms = np.where(norms > _EPS, norms, np.nan)
    unit = sketches_DK / norms[:, np.newaxis]
    return np.asarray(np.clip(unit @ unit.T, -1.0, 1.0))


def equal_norm_weights(norms_D: Floats, power: float = 1.0) -> Floats:
    """Return weights that bring gradient norms together: (mean / norm) ** power, of mean 1.

    Args:
        norms_D: gradient norms; zero ones get weight 1 and do not count in the mean.
        power: 0 changes nothing, 1 makes all norms equal (GradNorm of Chen et al. 2018 moves
            towards that over time).
    """
    is_alive = norms_D > _EPS
    if not is_alive.any():
        return np.ones(norms_D.shape)
    # The geometric mean: no single large domain sets the scale for all.
    scale = np.exp(np.log(norms_D[is_alive]).mean())
    weights = np.ones(norms_D.shape)
    weights[is_alive] = (scale / norms_D[is_alive]) ** power
    weights[is_alive] /= weights[is_alive].mean()
    return weights


def conflict_free_weights(gram_DD: Floats, seed: int = 0) -> Floats:
    """Return weights (D,) with which the sum of gradients is that of PCGrad (Yu et al. 2020).

    Each gradient is projected off those it conflicts with (negative inner product), one after the
    other in a fixed random order. A projection subtracts a multiple of another gradient, so the
    result stays a combination of the originals and needs nothing but their Gram matrix.

    Args:
        gram_DD: inner products of the domains' gradients (of their sketches).
        seed: of the order in which conflicts are met.
    """
    count = len(gram_DD)
    order = sorted(range(count), key=lambda j: derive("conflicts", seed, j))
    total = np.zeros(count)
    for i in range(count):
        own = np.zeros(count)
        own[i] = 1.0
        for j in order:
            inner = float(own @ gram_DD[:, j])
            if j != i and inner < 0 and gram_DD[j, j] > _EPS:
                own[j] -= inner / gram_DD[j, j]
        total += own
    return total


@dataclass(slots=True)
class AdvantageScale:
    """Keeps the size of advantages alike over domains: a running root mean square of each.

    Args:
        life: groups after which what was seen counts half.
        limit: largest factor by which a domain's advantages are scaled up or down.
    """

    life: float = 64.0
    limit: float = 4.0
    _squares: dict[str, float] = field(default_factory=dict)
    _weights: dict[str, float] = field(default_factory=dict)

    def observe(self, domain: str, squares: float, groups: int) -> None:
        """Take in a batch: the sum over groups of the mean squared advantage.

        Groups without signal count: a domain whose groups are mostly trivial is not blown up by
        the few that are not beyond what ``limit`` allows.
        """
        fade = 0.5 ** (groups / self.life)
        self._squares[domain] = self._squares.get(domain, 0.0) * fade + squares
        self._weights[domain] = self._weights.get(domain, 0.0) * fade + groups

    def factors(self) -> dict[str, float]:
        """Return by domain what its advantages are to be multiplied with."""
        sizes = {
            name: (self._squares[name] / self._weights[name]) ** 0.5
            for name in sorted(self._weights)
            if self._weights[name] > 0 and self._squares[name] > 0
        }
        if not sizes:
            return {}
        middle = float(np.exp(np.mean(np.log(list(sizes.values())))))
        return {n: min(self.limit, max(1 / self.limit, middle / s)) for n, s in sizes.items()}

    def state(self) -> JSON:
        return {n: [self._squares[n], self._weights[n]] for n in sorted(self._weights)}

    def restore(self, state: Mapping[str, JSON]) -> None:
        self._squares = {n: float(s) for n, (s, _) in state.items()}
        self._weights = {n: float(w) for n, (_, w) in state.items()}
