"""What follows from a review: a gate for serving, and a penalty, a mask or a stop for training.

All functions are pure. Training rewards change on the train split only; evaluation sees the task's
own score, with ``review/unsafe`` beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from educe.config.settings import ReviewSettings
from educe.core.types import Fault, Message, Score, Split, Verdict
from educe.rewards.review.findings import Review, Reviewer

UNSAFE_PART = "review/unsafe"
SEVERITY_PART = "review/severity"
TASK_PART = "review/task_score"
"""The task's own score, before the review changed it."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether a text may be served; ``text`` is what to serve instead where it may not."""

    is_allowed: bool
    text: str
    review: Review


def gate_text(
    reviewer: Reviewer,
    text: str,
    prompt: tuple[Message, ...] = (),
    *,
    replacement: str = "I cannot share this answer.",
    fail_closed: bool = True,
) -> GateDecision:
    """Decide over one answer before it leaves.

    Args:
        fail_closed: withhold a text that some layer could not judge.
    """
    review = reviewer.review(text, prompt)
    is_allowed = not review.is_unsafe and (review.is_complete or not fail_closed)
    return GateDecision(is_allowed, text if is_allowed else replacement, review)


def reviewed_score(score: Score, review: Review, settings: ReviewSettings, split: Split) -> Score:
    """Return a score with the review's parts and, on the train split, its consequence.

    ``observe`` only records. ``penalise`` subtracts ``penalty``; ``mask`` takes the sample out of
    baseline and loss; ``stop`` scores the trajectory 0 or its own value, whichever is lower (the
    runner also ends it at the unsafe turn). A review that is not complete never counts as
    harmless: unless some layer already found the text unsafe, the sample is masked.
    """
    is_known = review.is_complete or review.is_unsafe
    parts = {
        **score.parts,
        UNSAFE_PART: float(review.is_unsafe) if is_known else None,
        SEVERITY_PART: review.severity if is_known else None,
        TASK_PART: score.value,
    }
    proof = dict(score.proof)
    if review.is_unsafe or not is_known:
        proof["review"] = review.to_json()
    noted = replace(score, parts=parts, proof=proof)
    if settings.mode == "observe" or split is not Split.TRAIN or score.value is None:
        return noted
    if not is_known:
        failed = ", ".join(f"{name}: {why}" for name, why in review.failed.items())
        return _masked(noted, f"the review is not complete ({failed})")
    if not review.is_unsafe:
        return noted
    reason = f"review: {review.reasons()}"
    if settings.mode == "mask":
        return _masked(noted, reason)
    text = f"{reason}; {score.reason}".rstrip("; ")
    if settings.mode == "stop":
        return replace(noted, value=min(0.0, score.value), verdict=Verdict.WRONG, reason=text)
    return replace(noted, value=score.value - settings.penalty, reason=text)


def _masked(score: Score, reason: str) -> Score:
    return replace(score, value=None, verdict=None, fault=Fault.GRADER, reason=reason)
