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
    Times,
)
from educe.sandbox.graders import (
    Case,
    CaseGrade,
    FunctionGrade,
    StdioCase,
    StdioGrade,
    grade_function,
    grade_stdio,
)

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
    "StdioCase",
    "StdioGrade",
    "Times",
    "grade_function",
    "grade_stdio",
    "open_sandbox",
]
