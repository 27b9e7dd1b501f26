from __future__ import annotations

import shutil

import pytest

from educe.sandbox import BoxVerdict, Case, JobError, Sandbox, grade_function
from educe.sandbox.graders import Grade
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
    if shutil.which("ruff"):
        assert good.parts["lint"] is not None and bad.parts["lint"] is not None
        assert good.parts["lint"] > bad.parts["lint"]


@pytest.mark.parametrize(
    "source", ["def f(", "x = " + "(" * 500 + ")" * 500, "\0", "\udcff = 1", "-" * 5000 + "1"]
)
def test_texts_that_break_parsers_are_the_candidates_fault(sandbox: Sandbox, source: str) -> None:
    quality = assess_quality(sandbox, source)
    assert quality.is_scored and quality.parts["compiles"] in (0.0, 1.0)


def test_infrastructure_faults_stay_unscored(sandbox: Sandbox) -> None:
    from educe.core.types import Fault

    broken = Grade((), BoxVerdict.INFRA, "gone", Fault.INFRASTRUCTURE)
    quality = assess_quality(sandbox, TIDY, tests=broken)
    assert not quality.is_scored
    assert quality.weighted({}) is None


def test_unknown_parts_and_empty_weights_are_refused(sandbox: Sandbox) -> None:
    quality = assess_quality(sandbox, TIDY)
    with pytest.raises(JobError, match="unknown quality parts"):
        quality.weighted({"beauty": 1.0})
    with pytest.raises(JobError, match="more than 0"):
        quality.weighted({"simple": 0.0})
