"""Code quality: what each part says of programs that are right, wrong, ugly, insecure or none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scripted_engine import ScriptedSubject, gold

from educe.core.protocols import Services
from educe.core.types import Fault, Score, Split, Task, user
from educe.domains.code_quality import QualityDomain, with_quality
from educe.evaluation.dimensions.code_quality import program_of
from educe.evaluation.suite import SuitePlan, run_suite
from educe.sandbox import Sandbox, open_sandbox

TASK = Task("d", Split.EVAL, 0, (user("?"),), metadata={"entry_point": "f"})


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox(num_parallel=1) as opened:
        yield opened


def quality(sandbox: Sandbox, source: str, score: Score | None = None) -> dict[str, float | None]:
    found = with_quality(score or Score.right(), source, Services(sandbox=sandbox))
    return {k.removeprefix("quality:"): v for k, v in found.parts.items()
            if k.startswith("quality:")}  # fmt: skip


def test_parts_of_programs(sandbox: Sandbox):
    tidy = quality(sandbox, 'def f(x):\n    """Twice."""\n    return 2 * x\n')
    assert tidy["compiles"] == tidy["secure"] == tidy["simple"] == tidy["tidy"] == 1.0
    assert tidy["executes"] == tidy["pass_rate"] == 1.0
    unsafe = quality(sandbox, "import os\n\n\ndef f(x):\n    os.system(x)\n    return eval(x)\n")
    assert unsafe["secure"] == 0.25 and unsafe["compiles"] == 1.0
    branches = "".join(f"    if x == {i}:\n        return {i}\n" for i in range(30))
    assert quality(sandbox, f"def f(x):\n{branches}")["simple"] == 0.0


def test_what_is_no_program_has_no_style(sandbox: Sandbox):
    for source in ("", "def f(:", "   "):
        parts = quality(sandbox, source, Score.unparseable())
        assert parts["compiles"] == parts["executes"] == parts["pass_rate"] == 0.0
        assert "lint" not in parts and "secure" not in parts


def test_running_and_passing_come_from_the_grader(sandbox: Sandbox):
    source = "def f(x):\n    return x\n"

    def graded(outcomes: list[str], share: float) -> Score:
        return Score(0.0, None, Fault.CANDIDATE, parts={"hidden_fraction": share},
                     proof={"outcomes": outcomes})  # fmt: skip

    wrong = quality(sandbox, source, graded(["right", "wrong"], 0.5))
    assert wrong["executes"] == 1.0 and wrong["pass_rate"] == 0.5
    broken = quality(sandbox, source, graded(["right", "error"], 0.5))
    assert broken["executes"] == 0.0
    # Known: tests that never ran counted as passed.
    silent = quality(sandbox, source, graded(["missing", "missing"], 0.0))
    assert silent["executes"] == 0.0 and silent["pass_rate"] == 0.0


def test_which_text_is_the_program():
    assert program_of(TASK, "```python\ndef f(x):\n    return 1\n```").startswith("def f")
    assert program_of(TASK, "def f(x):\n    return 1").startswith("def f")
    assert program_of(TASK, "```python\ndef g(x):\n    return 1\n```").startswith("def g")
    assert program_of(TASK, "12") == "" and program_of(TASK, "I cannot help with that.") == ""
    thinking = "<think>```python\ndef f(): bad\n```</think>```python\ndef f(x):\n    return 2\n```"
    assert "return 2" in program_of(TASK, thinking)


def test_unscored_stays_unscored(sandbox: Sandbox):
    class Lost:
        spec = None

        def score(self, *_: object) -> Score:
            return Score.unscored(Fault.INFRASTRUCTURE, "gone")

    domain = QualityDomain.__new__(QualityDomain)
    domain.inner = Lost()  # type: ignore[assignment]
    found = domain.score(TASK, None, [*TASK.messages], Services(sandbox=sandbox))
    assert found.value is None


def test_the_dimension_on_golds_and_on_refusals():
    plan = SuitePlan(
        tier="small", dimensions=("code_quality",),
        options={"code_quality": {"domains": "python/string-edit/tiny", "tasks": 3}},
    )  # fmt: skip
    by_name = {m.name: m.estimate for m in run_suite(ScriptedSubject(gold), plan)
               .dimensions[0].measures}  # fmt: skip
    for name in ("all tests passed", "compiles", "runs", "tests passed", "security"):
        assert by_name[name].value == 1.0, name
    assert by_name["insecure programs"].value == 0.0
    refused = run_suite(ScriptedSubject(lambda *_: "I'm sorry, I can't help with that."), plan)
    dimension = refused.dimensions[0]
    by_name = {m.name: m.estimate for m in dimension.measures}
    assert by_name["all tests passed"].value == by_name["compiles"].value == 0.0
    assert by_name["security"] is None and "refused" in dimension.withheld
