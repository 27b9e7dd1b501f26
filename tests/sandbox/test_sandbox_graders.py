from __future__ import annotations

from dataclasses import replace

import pytest
from tamper import GOLDEN, TAMPERS, TASK_INPUTS

from educe.core.types import Fault, Verdict
from educe.sandbox import (
    BoxVerdict,
    Case,
    Job,
    JobError,
    Limits,
    Result,
    Sandbox,
    SandboxError,
    StdioCase,
    grade_function,
    grade_stdio,
)
from educe.sandbox.graders import grade_calls, texts_equal

CASES = [Case((x,), x * x + 1) for x in TASK_INPUTS]
LIMITS = Limits(cpu_s=2.0, wall_s=4.0, memory_mb=128, disk_mb=8, case_wall_s=0.4)


@pytest.mark.parametrize("name", TAMPERS)
def test_no_tamper_program_is_rewarded(sandbox: Sandbox, name: str) -> None:
    grade = grade_function(sandbox, TAMPERS[name], "f", CASES, limits=LIMITS)
    assert not grade.all_right
    score = grade.score()
    assert score.value == 0.0, grade
    assert grade.reason or any(case.outcome != "right" for case in grade.cases)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_programs_pass(each_level: Sandbox, name: str) -> None:
    grade = grade_function(each_level, GOLDEN[name], "f", CASES)
    assert grade.all_right, grade
    assert grade.score().value == 1.0
    assert grade.score().proof["integrity"] == "outside"


@pytest.mark.parametrize(
    "name", ["always equal", "exit at import", "walks frames", "counts its calls"]
)
def test_tampering_fails_at_every_level(each_level: Sandbox, name: str) -> None:
    assert grade_function(each_level, TAMPERS[name], "f", CASES).score().value == 0.0


def test_outcomes_say_what_happened(sandbox: Sandbox) -> None:
    source = """
def f(x):
    if x == 1: return [x]
    if x == 2: raise KeyError("two")
    if x == 3:
        while True: pass
    if x == 4: return object()
    return x
"""
    limits = replace(LIMITS, case_wall_s=0.5)
    grade = grade_function(sandbox, source, "f", [Case((x,), x) for x in range(5)], limits=limits)
    assert [c.outcome for c in grade.cases] == ["right", "wrong", "error", "timeout", "wrong"]
    assert grade.cases[1].got == "[1]"
    assert grade.cases[2].error == "KeyError: 'two' (line 4)"
    assert "object" in grade.cases[4].error
    assert grade.fraction == pytest.approx(0.2)
    assert grade.first_failure == 1
    score = grade.score(partial=True)
    assert score.value == pytest.approx(0.2) and score.verdict is Verdict.PARTIAL


def test_endings_of_the_whole_job(sandbox: Sandbox) -> None:
    def verdict(source: str) -> BoxVerdict:
        return grade_function(sandbox, source, "f", CASES, limits=LIMITS).verdict

    assert verdict("def f(x) return") is BoxVerdict.CE
    assert verdict("import sys; sys.exit(0)") is BoxVerdict.PROTO
    assert verdict("import os; os._exit(0)") is BoxVerdict.PROTO
    assert verdict("def g(x): pass") is BoxVerdict.RE
    assert verdict("raise ValueError") is BoxVerdict.RE
    assert verdict("x = [bytearray(10**7) for _ in range(100)]") is BoxVerdict.MLE
    assert verdict("print('x' * 10**7)\ndef f(x): return 0") is BoxVerdict.OLE


def test_methods_keywords_and_rich_values(sandbox: Sandbox) -> None:
    source = """
class Solution:
    def pairs(self, words, *, reverse=False):
        return {w: (len(w), frozenset(w)) for w in sorted(words, reverse=reverse)}
"""
    expected = {"ab": (2, frozenset("ab")), "c": (1, frozenset("c"))}
    cases = [Case((["c", "ab"],), expected), Case(({"c", "ab"},), expected, {"reverse": True})]
    assert grade_function(sandbox, source, "Solution.pairs", cases).all_right


