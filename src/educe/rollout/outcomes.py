"""What comes back from a domain: a score, a reply, or a reply that failed."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from educe.core.types import JSON, Fault, Reply, Score

MAX_REASON = 2000  # characters of an exception's text that are kept


class Operation(StrEnum):
    """Which method of the domain is called."""

    SCORE = "score"
    RESPOND = "respond"


@dataclass(frozen=True, slots=True)
class ReplyFailure:
    """The environment could not answer a turn; the trajectory ends unscored, never with a 0.

    ``fault`` is GRADER (the domain's code) or INFRASTRUCTURE (a worker, sandbox or machine).
    """

    fault: Fault
    reason: str

    def as_score(self) -> Score:
        """Return the unscored Score that the trajectory gets."""
        return Score.unscored(self.fault, f"environment reply failed: {self.reason}")


Outcome = Score | Reply | ReplyFailure


def failed(operation: Operation, fault: Fault, reason: str) -> Outcome:
    """Return the failure that belongs to the operation: an unscored Score or a ReplyFailure."""
    if operation is Operation.SCORE:
        return Score.unscored(fault, reason)
    return ReplyFailure(fault, reason)


def outcome_to_json(outcome: Outcome) -> dict[str, JSON]:
    """Return tagged JSON, for the channel and the journal."""
    match outcome:
        case Score():
            return {"kind": "score", **outcome.to_json()}
        case Reply():
            return {"kind": "reply", **outcome.to_json()}
        case ReplyFailure():
            return {"kind": "failure", "fault": str(outcome.fault), "reason": outcome.reason}


def outcome_from_json(raw: Mapping[str, JSON]) -> Outcome:
    """Read what ``outcome_to_json`` wrote; raises ValueError on another kind."""
    match raw["kind"]:
        case "score":
            return Score.from_json(raw)
        case "reply":
            return Reply.from_json(raw)
        case "failure":
            return ReplyFailure(Fault(raw["fault"]), raw["reason"])
        case other:
            raise ValueError(f"an outcome is a score, reply or failure, got {other!r}")


def describe(error: BaseException) -> str:
    """Return ``ValueError: text (file.py:12 in score)`` with the innermost frame."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    place = ""
    if frames:
        last = frames[-1]
        place = f" ({last.filename.rsplit('/', 1)[-1]}:{last.lineno} in {last.name})"
    return f"{type(error).__name__}: {error}"[:MAX_REASON] + place
