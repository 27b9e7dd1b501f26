"""One attempt: the code of a reply, run in the sandbox on the shown and the hidden tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import JSON, Fault, Message, Score, Task, Verdict
from educe.domains.builtin.python_functions.bugs import shorten
from educe.domains.builtin.python_functions.extract import extract_function
from educe.domains.builtin.python_functions.problem import Case, constant_share
from educe.domains.builtin.python_functions.prompts import call_text

if TYPE_CHECKING:
    from educe.sandbox.graders import CaseGrade, Grade

# Whole jobs: some twelve calls of functions that need microseconds when they are right.
_CPU_S, _WALL_S, _CASE_WALL_S, _MEMORY_MB = 1.0, 5.0, 2.0, 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt did; plain JSON values, kept in the environment's state.

    Attributes:
        failures: failing *shown* tests as text (call, outcome, expected value).
        candidate_fault: time-out, exception or broken protocol of the candidate.
    """

    is_found: bool
    compiles: bool
    shown_fraction: float
    hidden_fraction: float
    is_right: bool
    candidate_fault: bool
    reason: str
    failures: tuple[str, ...] = ()
    proof: Mapping[str, JSON] | None = None

    def to_json(self) -> dict[str, JSON]:
        return {**asdict(self), "failures": list(self.failures)}

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Attempt:
        return Attempt(**{**raw, "failures": tuple(raw["failures"])})


def run_attempt(task: Task, text: str, services: Services) -> Attempt:
    """Run the code of ``text`` on all tests of the task.

    Raises:
        UnscoredError: when no sandbox was handed in.
        InfrastructureError: when the sandbox failed; the candidate is not judged.
    """
    if services.sandbox is None:
        raise UnscoredError(
            f"{task.domain} runs model-written code: it needs Services.sandbox, and none was given"
        )
    entry_point = task.metadata["entry_point"]
    found = extract_function(text, entry_point)
    if found.source is None:
        return Attempt(found.is_found, False, 0.0, 0.0, False, False, found.reason)
    from educe.sandbox.contract import Limits
    from educe.sandbox.graders import Case as SandboxCase
    from educe.sandbox.graders import grade_function

    shown, hidden = cases_of(task, "shown"), cases_of(task, "hidden")
    grade = grade_function(
        services.sandbox,
        found.source,
        entry_point,
        [SandboxCase(c.args, c.expected) for c in (*shown, *hidden)],
        limits=Limits(cpu_s=_CPU_S, wall_s=_WALL_S, memory_mb=_MEMORY_MB, case_wall_s=_CASE_WALL_S),
    )
    if not grade.is_scored:
        raise InfrastructureError(f"{task.task_id}: the sandbox failed: {grade.reason}")
    return _judge(entry_point, shown, grade)


def _judge(entry_point: str, shown: Sequence[Case], grade: Grade) -> Attempt:
    """Turn a grade of shown + hidden tests into an attempt."""
    is_forged = grade.fraction == 0.0 and grade.num_right > 0
    right = [c.outcome == "right" and not is_forged for c in grade.cases]
    seen, unseen = right[: len(shown)], right[len(shown) :]
    failures = tuple(
        f"{call_text(entry_point, case.args)} {_outcome_text(case, graded)}"
        for case, graded in zip(shown, grade.cases, strict=False)
        if graded.outcome != "right"
    )
    broke = any(c.outcome in ("error", "timeout", "missing") for c in grade.cases)
    reason = f"{sum(unseen)} of {len(unseen)} hidden tests passed"
    if broke:
        first = next(c for c in grade.cases if c.outcome in ("error", "timeout", "missing"))
        reason += f"; {first.outcome}: {first.error or grade.reason}"[:200]
    return Attempt(
        is_found=True,
        compiles=True,
        shown_fraction=sum(seen) / len(seen),
        hidden_fraction=sum(unseen) / len(unseen),
        is_right=grade.all_right and all(right),
        candidate_fault=broke,
        reason=reason,
        failures=failures,
        proof={
            "integrity": "outside",
            "level": grade.level.name.lower(),
            "verdict": str(grade.verdict),
            "outcomes": [str(c.outcome) for c in grade.cases],
            "flags": list(grade.flags),
        },
    )


def _outcome_text(case: Case, graded: CaseGrade) -> str:
    expected = shorten(case.expected)
    if graded.outcome == "wrong" and graded.got:
        return f"returned {graded.got[:100]}, expected {expected}"
    if graded.outcome == "timeout":
        return f"did not end in time, expected {expected}"
    error = " ".join((graded.error or "gave no result").split())[-120:]
    return f"failed with {error}, expected {expected}"


def cases_of(task: Task, which: str) -> tuple[Case, ...]:
    """Return the ``shown`` or ``hidden`` tests kept in a task's metadata."""
    rows: list[Any] = task.metadata[which]
    return tuple(Case(tuple(args), expected) for args, expected in rows)


def score_attempts(task: Task, attempts: Sequence[Attempt], *, is_partial: bool) -> Score:
    """Return the score of the last attempt, with the record of all of them.

    The value is 1 when every test passes. With ``is_partial``, otherwise the share of hidden tests
    passed, corrected for what the best constant result would pass.
    """
    last = attempts[-1]
    chance = constant_share(cases_of(task, "hidden"))
    partial = max(0.0, (last.hidden_fraction - chance) / (1.0 - chance))
    value = 1.0 if last.is_right else min(partial, 0.99) if is_partial else 0.0
    return Score(
        value=value,
        verdict=_verdict(last, value),
        fault=Fault.CANDIDATE if last.candidate_fault else None,
        reason=last.reason,
        parts={
            "parsed": float(last.is_found),
            "compiles": float(last.compiles),
            "shown_pass": last.shown_fraction,
            "hidden_fraction": last.hidden_fraction,
        },
        proof={
            **(last.proof or {}),
            "num_attempts": len(attempts),
            "first_attempt_right": attempts[0].is_right,
            "fixed_after_feedback": last.is_right and not attempts[0].is_right,
            "attempts": [
                {"shown": a.shown_fraction, "hidden": a.hidden_fraction, "right": a.is_right}
                for a in attempts
            ],
        },
    )


def _verdict(attempt: Attempt, value: float) -> Verdict:
    if attempt.is_right:
        return Verdict.RIGHT
    if not attempt.compiles:
        return Verdict.UNPARSEABLE
    return Verdict.PARTIAL if value > 0 else Verdict.WRONG


def last_reply(transcript: Sequence[Message]) -> str:
    """Return the last assistant text, "" when there is none."""
    for message in reversed(transcript):
        if message.role == "assistant":
            return message.content
    return ""
