"""Graders that stay outside: programs get inputs, answers are compared here.

The process that runs the candidate never holds an expected value, so nothing it patches, reads or
prints can make a wrong answer right. A fault of ours is *unscored*, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from educe.core.types import JSON, Fault, Score, Verdict
from educe.sandbox.box import Sandbox
from educe.sandbox.contract import (
    BoxVerdict,
    Call,
    CallResult,
    Job,
    JobError,
    Level,
    Limits,
    Result,
    SuiteOutcome,
)
from educe.sandbox.values import equal, show

Outcome = Literal["right", "wrong", "error", "timeout", "missing"]
TextPolicy = Literal["exact", "lines", "tokens", "numbers"]


@dataclass(frozen=True, slots=True)
class Case:
    """One required test of a function: arguments in, one exact value out."""

    args: tuple[JSON, ...]
    expected: JSON
    kwargs: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StdioCase:
    """One required test of a program: its standard input and the output it must print."""

    stdin: str
    expected: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseGrade:
    """How one case went. ``got`` and ``error`` are for feedback: text the candidate influences."""

    outcome: Outcome
    got: str = ""
    error: str = ""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Grade:
    """How a program did on all required cases.

    Attributes:
        cases: one per case, in order.
        verdict: how the job ended (of the first one that failed, for several jobs).
        fault: None when all is well; ``infrastructure`` means unscored.
        flags: what was noticed (``tamper:…``, ``blocked:…``).
    """

    cases: tuple[CaseGrade, ...]
    verdict: BoxVerdict
    reason: str = ""
    fault: Fault | None = None
    flags: tuple[str, ...] = ()
    level: Level = Level.PLAIN
    stdout: str = ""
    stderr: str = ""
    cpu_s: float = 0.0
    integrity: Literal["outside", "in_process"] = "outside"

    @property
    def num_right(self) -> int:
        return sum(case.outcome == "right" for case in self.cases)

    @property
    def is_scored(self) -> bool:
        return self.fault is not Fault.INFRASTRUCTURE

    @property
    def all_right(self) -> bool:
        """Whether a complete, right result arrived for every required case."""
        return self.verdict is BoxVerdict.OK and self.num_right == len(self.cases)

    @property
    def fraction(self) -> float | None:
        """Share of right cases; None when unscored, 0 when results were forged."""
        if not self.is_scored:
            return None
        if any(flag.startswith("tamper:") for flag in self.flags) or not self.cases:
            return 0.0
        # A job that did not end well is not all right, whatever it had returned by then.
        most = len(self.cases) - (self.verdict is not BoxVerdict.OK)
        return min(self.num_right, most) / len(self.cases)

    @property
    def first_failure(self) -> int | None:
        """Index of the first case that is not right."""
        for index, case in enumerate(self.cases):
            if case.outcome != "right":
                return index
        return None

    def score(self, *, partial: bool = False) -> Score:
        """Return the score: all or nothing, or the share of right cases when ``partial``."""
        fraction = self.fraction
        if fraction is None:
            return Score.unscored(Fault.INFRASTRUCTURE, self.reason)
        value = fraction if partial else float(self.all_right)
        verdict = (
            Verdict.RIGHT if self.all_right else Verdict.PARTIAL if fraction else Verdict.WRONG
        )
        if self.verdict is BoxVerdict.CE:
            verdict = Verdict.UNPARSEABLE
        return Score(
            value,
            verdict,
            None if self.verdict is BoxVerdict.OK else Fault.CANDIDATE,
            self.reason or f"{self.num_right} of {len(self.cases)} cases right",
            parts={"cases": fraction},
            proof={
                "level": self.level.name.lower(),
                "verdict": str(self.verdict),
                "outcomes": [case.outcome for case in self.cases],
                "flags": list(self.flags),
                "integrity": self.integrity,
            },
        )


FunctionGrade = Grade
StdioGrade = Grade


def grade_function(
    sandbox: Sandbox,
    source: str,
    entry_point: str,
    cases: Sequence[Case],
    *,
    limits: Limits | None = None,
    runtime: str = "python",
    tolerance: float = 0.0,
    files: Mapping[str, bytes] | None = None,
    seed: int = 0,
) -> FunctionGrade:
    """Call ``entry_point`` of ``source`` once per case and compare outside the candidate.

    Args:
        entry_point: a function's name, or ``Class.method`` (the class is built without arguments).
        cases: the required tests; each call runs in a process of its own.
        limits: of the whole job; ``case_wall_s`` defaults to an even, generous share.
        tolerance: relative difference allowed between two floats.

    Raises:
        JobError: when there is no case, or the job is not valid.
    """
    if not cases:
        raise JobError("grading needs at least one case")
    limits = limits or Limits()
    if limits.case_wall_s == 0:
        limits = replace(limits, case_wall_s=max(0.5, limits.wall_s / 2))
    job = Job(
        source=source,
        runtime=runtime,
        entry_point=entry_point,
        calls=tuple(Call(tuple(case.args), dict(case.kwargs)) for case in cases),
        files=files or {},
        limits=limits,
        seed=seed,
    )
    result = sandbox.run(job)
    return grade_calls(result, cases, tolerance=tolerance)


def grade_calls(result: Result, cases: Sequence[Case], *, tolerance: float = 0.0) -> FunctionGrade:
    """Compare a call job's result with the cases it was made from."""
    grades = tuple(
        _grade_call(result, call, case, tolerance)
        for call, case in zip(result.calls, cases, strict=True)
    )
    return Grade(
        cases=grades,
        verdict=result.verdict,
        reason=result.reason,
        fault=result.fault,
        flags=result.flags,
        level=result.level,
        stdout=result.stdout_text,
        stderr=result.stderr_text,
        cpu_s=result.times.cpu_s,
    )


