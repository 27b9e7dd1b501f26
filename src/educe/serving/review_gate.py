"""The review between the model and the client: no text leaves before it was judged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON, Message
from educe.rewards.review.findings import Reviewer
from educe.rewards.review.policy import GateDecision, gate_text
from educe.rewards.review.queue import ReviewQueue, enqueue

WITHHELD_TEXT = "I cannot share this answer."


@dataclass(slots=True)
class ReviewGate:
    """Judges whole answers; one that a layer could not judge is withheld, too.

    Attributes:
        queue: where people find what layers disagree on or could not judge, and a random share
            (``audit_rate``) of all answers; None keeps nothing.
    """

    reviewer: Reviewer
    replacement: str = WITHHELD_TEXT
    queue: ReviewQueue | None = None
    audit_rate: float = 0.01
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def judge(
        self, text: str, prompt: Sequence[Message], origin: Mapping[str, JSON]
    ) -> GateDecision:
        """Decide over one answer, off the event loop."""
        return await asyncio.to_thread(self._judge, text, tuple(prompt), origin)

    def _judge(
        self, text: str, prompt: tuple[Message, ...], origin: Mapping[str, JSON]
    ) -> GateDecision:
        decision = gate_text(self.reviewer, text, prompt, replacement=self.replacement)
        if self.queue is not None:
            with self._lock:
                enqueue(
                    self.queue,
                    text,
                    decision.review,
                    prompt=prompt,
                    audit_rate=self.audit_rate,
                    origin=origin,
                )
        return decision
