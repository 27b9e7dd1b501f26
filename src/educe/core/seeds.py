"""Counter-based randomness: every draw is a pure function of names and a position.

No global generator is ever touched, so the order in which things happen cannot change a draw, and
nothing about randomness has to be stored in a checkpoint. The mixer is splitmix64 (Steele, Lea and
Flood 2014), which passes BigCrush on sequential counters.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def derive(*parts: Any) -> int:
    """Return a 64-bit key from any sequence of values with a stable ``repr``."""
    text = "\x1f".join(repr(p) for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def python_random(*parts: Any) -> random.Random:
    """Return a private ``random.Random`` seeded by the parts."""
    return random.Random(derive(*parts))


def numpy_random(*parts: Any) -> np.random.Generator:
    """Return a private numpy generator (Philox) seeded by the parts."""
    return np.random.Generator(np.random.Philox(key=derive(*parts)))


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return one uniform in (0, 1) for each (key, position) pair; the arrays broadcast."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        z = z ^ (z >> np.uint64(31))
    out: NDArray[np.float64] = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * (2.0**-53)
    return out
