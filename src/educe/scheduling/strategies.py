"""How much training a domain deserves: one function a strategy, over the evidence.

Each returns wishes (..., D) ``>= 0`` *per group*; the controller divides them by the cost of a
group, sharpens them, multiplies them by the recipe's weights and bounds the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from educe.scheduling.evidence import Evidence
from educe.scheduling.outlook import Outlook, expected_spread

Floats = NDArray[np.float64]

_SMALLEST = 1e-3
_RESPONSE_BOUNDS = (0.1, 3.0)
# Groups that a domain may have in each round to come, if it is worth it: lessons count for what
# they lead to within these. Bounds of the run's rate.
_GROUPS_A_ROUND = 4.0
_RATE_BOUNDS = (0.004, 0.06)
# How far the spread that was seen may differ from what is expected at the domain's level.
_SIGNAL_BAND = 3.0
_LEVELS = np.linspace(0.02, 0.98, 97)
_SPREADS = expected_spread(_LEVELS)
_OUTLOOK = Outlook.of(Evidence.slope)


@dataclass(slots=True)
class Wish:
    """What a strategy wants, and the factors it is made of (for the reason that is logged)."""

    value: Floats
    factors: Mapping[str, Floats]


Strategy = Callable[[Evidence, float, Floats], Wish]
"""From the evidence, the optimism, and the rounds that the run still has (..., 1)."""


def success_variance(evidence: Evidence, optimism: float, rounds_left: Floats) -> Wish:
    """Wish by the spread of rewards within groups, largest at half right (the learnability
    p (1 - p) of Rutherford et al. 2024, No Regrets)."""
    spread = _spread(evidence, optimism)
    return Wish(spread, {"signal": spread})


def learning_progress(evidence: Evidence, optimism: float, rounds_left: Floats) -> Wish:
    """Wish by how fast the score moves, up or down: |fast mean - slow mean| (Matiisen et al. 2017,
    Teacher-Student Curriculum Learning), read through the family."""
    moved = np.abs(evidence.fast - evidence.slow)
    progress = evidence.pooled(moved * evidence.groups, 0.05)
    progress = progress + optimism * 0.1 / np.sqrt(evidence.groups + evidence.pooling)
    return Wish(progress, {"progress": progress})


def regret(evidence: Evidence, optimism: float, rounds_left: Floats) -> Wish:
    """Wish by the regret that the samples show: best minus mean (MaxMC of Jiang et al. 2021,
    Replay-Guided Adversarial Environment Design, within a group)."""
    value = evidence.pooled(evidence.regret, 0.3)
    value = value + optimism * 0.3 / np.sqrt(evidence.groups + evidence.pooling)
    return Wish(value, {"regret": value})


def expected_gain(evidence: Evidence, optimism: float, rounds_left: Floats) -> Wish:
    """Wish by the score that a group is expected to add: signal, room, and response to training.

    A domain's groups teach by their spread: the one that its level lets expect, near what was seen
    (more spread than that is chance or a ceiling, which teach nothing). The curve says how far
    lessons move the score from the domain's level on, within what is left of the run (see
    ``outlook``); the response is what this
    domain made of its lessons so far, against the others.
    """
    level = evidence.pooled_level()
    mean, deviation = evidence.response()
    response = np.clip(mean + optimism * deviation, *_RESPONSE_BOUNDS)
    rate = np.clip(evidence.run_rate(), *_RATE_BOUNDS)
    reach = response * rate * _GROUPS_A_ROUND * rounds_left
    factors = {
        "signal": _signal(evidence, level, optimism),
        "room": evidence.slope(level) * _OUTLOOK(level, reach),
        "response": response,
    }
    return Wish(factors["signal"] * factors["room"] * response, factors)


def _signal(evidence: Evidence, level: Floats, optimism: float) -> Floats:
    seen = _spread(evidence, optimism)
    raw = evidence.chance + (1.0 - evidence.chance) * level
    expected = np.interp(np.clip(raw, _LEVELS[0], _LEVELS[-1]), _LEVELS, _SPREADS)
    return np.clip(expected, seen / _SIGNAL_BAND, seen * _SIGNAL_BAND)


def unmoved(evidence: Evidence, optimism: float, rounds_left: Floats) -> Wish:
    """Wish for what the recipe's weights say."""
    return Wish(np.ones(evidence.family.shape), {})


def _spread(evidence: Evidence, optimism: float) -> Floats:
    value = evidence.pooled(evidence.spread, 0.5)
    value = value + optimism * 0.3 / np.sqrt(evidence.groups + evidence.pooling)
    return np.maximum(value, _SMALLEST)


STRATEGIES: Mapping[str, Strategy] = {
    "static": unmoved,
    "learning_progress": learning_progress,
    "success_variance": success_variance,
    "regret": regret,
    "expected_gain": expected_gain,
}
