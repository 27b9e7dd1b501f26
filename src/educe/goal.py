"""A recipe's goal: target domains to reach, guardrail domains not to undercut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from educe.config.settings import GoalSettings

Measure = Callable[[list[str]], Mapping[str, float]]


@dataclass(slots=True)
class GoalWatch:
    """Looks at the goal's domains now and then.

    Attributes:
        measure: scores domains on screen tasks (never trained on, never in the final evaluation).
        looks: what was seen so far: (step, scores).
    """

    settings: GoalSettings
    measure: Measure
    looks: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    is_out_of_reach: bool = False

    @property
    def is_set(self) -> bool:
        return bool(self.settings.targets)

    def is_due(self, step: int) -> bool:
        """Return whether this step (from 1) ends with a look."""
        return self.is_set and step % self.settings.check_every == 0

    def look(self, step: int) -> dict[str, Any]:
        """Measure once; return the payload of a ``goal`` event, whose ``status`` is one of
        reached, guardrail, pursued, out_of_reach."""
        names = sorted({*self.settings.targets, *self.settings.guardrails})
        scores = dict(self.measure(names))
        self.looks.append((step, scores))
        # Written as "not >=", so that a domain without a scored sample (NaN) has reached nothing.
        missing = {n: t for n, t in self.settings.targets.items() if not scores[n] >= t}
        undercut = {n: f for n, f in self.settings.guardrails.items() if scores[n] < f}
        if undercut:
            status = "guardrail"
        elif not missing:
            status = "reached"
        elif self._is_stuck():
            status, self.is_out_of_reach = "out_of_reach", True
        else:
            status = "pursued"
        return {
            "stage": "rl",
            "step": step,
            "status": status,
            "scores": scores,
            "missing": missing,
            "undercut": undercut,
        }

    def _is_stuck(self) -> bool:
        """No look of the last ``patience`` came nearer to the targets than the one before them."""
        patience = self.settings.patience
        if len(self.looks) <= patience:
            return False
        gaps = [self._gap(scores) for _, scores in self.looks]
        return min(gaps[-patience:]) >= min(gaps[:-patience])

    def _gap(self, scores: Mapping[str, float]) -> float:
        gaps = ((t, scores[n]) for n, t in self.settings.targets.items())
        return sum(t if math.isnan(score) else max(0.0, t - score) for t, score in gaps)

    def state(self) -> list[Any]:
        return [[step, scores] for step, scores in self.looks]

    def restore(self, state: list[Any]) -> None:
        self.looks = [(int(step), dict(scores)) for step, scores in state]
