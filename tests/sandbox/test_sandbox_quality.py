from __future__ import annotations

import sys
from pathlib import Path

import pytest

from educe.sandbox import BoxVerdict, Case, JobError, Sandbox, grade_function, quality
from educe.sandbox.graders import Grade
from educe.sandbox.inside import style
from educe.sandbox.quality import assess_quality

TIDY = 'def f(x):\n    """Return the next number."""\n    return x + 1\n'
MESSY = (
    "import os\n\n\ndef f(x):\n"
    + "".join(f"    if x == {i} and x > {i}:\n        eval('{i}')\n" for i in range(20))
    + "    try:\n        os.system('ls')\n    except:\n        pass\n    return x + 1\n"
)


def test_tidy_code_scores_above_messy_code(sandbox: Sandbox) -> None:
    tests = grade_function(sandbox, TIDY, "f", [Case((1,), 2), Case((2,), 0)])
    good = assess_quality(sandbox, TIDY, tests=tests)
    bad = assess_quality(sandbox, MESSY)
    assert good.parts["compiles"] == good.parts["simple"] == good.parts["secure"] == 1.0
    assert good.parts["pass_rate"] == 0.5 and good.parts["passes_all"] == 0.0
    assert bad.parts["simple"] == 0.0 and bad.parts["secure"] == pytest.approx(0, abs=1e-6)
    assert any("os.system" in finding for finding in bad.findings)
    weights = {"compiles": 1.0, "simple": 1.0, "secure": 2.0}
    best, worst = good.weighted(weights), bad.weighted(weights)
    assert best == 1.0 and worst == pytest.approx(0.25)
    if quality.ruff_program():
        assert good.parts["lint"] is not None and bad.parts["lint"] is not None
        assert good.parts["lint"] > bad.parts["lint"]


@pytest.mark.parametrize(
    "source", ["def f(", "x = " + "(" * 500 + ")" * 500, "\0", "\udcff = 1", "-" * 5000 + "1"]
)
def test_texts_that_break_parsers_are_the_candidates_fault(sandbox: Sandbox, source: str) -> None:
    found = assess_quality(sandbox, source)
    assert found.is_scored and found.parts["compiles"] in (0.0, 1.0)


def test_infrastructure_faults_stay_unscored(sandbox: Sandbox) -> None:
    from educe.core.types import Fault

    broken = Grade((), BoxVerdict.INFRA, "gone", Fault.INFRASTRUCTURE)
    found = assess_quality(sandbox, TIDY, tests=broken)
    assert not found.is_scored
    assert found.weighted({}) is None


def test_unknown_parts_and_empty_weights_are_refused(sandbox: Sandbox) -> None:
    found = assess_quality(sandbox, TIDY)
    with pytest.raises(JobError, match="unknown quality parts"):
        found.weighted({"beauty": 1.0})
    with pytest.raises(JobError, match="more than 0"):
        found.weighted({"simple": 0.0})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from os import system\nsystem('ls')\n", "line 2: os.system"),
        ("import os as o\no.system('ls')\n", "line 2: os.system"),
        ("import os\nrun = os.system\nrun('ls')\n", "line 2: os.system"),
        ("import builtins\nbuiltins.eval('1')\n", "line 2: eval"),
        ("import os\ngetattr(os, 'system')('ls')\n", "line 2: os.system"),
        ("from os import *\nsystem('ls')\n", "line 1: from os import *"),
        ("from subprocess import run\nrun('ls', shell=1)\n", "line 2: shell=True"),
        ("import pickle as p\np.loads(b'')\n", "line 2: pickle.loads"),
        ("import os\nos.execv('/bin/ls', [])\n", "line 2: os.execv"),
        ("try:\n    pass\nexcept:\n    pass\n", "line 3: bare except"),
    ],
)
def test_what_a_reviewer_stops_at_is_found_under_any_name(source: str, found: str) -> None:
    assert style.facts_of(source)["insecure"] == [found]


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('a')\n",
        "import os\nprint(os.path.join('a', 'b'), os.getcwd())\n",
        "import subprocess\nsubprocess.run(['ls'], shell=False)\n",
        "def evaluate(x):\n    return x\nevaluate(1)\n",
    ],
)
def test_harmless_code_is_left_alone(source: str) -> None:
    assert style.facts_of(source)["insecure"] == []


def test_branches_count_wherever_they_stand() -> None:
    branches = [f"if 1 == {n}: x = {n}" for n in range(40)]
    for source in (
        "\n".join(branches),
        "class A:\n" + "".join(f"    {line}\n" for line in branches),
        "def f():\n" + "".join(f"    {line}\n" for line in branches),
    ):
        assert style.facts_of(source)["worst"] == 41


def test_lint_is_found_beside_the_interpreter_and_asked_only_when_it_answers(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    beside = Path(sys.executable).with_name("ruff")
    assert quality.ruff_program() == (str(beside) if beside.exists() else None)

    def linted(program: str) -> tuple[float | None, tuple[str, ...]]:
        fake = tmp_path / "ruff"
        fake.write_text(program)
        fake.chmod(0o755)
        monkeypatch.setattr(quality, "ruff_program", lambda: str(fake))
        found = assess_quality(sandbox, "x = 1\n")
        return found.parts["lint"], found.findings

    assert linted("#!/bin/sh\necho '[]'\n") == (1.0, ())
    # It crashes on this text alone: its writer's doing. On every text: nobody's.
    crash = '#!/bin/sh\nif [ "$(/bin/cat)" = "x = 1" ]; then kill -SEGV $$; fi\necho "[]"\n'
    assert linted(crash) == (0.0, ("ruff cannot read it",))
    assert linted("#!/bin/sh\nexit 2\n") == (None, ())
