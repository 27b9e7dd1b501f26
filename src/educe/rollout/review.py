"""Scores with output review: a scoring that looks at every completion before it is rewarded.

Wraps any scoring, inside the journal: what is replayed on resume is the reviewed score. The layers
are patterns of linear time and small models, so they run here and not in the killable workers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from educe.config.review_settings import ReviewSettings
from educe.core.types import JSON, Message, Reply, Score, Split, Task
from educe.rewards.review import Reviewer, build_reviewer, reviewed_score
from educe.rewards.review.findings import spoken_text
from educe.rollout.outcomes import Outcome
from educe.rollout.scoring import Scoring


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What is reviewed when its score comes."""

    task: Task
    transcript: tuple[Message, ...]


class ReviewedScoring:
    """Adds the review to scores; in mode ``stop``, ends a training trajectory at an unsafe turn.

    Args:
        inner: scores and replies.
        settings: the recipe's ``[review]``.
        reviewer: replaces the one that the settings describe (one with a judge, say).
    """

    def __init__(
        self, inner: Scoring, settings: ReviewSettings, reviewer: Reviewer | None = None
    ) -> None:
        self.inner = inner
        self.settings = settings
        self.reviewer = reviewer or build_reviewer(settings)
        self._waiting: dict[Hashable, _Waiting] = {}
        self._ended: list[tuple[Hashable, Outcome]] = []

    def submit_score(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        self.inner.submit_score(key, task, state, transcript)
        self._waiting[key] = _Waiting(task, tuple(transcript))

    def submit_respond(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        if self.settings.mode == "stop" and task.split is Split.TRAIN:
            last = spoken_text(transcript[-1:], 0)
            if self.reviewer.review(last, transcript[:-1]).is_unsafe:
                self._ended.append((key, Reply(done=True, state=state)))
                return
        self.inner.submit_respond(key, task, state, transcript)

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Outcome]]:
        ended, self._ended = self._ended, []
        if self.inner.num_pending == 0:
            return ended
        found = self.inner.poll(0.0 if ended else timeout_s)
        return ended + [(key, self._reviewed(key, outcome)) for key, outcome in found]

    def _reviewed(self, key: Hashable, outcome: Outcome) -> Outcome:
        waiting = self._waiting.pop(key, None)
        if waiting is None or not isinstance(outcome, Score):
            return outcome
        prompt = waiting.task.messages
        text = spoken_text(waiting.transcript, len(prompt))
        review = self.reviewer.review(text, prompt)
        return reviewed_score(outcome, review, self.settings, waiting.task.split)

    def cancel(self, key: Hashable) -> None:
        self._waiting.pop(key, None)
        self._ended = [(k, o) for k, o in self._ended if k != key]
        self.inner.cancel(key)

    @property
    def num_pending(self) -> int:
        return self.inner.num_pending + len(self._ended)

    def close(self) -> None:
        self._waiting.clear()
        self.inner.close()
