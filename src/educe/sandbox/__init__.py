"""Runs model-written programs so that the machine and the reward are both safe from them."""

from educe.sandbox.box import Sandbox, open_sandbox
from educe.sandbox.contract import (
    BoxVerdict,
    Call,
    CallResult,
    Job,
    JobError,
    Level,
    Limits,
    Result,
    SandboxError,
    SuiteOutcome,
    Times,
)
from educe.sandbox.graders import (
    Case,
    CaseGrade,
    FunctionGrade,
    StdioCase,
    StdioGrade,
    grade_asserts,
    grade_function,
    grade_stdio,
    grade_suite,
)
from educe.sandbox.sessions import Session, Turn

__all__ = [
    "BoxVerdict",
    "Call",
    "CallResult",
    "Case",
    "CaseGrade",
    "FunctionGrade",
    "Job",
    "JobError",
    "Level",
    "Limits",
    "Result",
    "Sandbox",
    "SandboxError",
    "Session",
    "StdioCase",
    "StdioGrade",
    "SuiteOutcome",
    "Times",
    "Turn",
    "grade_asserts",
    "grade_function",
    "grade_stdio",
    "grade_suite",
    "open_sandbox",
]