def _grade_call(result: Result, call: CallResult, case: Case, tolerance: float) -> CaseGrade:
    if call.status == "returned":
        right = equal(case.expected, call.value, tolerance=tolerance)
        return CaseGrade("right" if right else "wrong", show(call.value), cpu_s=call.cpu_s)
    if call.status == "unserialisable":
        return CaseGrade("wrong", error=call.error, cpu_s=call.cpu_s)
    if call.status in ("raised", "exited"):
        return CaseGrade("error", error=call.error, cpu_s=call.cpu_s)
    if call.status == "timeout":
        return CaseGrade("timeout", error=call.error, cpu_s=call.cpu_s)
    if call.status == "missing" and result.verdict in (BoxVerdict.TLE_CPU, BoxVerdict.TLE_WALL):
        return CaseGrade("timeout", error=result.reason)
    if call.status == "missing" and result.verdict in (BoxVerdict.CE, BoxVerdict.RE):
        return CaseGrade("error", error=result.reason)
    return CaseGrade("missing", error=result.reason or call.error, cpu_s=call.cpu_s)


def grade_stdio(
    sandbox: Sandbox,
    program: Job | str,
    cases: Sequence[StdioCase],
    *,
    policy: TextPolicy = "lines",
    tolerance: float = 1e-9,
) -> StdioGrade:
    """Run a program once per case and compare what it printed, outside.

    Args:
        program: a Job (its stdin and argv are replaced per case) or Python source.
        policy: ``exact`` bytes; ``lines`` ignores trailing spaces and trailing empty lines;
            ``tokens`` splits at white space; ``numbers`` also lets numeric tokens differ by
            ``tolerance``, relative.

    Raises:
        JobError: when there is no case, or the job is not valid.
    """
    if not cases:
        raise JobError("grading needs at least one case")
    job = Job(source=program) if isinstance(program, str) else program
    if job.entry_point:
        raise JobError("a program graded by its output has no entry_point; use grade_function")
    jobs = [
        replace(job, stdin=case.stdin.encode(), argv=(*job.argv, *case.argv), idempotency_key="")
        for case in cases
    ]
    results = sandbox.run_batch(jobs)
    grades = tuple(
        _grade_text(result, case, policy, tolerance)
        for result, case in zip(results, cases, strict=True)
    )
    worst = next((r for r in results if r.verdict is BoxVerdict.INFRA), None) or next(
        (r for r in results if r.verdict is not BoxVerdict.OK), results[0]
    )
    return Grade(
        cases=grades,
        verdict=worst.verdict,
        reason=worst.reason,
        fault=worst.fault,
        flags=tuple(sorted({flag for result in results for flag in result.flags})),
        level=worst.level,
        stdout=worst.stdout_text,
        stderr=worst.stderr_text,
        cpu_s=sum(result.times.cpu_s for result in results),
    )


def _grade_text(result: Result, case: StdioCase, policy: TextPolicy, tolerance: float) -> CaseGrade:
    cpu_s = result.times.cpu_s
    got = result.stdout_text if len(result.stdout) <= 300 else result.stdout_text[:299] + "…"
    if result.verdict is BoxVerdict.OK:
        right = texts_equal(case.expected, result.stdout_text, policy=policy, tolerance=tolerance)
        return CaseGrade("right" if right else "wrong", got, cpu_s=cpu_s)
    if result.verdict in (BoxVerdict.TLE_CPU, BoxVerdict.TLE_WALL):
        return CaseGrade("timeout", got, result.reason, cpu_s)
    if result.verdict in (BoxVerdict.INFRA, BoxVerdict.PROTO):
        return CaseGrade("missing", got, result.reason, cpu_s)
    error = (result.stderr_text.strip().splitlines() or [result.reason])[-1]
    return CaseGrade("error", got, error, cpu_s)


def texts_equal(
    expected: str, got: str, *, policy: TextPolicy = "lines", tolerance: float = 1e-9
) -> bool:
    """Return whether a printed text is the expected one under a policy of :func:`grade_stdio`."""
    if policy == "exact":
        return expected == got
    if policy == "lines":
        return _stripped_lines(expected) == _stripped_lines(got)
    left, right = expected.split(), got.split()
    if policy == "tokens" or len(left) != len(right):
        return left == right
    return all(a == b or _numbers_close(a, b, tolerance) for a, b in zip(left, right, strict=True))


