"""What a lesson is worth at the foot of the curve: not what it adds now, but what it leads to.

A domain that hardly ever succeeds gives little signal, and each lesson moves it little; but the
first ones bring it to where lessons count. Judged by the next step alone it is left behind, and
with it the worst tenth of the domains. So the room of a domain is its best *average* gain over the
lessons that are within reach (the idea of the index of Gittins 1979, here for a known curve);
past the steep part of the curve that is the next lesson's gain again.

The curve of a domain: a group teaches by its spread, and the spread's lesson moves the level by
the slope there. Everything is tabulated once and interpolated: levels (..., D) in, factors out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEVELS = np.linspace(0.02, 0.98, 97)
_REACHES = np.concatenate([[1e-3], np.geomspace(0.02, 20.0, 40)])
# A typical group and a typical spread of task difficulty (logits) within a domain.
_GROUP_SIZE, _TASK_SPREAD = 8, 1.2


def expected_spread(level: Floats) -> Floats:
    """Return twice the standard deviation of a group's rewards that is expected at a level."""
    nodes = np.linspace(-3.0, 3.0, 41)
    weights = np.exp(-(nodes**2) / 2.0)
    weights /= weights.sum()
    flat = 1.0 / math.sqrt(1.0 + math.pi * _TASK_SPREAD**2 / 8.0)
    centre = np.log(level / (1.0 - level)) / flat
    success = 1.0 / (1.0 + np.exp(-(centre[:, np.newaxis] - _TASK_SPREAD * nodes)))
    count = np.arange(_GROUP_SIZE + 1)
    ways = np.array([math.comb(_GROUP_SIZE, int(k)) for k in count])
    chances = ways * success[..., np.newaxis] ** count
    chances = chances * (1.0 - success[..., np.newaxis]) ** (_GROUP_SIZE - count)
    part = count / _GROUP_SIZE
    spread = 2.0 * np.sqrt(part * (1.0 - part))
    return np.asarray(((chances * spread).sum(axis=-1) * weights).sum(axis=-1))


@dataclass(frozen=True, slots=True)
class Outlook:
    """How much more the lessons within reach are worth, on average, than the next one alone.

    Attributes:
        factors: (reaches, levels), at least 1.
    """

    factors: Floats

    @staticmethod
    def of(slope: Callable[[Floats], Floats]) -> Outlook:
        """Tabulate a curve.

        Args:
            slope: how far a lesson moves the score at a level, up to a factor.
        """
        speed = expected_spread(_LEVELS) * slope(_LEVELS)
        times = np.diff(_LEVELS) / (0.5 * (speed[1:] + speed[:-1]))
        clock = np.concatenate([[0.0], np.cumsum(times)])
        best = np.empty((len(_REACHES), len(_LEVELS)))
        for place, level in enumerate(_LEVELS):
            passed = clock[place + 1 :] - clock[place]
            averages = np.maximum.accumulate((_LEVELS[place + 1 :] - level) / passed)
            ends = np.interp(clock[place] + _REACHES, clock, _LEVELS)
            found = np.maximum((ends - level) / _REACHES, speed[place])
            within = np.searchsorted(passed, _REACHES, side="right")
            reached = within > 0
            found[reached] = np.maximum(found[reached], averages[within[reached] - 1])
            best[:, place] = found
        return Outlook(best / speed)

    def __call__(self, level: Floats, reach: Floats) -> Floats:
        """Return factors (..., D).

        Args:
            level: chance-corrected score.
            reach: lessons within reach, as the level that a straight climb at full speed would add.
        """
        along = np.clip((level - _LEVELS[0]) / (_LEVELS[1] - _LEVELS[0]), 0.0, len(_LEVELS) - 1.001)
        column = along.astype(np.int64)
        right = along - column
        scale = np.log(_REACHES)
        down = np.interp(np.log(np.clip(reach, 1e-3, 20.0)), scale, np.arange(len(scale)))
        row = np.minimum(down.astype(np.int64), len(scale) - 2)
        below = down - row
        table = self.factors
        upper = (1.0 - right) * table[row, column] + right * table[row, column + 1]
        lower = (1.0 - right) * table[row + 1, column] + right * table[row + 1, column + 1]
        return np.asarray((1.0 - below) * upper + below * lower)
