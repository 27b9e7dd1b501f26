"""A recipe's goal: target domains to reach, guardrail domains not to undercut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from educe.config.settings import GoalSettings

Measure = Callable[[list[str]], Mapping[str, float]]

_WORDS = {
    "reached": "goal reached",
    "guardrail": "a guardrail is undercut",
    "unmeasured": "a guardrail could not be measured",
    "out_of_reach": "the goal seems out of reach: no look came nearer",
    "pursued": "goal not reached yet",
}


@dataclass(slots=True)
class GoalWatch:
    """Looks at the goal's domains now and then.

    Attributes:
        measure: scores domains on screen tasks (never trained on, never in the final evaluation).
        stage: its name, for the events.
        looks: what was seen so far: (step, scores).
    """

    settings: GoalSettings
    measure: Measure
    stage: str = "rl"
    looks: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    is_out_of_reach: bool = False

    @property
    def is_set(self) -> bool:
        return bool(self.settings.targets)

    @property
    def is_over(self) -> bool:
        """Whether the last look ends the stage."""
        return bool(self.looks) and self._status() in ("reached", "guardrail", "unmeasured")

    def is_due(self, steps_done: int) -> bool:
        """Return whether it is time for a look that was not taken yet."""
        if not self.is_set or steps_done < 1 or steps_done % self.settings.check_every:
            return False
        return not self.looks or self.looks[-1][0] < steps_done

    def look(self, step: int) -> dict[str, Any]:
        """Measure once; return the payload of a ``goal`` event, whose ``status`` is one of
        reached, guardrail, unmeasured (a guardrail without a scored sample), pursued,
        out_of_reach."""
        names = sorted({*self.settings.targets, *self.settings.guardrails})
        self.looks.append((step, dict(self.measure(names))))
        status = self._status()
        self.is_out_of_reach |= status == "out_of_reach"
        return {
            "stage": self.stage,
            "step": step,
            "status": status,
            "scores": self.looks[-1][1],
            "missing": self._missing(),
            "undercut": self._undercut(),
        }

    def _missing(self) -> dict[str, float]:
        # Written as "not >=", so that a domain without a scored sample (NaN) has reached nothing.
        scores = self.looks[-1][1]
        return {n: t for n, t in self.settings.targets.items() if not scores[n] >= t}

    def _undercut(self) -> dict[str, float]:
        """Guardrails that do not hold. One that was not measured does not: it fails closed."""
        scores = self.looks[-1][1]
        return {n: f for n, f in self.settings.guardrails.items() if not scores[n] >= f}

    def _status(self) -> str:
        undercut, scores = self._undercut(), self.looks[-1][1]
        if any(not math.isnan(scores[n]) for n in undercut):
            return "guardrail"
        if undercut:
            return "unmeasured"
        if not self._missing():
            return "reached"
        return "out_of_reach" if self._is_stuck() else "pursued"

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


def goal_line(event: Mapping[str, Any]) -> str:
    """Return a ``goal`` event as one line for the user."""
    scores = ", ".join(f"{n} {v:.2f}" for n, v in sorted(event["scores"].items()))
    return f"step {event['step']}: {_WORDS[event['status']]} ({scores})"
