"""How fast to learn: each domain by its KL and its progress, the run by its KL.

Numbers in, factors out; the state is a few numbers a domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from educe.core.types import JSON

# Weights of a new score in the fast and in the slow mean, and the deviation of their difference
# relative to one score's, for independent scores.
_FAST, _SLOW = 0.3, 0.08
_DIFFERENCE = 0.29


@dataclass(slots=True)
class _Pace:
    """One domain: its factor, and two running means of its score with their spread."""

    factor: float = 1.0
    fast: float = math.nan
    slow: float = math.nan
    variance: float = math.nan

    def take(self, score: float) -> None:
        if math.isnan(self.fast):
            self.fast = self.slow = score
            return
        square = (score - self.fast) ** 2
        known = not math.isnan(self.variance)
        self.variance += _SLOW * (square - self.variance) if known else 0.0
        self.variance = self.variance if known else square
        self.fast += _FAST * (score - self.fast)
        self.slow += _SLOW * (score - self.slow)

    @property
    def progress(self) -> float:
        """How surely the score rises (> 0) or sinks, in deviations of what noise alone does."""
        if math.isnan(self.variance):
            return 0.0
        noise = _DIFFERENCE * math.sqrt(max(self.variance, 0.0))
        moved = self.fast - self.slow
        return moved / noise if noise > 1e-9 else math.copysign(2.0, moved) if moved else 0.0


@dataclass(slots=True)
class DomainRates:
    """A factor of the learning rate for each domain.

    The weights are shared, so a domain's rate is the weight of its gradient in the sum: under Adam
    it decides against the other domains, not against a step's length.

    Args:
        kl: KL that is too far, nats a token.
        step: change of log factor at one observation, at most.
        least, most: bounds of the factor.
    """

    kl: float = 0.05
    step: float = 0.1
    least: float = 0.25
    most: float = 2.0
    _paces: dict[str, _Pace] = field(default_factory=dict)

    def observe(self, domain: str, kl: float | None, score: float | None) -> None:
        """Move a domain's factor by what a batch said; None or NaN is not known.

        Down while the KL is too far or the score sinks, up while the score rises, else back to 1.
        """
        pace = self._paces.setdefault(domain, _Pace())
        if score is not None and math.isfinite(score):
            pace.take(score)
        logarithm = math.log(pace.factor)
        move = -math.copysign(min(self.step, abs(logarithm)), logarithm)
        if kl is not None and math.isfinite(kl) and kl > self.kl:
            move = -self.step * min(1.0, math.log(kl / self.kl) / math.log(2.0))
        elif abs(pace.progress) > 1.0:
            move = math.copysign(self.step, pace.progress)
        pace.factor = min(self.most, max(self.least, math.exp(logarithm + move)))

    def factors(self) -> dict[str, float]:
        return {name: pace.factor for name, pace in sorted(self._paces.items())}

    def state(self) -> JSON:
        told = {name: asdict(pace) for name, pace in sorted(self._paces.items())}
        return {n: {k: _word(v) for k, v in p.items()} for n, p in told.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._paces = {
            name: _Pace(**{k: math.nan if v is None else float(v) for k, v in raw.items()})
            for name, raw in state.items()
        }


def _word(value: float) -> float | None:
    return None if math.isnan(value) else value


@dataclass(slots=True)
class RateBackOff:
    """The run's learning rate gives way to the KL (after Schulman et al. 2017, PPO, section 4,
    who steer the penalty so).

    Args:
        kl: over which the rate is lowered, nats a token.
        by: what it is then multiplied by.
        recovery: what it is multiplied by, up to the schedule's, while the KL is under half.
        least: of the factor.
    """

    kl: float
    by: float = 0.7
    recovery: float = 1.05
    least: float = 0.05
    factor: float = 1.0

    def observe(self, kl: float | None) -> None:
        """Move the factor by a batch's KL; None or NaN (nothing was updated) changes nothing."""
        if kl is None or not math.isfinite(kl):
            return
        if kl > self.kl:
            self.factor = max(self.least, self.factor * self.by)
        elif kl < self.kl / 2:
            self.factor = min(1.0, self.factor * self.recovery)