def _stripped_lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _numbers_close(a: str, b: str, tolerance: float) -> bool:
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    if not (math.isfinite(x) and math.isfinite(y)):
        return False
    return abs(x - y) <= tolerance * max(1.0, abs(x), abs(y))


def grade_asserts(
    sandbox: Sandbox,
    source: str,
    tests: Sequence[str],
    *,
    limits: Limits | None = None,
    runtime: str = "python",
    files: Mapping[str, bytes] | None = None,
) -> Grade:
    """Run assert-style test texts against stubs of the candidate, which has its own process.

    A test names the candidate's functions and classes directly or imports them from ``solution``;
    the values it compares are plain builtin ones that crossed a border, so objects that pretend to
    be equal are not. Each test gets a fresh copy of the candidate.

    Raises:
        JobError: when there is no test.
    """
    if not tests:
        raise JobError("grading needs at least one test")
    job = Job(source, runtime, tests=tuple(tests), limits=limits or Limits(), files=files or {})
    result = sandbox.run(job)
    grades = tuple(_grade_assert(result, call) for call in result.calls)
    return Grade(
        cases=grades,
        verdict=result.verdict,
        reason=result.reason,
        fault=result.fault,
        flags=result.flags,
        level=result.level,
        stdout=result.stdout_text,
        stderr=result.stderr_text,
        cpu_s=result.times.cpu_s,
    )


def _grade_assert(result: Result, call: CallResult) -> CaseGrade:
    if call.status == "returned":
        return CaseGrade("right" if call.value is True else "wrong")
    if call.status == "raised":
        wrong = call.error.startswith("AssertionError")
        return CaseGrade("wrong" if wrong else "error", error=call.error)
    if result.verdict in (BoxVerdict.TLE_CPU, BoxVerdict.TLE_WALL):
        return CaseGrade("timeout", error=result.reason)
    if result.verdict in (BoxVerdict.CE, BoxVerdict.RE):
        return CaseGrade("error", error=result.reason)
    return CaseGrade("missing", error=result.reason or call.error)


def grade_suite(
    sandbox: Sandbox,
    files: Mapping[str, bytes],
    test_files: Mapping[str, bytes],
    required: Sequence[str],
    *,
    limits: Limits | None = None,
    runtime: str = "python",
) -> Grade:
    """Run ``unittest`` classes and ``test_*`` functions of test files over a candidate's files.

    The tests replace whatever the candidate left under their names, its ``conftest.py`` files are
    left out, and nothing but a report ``passed`` of every required test id counts: skipped, missing
    and doubled ones do not. Tests and candidate share a process, so the proof says ``integrity =
    in_process``.

    Args:
        required: test ids, ``path::test_name`` or ``path::Class::test_name``; with the runtime
            ``python-pytest`` as pytest names them, ``path::test_name[parameters]``.

    Raises:
        JobError: when nothing is required or a file's path is not valid.
    """
    if not required:
        raise JobError("grading a suite needs the ids of the required tests")
    job = Job(
        runtime=runtime,
        files={**_beside(files, test_files), **test_files},
        suite=tuple(path for path in test_files if path.rpartition("/")[2].startswith("test")),
        limits=limits or Limits(),
    )
    result = sandbox.run(job)
    told = {outcome.test_id: outcome for outcome in result.tests}
    return Grade(
        cases=tuple(_grade_test(result, told, test_id) for test_id in required),
        verdict=result.verdict,
        reason=result.reason,
        fault=result.fault,
        flags=result.flags,
        level=result.level,
        stdout=result.stdout_text,
        stderr=result.stderr_text,
        cpu_s=result.times.cpu_s,
        integrity="in_process",
    )


def _beside(files: Mapping[str, bytes], test_files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a candidate's files without what is in the tests' way: ``conftest.py`` files, a file
    where the tests need a folder, and anything below a test file's name."""
    folders = {folder for path in test_files for folder in _folders(path)}
    return {
        path: content
        for path, content in files.items()
        if path.split("/")[-1] != "conftest.py"
        and path not in folders
        and not any(folder in test_files for folder in _folders(path))
    }


def _folders(path: str) -> list[str]:
    """Return the folders above a path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _grade_test(result: Result, told: Mapping[str, SuiteOutcome], test_id: str) -> CaseGrade:
    outcome = told.get(test_id)
    if outcome is None:
        broken = told.get(test_id.split("::")[0] + "::")
        text = broken.message if broken else result.reason or "the test did not run"
        late = result.verdict in (BoxVerdict.TLE_CPU, BoxVerdict.TLE_WALL)
        return CaseGrade("timeout" if late else "error" if broken else "missing", error=text)
    outcomes: dict[str, Outcome] = {"passed": "right", "failed": "wrong", "error": "error"}
    return CaseGrade(outcomes.get(outcome.how, "missing"), error=outcome.message)
