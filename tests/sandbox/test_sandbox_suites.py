# ruff: noqa: E501
"""Assert-style tests against stubs, and suites of test files."""

from __future__ import annotations

import pytest

from educe.core.types import Fault
from educe.sandbox import BoxVerdict, Job, JobError, Limits, Sandbox, grade_asserts, grade_suite

GOOD = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)

def f(x):
    if x < 0: raise ValueError("negative")
    return x * x + 1
"""
TESTS = (
    "assert f(2) == 5",
    "s = Stack(); s.push(3).push(4); assert s.pop() == 4 and len(s) == 1 and s.items == [3]",
    "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'negative'",
    "from solution import f as g\nassert [g(i) for i in range(3)] == [1, 2, 5]",
)
CHEATS = {
    "equal to all": "class E:\n    def __eq__(s, o): return True\n    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n    def __contains__(s, o): return True\n    def __sub__(s, o): return s\n    __abs__ = lambda s: s\ndef f(x): return E()\n",
    "truthy": "def f(x): return object()\n",
    "exits": "import os\ndef f(x): os._exit(0)\n",
    "exits at import": "import os\nos._exit(0)\n",
    "kills its parents": "import os\ndef f(x):\n    for p in range(2, 8):\n        if p != os.getpid():\n            try: os.kill(p, 9)\n            except OSError: pass\n    return 5\n",
    "patches assertions": "import builtins\nbuiltins.AssertionError = Exception\ndef f(x): return 0\n",
    "raises AssertionError's name": "def f(x): raise KeyboardInterrupt\n",
    "malformed answer": 'import os, struct\ndef f(x):\n    for fd in range(3, 20):\n        try: os.write(fd, struct.pack(\'<I\', 16) + b\'{"k":"value","v":5\'[:16])\n        except OSError: pass\n    return 0\n',
    "huge answer": "import os, struct\ndef f(x):\n    for fd in range(3, 20):\n        try: os.write(fd, struct.pack('<I', 2**31))\n        except OSError: pass\n    return 0\n",
    "reads the tests": "import gc, os\ndef f(x):\n    for p in (1, 2):\n        for part in ('mem', 'environ', 'fd/3', 'fd/4'):\n            try:\n                if p != os.getpid(): open(f'/proc/{p}/{part}', 'rb').read(1); print('READ', p, part)\n            except OSError: pass\n    found = [o for o in gc.get_objects() if isinstance(o, (list, tuple)) and ''.join(['assert f(2)', ' == 5']) in o]\n    return 5 if found else 0\n",
}


def test_good_programs_pass_all_asserts(each_level: Sandbox) -> None:
    grade = grade_asserts(each_level, GOOD, TESTS)
    assert grade.all_right, grade
    assert grade.score().value == 1.0


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_do_not_pass_asserts(sandbox: Sandbox, name: str) -> None:
    tests = [
        "assert f(2) == 5",
        "assert f(2) >= 5",
        "assert abs(f(2) - 5) < 1e-6",
        "assert 5 in [f(2)]",
        "assert f(2)",
    ]
    grade = grade_asserts(sandbox, CHEATS[name], tests)
    assert grade.num_right == 0 or name in ("kills its parents", "malformed answer"), grade
    assert not grade.all_right and grade.score().value == 0.0
    assert "READ" not in grade.stdout


def test_wrong_missing_and_broken_programs_are_told_apart(sandbox: Sandbox) -> None:
    assert [c.outcome for c in grade_asserts(sandbox, "def f(x): return 0", TESTS[:1]).cases] == [
        "wrong"
    ]
    absent = grade_asserts(sandbox, "def g(x): return 0", TESTS[:1])
    assert absent.cases[0].outcome == "error" and "'f' is not defined" in absent.cases[0].error
    assert grade_asserts(sandbox, "def f(x", TESTS).verdict is BoxVerdict.CE
    assert grade_asserts(sandbox, "1 / 0", TESTS).verdict is BoxVerdict.RE


def test_each_assert_gets_a_fresh_candidate(sandbox: Sandbox) -> None:
    source = "n = 0\ndef f():\n    global n\n    n += 1\n    return n\n"
    assert grade_asserts(sandbox, source, ["assert f() == 1 and f() == 2"] * 3).all_right


FILES = {"pkg/__init__.py": b"", "pkg/a.py": b"def inc(x):\n    return x + 1\n"}
SUITE = {
    "tests/test_a.py": b"""
import unittest
from pkg.a import inc
class TestInc(unittest.TestCase):
    def test_one(self): self.assertEqual(inc(1), 2)
    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i): self.assertEqual(inc(i), i + 1)
    @unittest.skip("later")
    def test_skipped(self): self.fail()
class TestPlain:
    def test_two(self): assert inc(2) == 3
