"""The KL coefficient from step to step: fixed, or steered towards a target. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class FixedKL:
    """The same coefficient in every step."""

    coefficient: float

    def update(self, kl: float, num_sequences: int) -> float:
        """Return the coefficient of the next step."""
        return self.coefficient

    def state(self) -> dict[str, float]:
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, float]) -> None:
        self.coefficient = float(state["coefficient"])


@dataclass(slots=True)
class AdaptiveKL:
    """beta <- beta (1 + e n / horizon), e = clip(KL / target - 1, -0.2, 0.2).

    (Ziegler et al. 2019, arXiv 1909.08593.) Call :meth:`update` once a step.

    Attributes:
        coefficient: beta, > 0; kept within [``lowest``, ``highest``] so that it can come back.
        target: the KL aimed at, in the unit of what ``update`` is given.
        horizon: sequences over which an error of 100 % would double beta, before the clip.
    """

    coefficient: float = 0.001
    target: float = 0.1
    horizon: float = 10_000.0
    lowest: float = 1e-8
    highest: float = 1e3

    def __post_init__(self) -> None:
        for name in ("coefficient", "target", "horizon", "lowest"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"AdaptiveKL.{name} must be a finite number > 0, got {value}")

    def update(self, kl: float, num_sequences: int) -> float:
        """Return the coefficient of the next step.

        Args:
            kl: mean KL of the step that was just taken; a value that is not finite (a skipped
                step) changes nothing.
            num_sequences: n, over all ranks.
        """
        if math.isfinite(kl):
            error = min(max(kl / self.target - 1.0, -0.2), 0.2)
            # A step of more sequences than the horizon must not turn the sign.
            factor = max(1.0 + error * num_sequences / self.horizon, 0.5)
            self.coefficient = min(max(self.coefficient * factor, self.lowest), self.highest)
        return self.coefficient

    def state(self) -> dict[str, float]:
        """Return everything that the next update depends on, as JSON."""
        return {
            "coefficient": self.coefficient,
            "target": self.target,
            "horizon": self.horizon,
            "lowest": self.lowest,
            "highest": self.highest,
        }

    def restore(self, state: Mapping[str, float]) -> None:
        for name in ("coefficient", "target", "horizon", "lowest", "highest"):
            setattr(self, name, float(state[name]))
