"""The preference stage's loop: which cases a step has, and where their reference comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from educe.algorithms.preferences import Preference
from educe.core.metrics import Tally
from educe.trainers.case_making import CaseMaker
from educe.trainers.feeds import IndexedFeed
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.preference import Case, evaluate_preferences, preference_step
from educe.trainers.references import Reference
from educe.trainers.step import StepResult, TrainerState


@dataclass(slots=True)
class PreferenceLoop:
    """Steps on cases of preference.

    Attributes:
        reference: None where the loss needs none.
        held_out: what :meth:`evaluate` measures.
        num_skipped: cases left out so far, because they did not fit.
    """

    state: TrainerState
    feed: IndexedFeed
    maker: CaseMaker
    loss: Preference
    learning_rate: float
    total_steps: int
    held_out: Sequence[Case] = ()
    reference: Reference | None = None
    num_skipped: int = field(default=0)

    def step(self, number: int) -> StepResult:
        """Take step ``number`` (from 0)."""
        made = [self.maker.case(entry) for entry in self.feed.entries(number)]
        cases = [case for case in made if case is not None]
        self.num_skipped += len(made) - len(cases)
        rate = learning_rate_at(number, self.learning_rate, self.state.settings, self.total_steps)
        result = preference_step(self.state, cases, self.loss, self._known(cases), rate)
        result.tally.mean("skipped_examples", float(self.num_skipped))
        return result

    def evaluate(self) -> Tally:
        """Return ``eval_loss``, ``eval_accuracy`` and so on, of what is held out."""
        known = self._known(self.held_out)
        return evaluate_preferences(self.state, self.held_out, self.loss, known)

    def _known(self, cases: Sequence[Case]) -> Any:
        return None if self.reference is None else self.reference.logprobs(cases)

    def progress(self) -> dict[str, Any]:
        return {"skipped": self.num_skipped}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.num_skipped = saved["skipped"]