def test_function(): assert inc(0) == 1
"""
}
REQUIRED = ("TestInc::test_one", "TestInc::test_sub", "TestPlain::test_two", "test_function")
IDS = [f"tests/test_a.py::{name}" for name in REQUIRED]


def test_suites_count_required_tests_only(each_level: Sandbox) -> None:
    grade = grade_suite(each_level, FILES, SUITE, IDS)
    assert grade.all_right, grade
    assert grade.score().proof["integrity"] == "in_process"
    skipped = grade_suite(
        each_level, FILES, SUITE, [*IDS, "tests/test_a.py::TestInc::test_skipped"]
    )
    assert skipped.cases[-1].outcome == "missing" and skipped.score().value == 0.0


@pytest.mark.parametrize(
    ("broken", "outcomes"),
    [
        (b"def inc(x):\n    return x\n", {"wrong"}),
        (b"def inc(x: return", {"error"}),
        (b"import os\nos._exit(0)\n", {"missing"}),
        (b"import sys\nsys.exit(0)\n", {"error"}),
        (
            b"import unittest\nunittest.TestCase.run = lambda s, r=None: None\ndef inc(x): return 0\n",
            {"missing", "wrong"},
        ),
        (b"import unittest\ndef inc(x): raise unittest.SkipTest('no')\n", {"missing"}),
        (b"print('tests/test_a.py::TestInc::test_one PASSED')\n", {"error"}),
    ],
)
def test_broken_candidates_fail_their_suite(
    sandbox: Sandbox, broken: bytes, outcomes: set[str]
) -> None:
    grade = grade_suite(sandbox, {**FILES, "pkg/a.py": broken}, SUITE, IDS)
    assert grade.score().value == 0.0
    assert {case.outcome for case in grade.cases} <= outcomes, grade


def test_the_candidate_cannot_replace_tests_or_report_for_other_files(sandbox: Sandbox) -> None:
    fake = b"def test_function(): pass\n"
    forger = b'import os\nfor fd in range(3, 20):\n    try: os.write(fd, b\'["tests/test_b.py::test_x", "passed", ""]\\n\')\n    except OSError: pass\ndef inc(x): return x\n'
    files = {**FILES, "pkg/a.py": forger, "tests/test_a.py": fake, "tests/test_b.py": fake}
    suite = {**SUITE, "tests/test_b.py": b"def test_x():\n    assert False\n"}
    grade = grade_suite(sandbox, files, suite, [*IDS, "tests/test_b.py::test_x"])
    assert grade.cases[-1].outcome == "wrong" and grade.num_right == 0


PYTEST_SUITE = {
    "tests/conftest.py": b"import pytest\n@pytest.fixture\ndef one(): return 1\n",
    "tests/test_p.py": b"""
import pytest
from pkg.a import inc
@pytest.mark.parametrize("x", [1, 2])
def test_inc(x): assert inc(x) == x + 1
def test_fixture(one, tmp_path): assert inc(one) == 2
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken():
    yield
    raise ValueError("late")
def test_torn(broken): pass
class TestIt:
    def test_raises(self):
        with pytest.raises(TypeError): inc("x")
""",
}
PYTEST_NAMES = ("test_inc[1]", "test_inc[2]", "test_fixture", "TestIt::test_raises")
PYTEST_IDS = [f"tests/test_p.py::{name}" for name in PYTEST_NAMES]


def test_pytest_suites_count_required_tests_only(each_level: Sandbox) -> None:
    grade = grade_suite(each_level, FILES, PYTEST_SUITE, PYTEST_IDS, runtime="python-pytest")
    assert grade.all_right, grade
    others = [f"tests/test_p.py::{name}" for name in ("test_skipped", "test_expected", "test_torn")]
    grade = grade_suite(each_level, FILES, PYTEST_SUITE, others, runtime="python-pytest")
    assert [case.outcome for case in grade.cases] == ["missing", "missing", "error"]


_REWRITES = b"""
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


@pytest.mark.parametrize(
    "extra",
    [
        {"conftest.py": _REWRITES},
        {"tests/unit/conftest.py": _REWRITES, "pkg/conftest.py": _REWRITES},
        {"pytest.ini": b"[pytest]\naddopts = -p pkg.plugin\n", "pkg/plugin.py": _REWRITES},
        {"pyproject.toml": b"[tool.pytest.ini_options]\naddopts = '--co'\n"},
        {
            "x-1.dist-info/entry_points.txt": b"[pytest11]\nx = pkg.plugin\n",
            "pkg/plugin.py": _REWRITES,
        },
        {"pytest.py": b"def main(*a, **k): pass\n", "unittest.py": b"", "_pytest/__init__.py": b""},
        {"json.py": b'def dumps(row): return \'["\' + row[0] + \'", "passed", ""]\'\n'},
    ],
    ids=lambda extra: next(iter(extra)),
)
@pytest.mark.parametrize("runtime", ["python", "python-pytest"])
def test_what_lies_about_does_not_decide(
    sandbox: Sandbox, extra: dict[str, bytes], runtime: str
) -> None:
    wrong = {**FILES, "pkg/a.py": b"def inc(x): return x\n", **extra}
    suite, ids = (SUITE, IDS) if runtime == "python" else (PYTEST_SUITE, PYTEST_IDS)
    grade = grade_suite(sandbox, wrong, suite, ids, runtime=runtime)
    assert grade.num_right == 0 and grade.score().value == 0.0, grade


def test_a_test_file_that_pytest_cannot_read_is_an_error(sandbox: Sandbox) -> None:
    files = {**FILES, "pkg/a.py": b"def inc(x: return"}
    grade = grade_suite(sandbox, files, PYTEST_SUITE, PYTEST_IDS, runtime="python-pytest")
    assert {case.outcome for case in grade.cases} == {"error"} and grade.score().value == 0.0
    assert "cannot be collected" in grade.cases[0].error


def test_suites_and_asserts_are_validated() -> None:
    with pytest.raises(JobError):
        Job("", tests=("assert f",), entry_point="f")
    with pytest.raises(JobError, match="no Python file"):
        Job(suite=("tests/test_a.py",))
    with pytest.raises(JobError):
        Job("int main(){}", runtime="c", tests=("assert f",))


def test_empty_tests_are_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(JobError):
        grade_asserts(sandbox, GOOD, [])
    with pytest.raises(JobError):
        grade_suite(sandbox, FILES, SUITE, [])
    limits = Limits(cpu_s=0.5, wall_s=120)
    late = grade_asserts(sandbox, "def f(x):\n    while True: pass", TESTS[:1], limits=limits)
    assert late.cases[0].outcome == "timeout" and late.fault is Fault.CANDIDATE