def test_calls_do_not_share_state_and_arguments_stay_fresh(sandbox: Sandbox) -> None:
    source = "seen = []\ndef f(x):\n    seen.append(x); x.append(1)\n    return len(seen), x"
    cases = [Case(([],), (1, [1])) for _ in range(3)]
    assert grade_function(sandbox, source, "f", cases).all_right


def test_floats_need_an_asked_for_tolerance(sandbox: Sandbox) -> None:
    source = "def f(): return 0.1 + 0.2"
    assert not grade_function(sandbox, source, "f", [Case((), 0.3)]).all_right
    assert grade_function(sandbox, source, "f", [Case((), 0.3)], tolerance=1e-9).all_right


def test_infrastructure_faults_are_unscored_never_zero() -> None:
    job = Job("def f(x): return x", entry_point="f")
    from educe.sandbox.contract import CallResult

    result = Result(BoxVerdict.INFRA, "the machine broke", calls=(CallResult("missing"),))
    grade = grade_calls(result, [Case((1,), 1)])
    score = grade.score(partial=True)
    assert score.value is None and score.fault is Fault.INFRASTRUCTURE
    assert grade.fraction is None and job.entry_point


def test_no_cases_is_an_error_not_a_pass(sandbox: Sandbox) -> None:
    with pytest.raises(JobError):
        grade_function(sandbox, "def f(): pass", "f", [])
    with pytest.raises(JobError):
        grade_stdio(sandbox, "print(1)", [])


@pytest.mark.parametrize(
    ("runtime", "source"),
    [
        ("python", "print(int(input()) * 2)"),
        ("bash", "read x; echo $((x * 2))"),
        ("c", '#include <stdio.h>\nint main(){int x;scanf("%d",&x);printf("%d\\n",x*2);}'),
        ("c++", "#include <iostream>\nint main(){int x;std::cin>>x;std::cout<<x*2<<std::endl;}"),
        ("node", "console.log(2 * parseInt(require('fs').readFileSync(0, 'utf8')))"),
    ],
)
def test_programs_are_graded_by_what_they_print(
    sandbox: Sandbox, runtime: str, source: str
) -> None:
    job = Job(source, runtime=runtime, limits=Limits(cpu_s=20, wall_s=120, memory_mb=512))
    try:
        grade = grade_stdio(sandbox, job, [StdioCase("3\n", "6"), StdioCase("5\n", "10\n")])
    except SandboxError as error:
        pytest.skip(str(error))
    assert grade.all_right, grade
    wrong = grade_stdio(sandbox, job, [StdioCase("3\n", "6"), StdioCase("5\n", "11")])
    assert [c.outcome for c in wrong.cases] == ["right", "wrong"]
    assert wrong.score(partial=True).value == 0.5


def test_printed_output_of_a_failed_program_does_not_count(sandbox: Sandbox) -> None:
    cases = [StdioCase("", "6")]
    grade = grade_stdio(sandbox, "print(6, flush=True)\nraise ValueError('late')", cases)
    assert grade.cases[0].outcome == "error" and "late" in grade.cases[0].error
    assert grade_stdio(sandbox, "print(6", cases).verdict is BoxVerdict.CE


@pytest.mark.parametrize(
    ("a", "b", "policy", "same"),
    [
        ("6", "6\n", "exact", False),
        ("6 \n\n", "6", "lines", True),
        ("1 2", "1\n2", "lines", False),
        ("1 2", "1\n2", "tokens", True),
        ("0.30000000001", "0.3", "numbers", True),
        ("0.31", "0.3", "numbers", False),
        ("nan", "1", "numbers", False),
        ("inf", "1e999", "numbers", False),
        ("", "\n", "lines", True),
    ],
)
def test_text_policies(a: str, b: str, policy: str, same: bool) -> None:
    assert texts_equal(a, b, policy=policy) is same  # type: ignore[arg-type]


def test_a_job_that_ended_badly_is_never_all_right_in_part() -> None:
    from educe.sandbox.graders import CaseGrade, Grade

    cases = (CaseGrade("right"),) * 4
    grade = Grade(cases, BoxVerdict.OLE, "wrote more than allowed", Fault.CANDIDATE)
    assert grade.score().value == 0.0 and grade.score(partial=True).value == 0.75
    assert Grade(cases, BoxVerdict.OK).score(partial=True).value == 1.0
