"""Numbers that follow what training does, or a plan: entropy bonus, temperature. Torch-free.

The KL coefficient's controllers are in ``kl_control``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class EntropyTarget:
    """The entropy bonus that holds the policy's entropy up, step by step.

    alpha rises by ``delta`` after a step whose entropy was below the target and falls by it above,
    within [0, ``most``] (Skywork-OR1, arXiv 2505.22312, has the rule and delta 0.005).

    Attributes:
        coefficient: alpha, the bonus a nat of a token's entropy.
        target: nats a token.
    """

    coefficient: float = 0.0
    target: float = 0.2
    delta: float = 0.005
    most: float = 1.0

    def __post_init__(self) -> None:
        for name in ("target", "delta", "most"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"EntropyTarget.{name} must be a finite number > 0, got {value}")

    def update(self, entropy: float) -> float:
        """Return the next coefficient; an entropy that is not finite changes nothing."""
        if math.isfinite(entropy):
            step = self.delta if entropy < self.target else -self.delta
            self.coefficient = min(max(self.coefficient + step, 0.0), self.most)
        return self.coefficient

    def state(self) -> dict[str, float]:
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, float]) -> None:
        self.coefficient = float(state["coefficient"])


def scheduled(first: float, last: float, step: int, steps: int, shape: str = "linear") -> float:
    """Return a number on its way from ``first`` to ``last`` over ``steps`` steps, there from then.

    ``shape`` is linear, cosine (slow at both ends) or constant (``first`` throughout).

    Raises:
        ValueError: for an unknown shape.
    """
    if shape not in ("linear", "cosine", "constant"):
        raise ValueError(f"shape must be 'linear', 'cosine' or 'constant', got {shape!r}")
    if shape == "constant":
        return first
    done = 1.0 if steps <= 0 else min(max(step / steps, 0.0), 1.0)
    if shape == "cosine":
        done = 0.5 - 0.5 * math.cos(math.pi * done)
    return first + (last - first) * done
