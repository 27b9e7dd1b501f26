"""What rollouts of each domain cost in seconds: generation by tokens, scoring by the clock.

Jobs that are pending together share the clock equally, so a slow sandbox or judge is charged to
the domain that waits for it. Measured times are coarse (quarter powers of two) and go through the
journal before the mixture sees them: a resumed run decides on what the first attempt measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from educe.core.types import JSON, Message, Task
from educe.rollout.journal import Journal
from educe.rollout.outcomes import Outcome
from educe.rollout.scoring import Scoring
from educe.scheduling.results import GroupResult, quantise_cost


class MeteredScoring:
    """A scoring that charges the time jobs are pending to their domains.

    Args:
        scoring: does the work.
        clock: seconds, monotonic.
    """

    def __init__(self, scoring: Scoring, clock: Callable[[], float] = time.monotonic) -> None:
        self._scoring = scoring
        self._clock = clock
        self._last = clock()
        self._pending: dict[Hashable, str] = {}
        self._spent: dict[str, float] = {}

    def drain(self) -> dict[str, float]:
        """Return seconds by domain since the last call."""
        self._charge()
        spent, self._spent = self._spent, {}
        return spent

    def _charge(self) -> None:
        now = self._clock()
        passed, self._last = now - self._last, now
        for domain in self._pending.values():
            share = passed / len(self._pending)
            self._spent[domain] = self._spent.get(domain, 0.0) + share

    def submit_score(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        self._charge()
        self._scoring.submit_score(key, task, state, transcript)
        self._pending[key] = task.domain

    def submit_respond(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        self._charge()
        self._scoring.submit_respond(key, task, state, transcript)
        self._pending[key] = task.domain

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Outcome]]:
        found = self._scoring.poll(timeout_s)
        self._charge()
        for key, _ in found:
            self._pending.pop(key, None)
        return found

    def cancel(self, key: Hashable) -> None:
        self._charge()
        self._pending.pop(key, None)
        self._scoring.cancel(key)

    @property
    def num_pending(self) -> int:
        return self._scoring.num_pending

    def close(self) -> None:
        self._scoring.close()


@dataclass(slots=True)
class BatchCosts:
    """Tells the mixture what a rollout batch cost in seconds, the same again after a resume.

    Args:
        journal: keeps what was measured.
        meter: of the scorers; None charges generation only (rollouts in other processes).
        journal_step: from a stage's step to the journal's.
        stage: part of the journal's key.
    """

    journal: Journal
    meter: MeteredScoring | None
    journal_step: Callable[[int], int]
    stage: str = "rl"

    def __call__(
        self, number: int, results: Sequence[GroupResult], rollout_s: float
    ) -> Mapping[str, float]:
        """Return seconds by domain of batch ``number``.

        Args:
            rollout_s: wall time of the batch, charged by tokens.
        """
        scoring = self.meter.drain() if self.meter is not None else {}
        found: Mapping[str, float] = self.journal.once(
            f"cost/{self.stage}/{number}",
            lambda: split_seconds(results, rollout_s, scoring),
            step=self.journal_step(number),
        )
        return found


def split_seconds(
    results: Sequence[GroupResult], rollout_s: float, scoring_s: Mapping[str, float]
) -> dict[str, float]:
    """Return quantised seconds by domain: the batch's wall time by tokens, plus scoring time."""
    total = sum(r.tokens for r in results)
    seconds = dict.fromkeys(sorted({r.domain for r in results}), 0.0)
    for result in sorted(results, key=lambda r: r.order):
        seconds[result.domain] += rollout_s * result.tokens / max(1, total)
    return {d: quantise_cost(s + scoring_s.get(d, 0.0)) for d, s in seconds.items()}
