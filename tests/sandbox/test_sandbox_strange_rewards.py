# ruff: noqa: E501
"""Programs by somebody who did not write the graders: to be paid, to hang one, or to be excused."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_forgers
from test_sandbox_hostile import _as_user

from educe.sandbox import (
    BoxVerdict,
    Call,
    Case,
    CaseGrade,
    Job,
    Limits,
    Sandbox,
    grade_asserts,
    grade_function,
    grade_suite,
)
from educe.sandbox.graders import Grade, grade_calls
from educe.sandbox.values import equal, show

HERE = Path(__file__).parent
LIMITS = Limits(cpu_s=4.0, wall_s=20.0, memory_mb=128, disk_mb=8, case_wall_s=3.0)
CASES = [Case((x,), x * x + 1) for x in (3, 7, 12)]  # the values are 10, 50 and 145
_PRIME = (1 << 61) - 1  # what integers are hashed by


def soon(check: Callable[[], Any], cpu_s: float = 2.0) -> Any:
    """Return what a check returns; fail when it takes long (processor time of this thread)."""
    begun = time.thread_time()
    result = check()
    assert time.thread_time() - begun < cpu_s
    return result


# ---- functions ----

_SEND = """
import os, struct
def send(kind, index=0, body=b"", fd=3):
    os.write(fd, struct.pack("<BIfI", kind, index, 0.0, len(body)) + body)
def right(index): send(2, index, b'{"s": "returned", "v": %d}' % (10, 50, 145)[index])
"""
# Even with the right values in hand, the way they take must be the runner's.
FORGERS = {
    "right values, doubled": _SEND + "for i in range(3): right(i)\ndef f(x): return x * x + 1\n",
    "right values and no end": _SEND + "for i in range(3): right(i)\nos._exit(0)\n",
    "a value for a case that is none": _SEND
    + 'send(2, 7, b\'{"s": "returned", "v": 1}\')\ndef f(x): return x * x + 1\n',
    "half a frame": _SEND + "os.write(3, b'\\x02\\x00')\ndef f(x): return x * x + 1\n",
    "a frame as long as the address space": _SEND
    + "os.write(3, struct.pack('<BIfI', 2, 0, 0.0, 2**32 - 1))\ndef f(x): return x * x + 1\n",
    "a frame of no kind": _SEND + "send(77)\ndef f(x): return x * x + 1\n",
    "an end before the beginning": _SEND + "send(5)\ndef f(x): return x * x + 1\n",
    "values that are none": _SEND
    + 'send(2, 0, b\'{"s": "returned", "v": {"i": 5}}\')\ndef f(x): return 0\n',
    "a channel of its own": "import os\nos.close(3)\nos.dup2(1, 3)\ndef f(x): return x * x + 1\n",
    "a channel to nowhere": "import os\nos.dup2(os.open('/dev/null', 1), 3)\ndef f(x): return x * x + 1\n",
    "two that answer at once": "import os\ndef f(x):\n    os.fork()\n    for fd in range(3, 9):\n        try: os.write(fd, b'\\x05\\x00\\x00\\x00[')\n        except OSError: pass\n    return x * x + 1\n",
    "easier questions": "import sys\nframe = sys._getframe()\nwhile frame:\n    for value in list(frame.f_locals.values()):\n        if isinstance(value, dict) and 'calls' in value: value['calls'] = [((3,), {})] * 3\n    frame = frame.f_back\ndef f(x): return x * x + 1\n",
    "fewer questions": "import sys\nframe = sys._getframe()\nwhile frame:\n    for value in list(frame.f_locals.values()):\n        if isinstance(value, dict) and 'calls' in value: value['calls'] = value['calls'][:1]\n    frame = frame.f_back\ndef f(x): return x * x + 1\n",
    "a thread that answers in between": _SEND
    + "import threading, time\ndef more():\n    while True:\n        try: send(3, 1)\n        except OSError: return\n        time.sleep(0.001)\nthreading.Thread(target=more, daemon=True).start()\ntime.sleep(0.05)\ndef f(x): return x * x + 1\n",
}
# Values that would be right if they were what they claim to be.
IMPOSTORS = {
    "an enumeration": "import enum\nclass E(enum.IntEnum): A = 10; B = 50; C = 145\ndef f(x): return E(x * x + 1)\n",
    "a named tuple": "import collections\nT = collections.namedtuple('T', 'v')\ndef f(x): return T(x * x + 1)\n",
    "a dictionary's view": "def f(x): return {x * x + 1: 0}.keys()\n",
    "a bytearray": "def f(x): return bytearray(str(x * x + 1).encode())\n",
    "what reduces to it": "class R:\n    def __init__(self, v): self.v = v\n    def __reduce__(self): return int, (self.v,)\n    def __index__(self): return self.v\n    __int__ = __index__\ndef f(x): return R(x * x + 1)\n",
    "a class that says it is int": "class I:\n    __class__ = int\n    def __init__(self, v): self.v = v\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return I(x)\n",
    "a complex number": "def f(x): return complex(x * x + 1)\n",
    "a negative zero for a zero's sake": "def f(x): return -0.0\n",
    "a number in other digits": "def f(x): return ''.join(chr(0x660 + int(c)) for c in str(x * x + 1))\n",
    "an exception that says it": "def f(x): raise SystemExit(x * x + 1)\n",
    "an exception that cannot be shown": "class E(Exception):\n    def __str__(self): raise KeyboardInterrupt\ndef f(x): raise E\n",
    "an exception with a text without end": "def f(x): raise ValueError('\\x1b[2J' + 'PASSED ' * 10**6)\n",
    "an encoder of its own": "import json.encoder, base64\njson.encoder.encode_basestring_ascii = lambda s: '10'\nbase64.b64encode = lambda b: b'10'\ndef f(x): return 'x'\n",
    "another int": "import builtins\nclass I(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\nbuiltins.int = I\ndef f(x): return I(5)\n",
    "a trace that answers": "import sys\ndef trace(frame, event, arg):\n    if 'record' in frame.f_locals: frame.f_locals['record']['v'] = 10\n    return trace\nsys.settrace(trace)\ndef f(x): return 0\n",
    "an allocation at the end": "import gc\ngc.callbacks.append(lambda *a: None)\nclass D:\n    def __del__(self):\n        import os; os._exit(0)\nkept = D()\ndef f(x):\n    global kept\n    del kept\n    return x * x + 1\n",
}


@pytest.mark.parametrize("name", [*FORGERS, *IMPOSTORS])
def test_no_stranger_is_paid_by_the_grader_of_functions(sandbox: Sandbox, name: str) -> None:
    source = {**FORGERS, **IMPOSTORS}[name]
    grade = soon(lambda: grade_function(sandbox, source, "f", CASES, limits=LIMITS))
    assert grade.score().value == 0.0, grade
    if name != "right values and no end":  # it had to know them: a share is paid for each
        assert grade.score(partial=True).value in (0.0, pytest.approx(1 / 3)), grade
    assert grade.is_scored and (grade.reason or grade.num_right < 3)
    assert all(_is_text(case) for case in grade.cases)


def _is_text(case: CaseGrade) -> bool:
    """Return whether what is fed back can be written down (and read by a tokenizer)."""
    return len((case.error + case.got).encode()) < 20_000


def test_the_program_they_imitate_is_paid(sandbox: Sandbox) -> None:
    honest = "def f(x): return x * x + 1\n"
    assert grade_function(sandbox, honest, "f", CASES, limits=LIMITS).all_right
    forged = _SEND + "for i in range(3): right(i)\nsend(5)\nos._exit(0)\n"
    # A candidate that sends what it computed is no cheat: values decide, and it had to know them.
    assert grade_function(sandbox, forged, "f", CASES, limits=LIMITS).num_right == 3


_FLOOD = """
import os, struct
def f():
    numbers = ",".join(str(n * ((1 << 61) - 1)) for n in range(1, 30_000))
    body = ('{"s": "returned", "v": ' + VALUE + '}').encode()
    data = struct.pack("<I", len(body)) + body
    for fd in range(3, 9):
        try:
            left = data
            while left: left = left[os.write(fd, left):]
        except OSError: pass
    os._exit(0)
"""
FLOODS = {
    "a set of numbers with one hash": "'{\"s\": [' + numbers + ']}'",
    "keys with one hash": "'{\"d\": [' + ','.join(f'[{n}, 0]' for n in numbers.split(',')) + ']}'",
    "tuples with one hash": "'{\"s\": [' + ','.join('{\"t\": [%s]}' % n for n in numbers.split(',')) + ']}'",
    "sets in sets": "'{\"f\": [' * 180 + '{\"t\": [' + '0,' * 50_000 + '0]}' + ']}' * 180",
    "lists in lists": "'[' * 100_000 + ']' * 100_000",
    "digits without end": "'9' * 1_000_000",
    "hexadecimal digits without end": "'{\"i\": \"0x' + 'f' * 3_000_000 + '\"}'",
    "many long numbers": "'[' + ('9' * 4000 + ',') * 300 + '1]'",
    "one key again and again": "'{\"d\": [' + '[1, 1],' * 100_000 + '[1, 2]]}'",
    "lone surrogates": "'\"' + '\\\\ud800' * 100_000 + '\"'",
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_value_does_not_hang_whoever_compares_it(sandbox: Sandbox, name: str) -> None:
    source = _FLOOD.replace("VALUE", FLOODS[name])

    job = Job(source, entry_point="f", calls=(Call(),), limits=LIMITS)
    expected: tuple[Any, ...] = ({1}, frozenset({(0,)}), frozenset({frozenset()}), {"a": 1})

    def grades() -> list[Grade]:
        result = sandbox.run(job)
        return [grade_calls(result, [Case((), value)]) for value in expected]

    for grade in soon(grades):
        assert grade.score().value == 0.0 and _is_text(grade.cases[0])
        json.dumps(grade.score().proof)


def test_nesting_does_not_multiply_what_a_comparison_costs() -> None:
    def spent(depth: int) -> float:
        value: Any = tuple(range(20_000))
        for _ in range(depth):
            value = frozenset({value})
        begun = time.thread_time()
        for _ in range(3):
            assert not equal(frozenset({(0,)}), value) and show(value)
        return time.thread_time() - begun

    spent(10)
    assert spent(180) < 10 * max(spent(10), 1e-3)  # each level once more: 18 times as much


def test_a_value_of_any_size_can_be_reported(sandbox: Sandbox) -> None:
    job = Job("def f(): return 1 << 100_000", entry_point="f", calls=(Call(),), limits=LIMITS)
    text = json.dumps(sandbox.run(job).to_json())
    assert len(text) < 200_000


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({float("nan")}, {float("nan")}, True),
        ({float("nan"): 1}, {float("nan"): 1}, True),
        ({float("nan"): 1}, {float("nan"): 2}, False),
        ({0.0}, {-0.0}, False),
        ({1}, {True}, False),
        ({1: "a"}, {1.0: "a"}, False),
        ({(1, frozenset({2}))}, {(1, frozenset({2.0}))}, False),
        ({(1, frozenset({2}))}, {(1, frozenset({2}))}, True),
        ({-1, -2}, {-2, -1}, True),
        ("\u00e9", "e\u0301", False),
        ("42", "\uff14\uff12", False),
        (10**400, 10**400 + 1, False),
        (float("inf"), 10**400, False),
        (2**53 + 1, float(2**53), False),
        ([[]], [()], False),
        ({}, set(), False),
        (b"1", "1", False),
        (None, False, False),
        (_PRIME, 0, False),
    ],
)
def test_equality_is_of_values_and_types(a: Any, b: Any, same: bool) -> None:
    assert equal(a, b) is same and equal(b, a) is same
    assert equal([a], [b], tolerance=1e-9) is same


# ---- asserts ----

ASSERT_CHEATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ends every map": (
        "def f(x): raise StopIteration\n",
        (
            "assert all(map(f, [1, 2, 3]))",
            "for got, want in zip(map(f, [1, 2]), [2, 5]): assert got == want",
            "assert list(filter(f, [1])) == [] and list(map(f, [1])) == []",
            "assert [*map(f, [1, 2])] in ([], [2, 5])",
        ),
    ),
    "a mathematics of its own": (
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\n    inf = 0\nclass itertools:\n    chain = staticmethod(lambda *a: [])\ndef f(x): return 0.0\n",
        (
            "assert math.isclose(f(2), 5.0)",
            "assert all(x == 1 for x in itertools.chain([f(1)], [f(2)]))",
            "assert math.isclose(f(2), 5.0) and math.isclose(f(3), 10.0)",
        ),
    ),
    "an array library of its own": (
        "class np:\n    allclose = staticmethod(lambda *a, **k: True)\n    array = staticmethod(lambda x: x)\ndef f(x): return [0]\n",
        ("assert np.allclose(f(2), [5])", "assert np.allclose(np.array(f(1)), np.array([2]))"),
    ),
    "other builtins": (
        "import builtins\nfor name in ('abs', 'all', 'len', 'sorted', 'isinstance', 'str', 'round'):\n    setattr(builtins, name, lambda *a, **k: True)\nabs = all = len = sorted = isinstance = str = round = lambda *a, **k: True\ndef f(x): return 0\n",
        ("assert abs(f(2) - 5) < 1", "assert sorted([f(2)]) == [5]", "assert str(f(2)) == '5'"),
    ),
    "a name that says it": (
        "T = type('5', (), {})\ndef f(x): return T()\n",
        ("assert str(f(2)) == '5'", "assert f(2) == 5", "assert repr(f(2)).strip('<>') == '5'"),
    ),
    "one that is equal from the right": (
        "class E(int):\n    def __eq__(self, o): return True\n    __req__ = __radd__ = __rsub__ = lambda self, o: 0\n    def __hash__(self): return 0\ndef f(x): return E(5)\n",
        (
            "assert 5 == f(3)",
            "assert [5] == [f(3)]",
            "assert {5: 1}.get(f(3)) == 1",
            "assert f(3) in {5}",
        ),
    ),
    "answers ahead": (
        "import os, struct, json\ndef f(x):\n    body = json.dumps({'k': 'value', 'v': True}).encode()\n    for fd in range(3, 20):\n        try: os.write(fd, (struct.pack('<I', len(body)) + body) * 3)\n        except OSError: pass\n    return 0\n",
        ("assert f(2) == 5", "assert f(2) + f(3) == 15 and f(2) == 5"),
    ),
    "no answer, and no end": ("import time\ndef f(x): time.sleep(100)\n", ("assert f(2) == 5",)),
    "takes the tester's descriptors away": (
        "import os, resource\nfor pid in (1, 2, os.getppid()):\n    if pid != os.getpid():\n        try: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))\n        except (OSError, ValueError): pass\ndef f(x): return 0\n",
        ("assert f(2) == 5",),
    ),
    "leaves modules for the tester": (
        "import os\nfor name in ('math', 'statistics', 'solution', 'sitecustomize', 'unittest'):\n    open(name + '.py', 'w').write('import builtins\\nbuiltins.AssertionError = StopIteration\\nisclose = mean = lambda *a: True\\n')\ndef f(x): return 0\n",
        (
            "import statistics\nassert statistics.mean([f(1), f(2)]) == 3.5",
            "from math import isclose\nassert isclose(f(2), 5)",
        ),
    ),
}


@pytest.mark.parametrize("name", ASSERT_CHEATS)
def test_no_stranger_passes_asserts(sandbox: Sandbox, name: str) -> None:
    source, tests = ASSERT_CHEATS[name]
    limits = Limits(cpu_s=4, wall_s=2 if "no end" in name else 20)
    grade = grade_asserts(sandbox, source, tests, limits=limits)
    assert not grade.all_right and grade.score().value == 0.0, grade
    assert grade.num_right == 0 or name == "answers ahead", grade


def test_the_same_asserts_pass_an_honest_program(sandbox: Sandbox) -> None:
    honest = "import math, itertools\ndef f(x): return x * x + 1\n"
    for name, (_, tests) in ASSERT_CHEATS.items():
        if name in ("an array library of its own", "a name that says it", "no answer, and no end"):
            continue
        if name == "one that is equal from the right":
            tests = tuple(test.replace("f(3)", "f(2)") for test in tests)
        if name == "ends every map":
            tests = tests[:2]
        if name == "a mathematics of its own":
            tests = (tests[0], tests[2])
        assert grade_asserts(sandbox, honest, tests).all_right, name


def test_iteration_and_odd_exceptions_still_cross(sandbox: Sandbox) -> None:
    source = "def count(n):\n    yield from range(n)\ndef bad(): return b'\\xff'.decode()\ndef group(): raise ExceptionGroup('two', [ValueError(), KeyError()])\n"
    tests = (
        "assert list(count(3)) == [0, 1, 2]",
        "it = count(1); next(it)\ntry:\n    next(it)\n    assert False\nexcept StopIteration: pass",
        "try:\n    bad()\n    assert False\nexcept UnicodeDecodeError: pass",
        "try:\n    group()\n    assert False\nexcept Exception as error: assert not isinstance(error, AssertionError)",
    )
    assert grade_asserts(sandbox, source, tests).all_right, grade_asserts(sandbox, source, tests)


def test_feedback_of_any_text_can_be_written_down(sandbox: Sandbox) -> None:
    """A lone surrogate in a message ended whoever turned it into tokens."""
    source = "def f(x): raise ValueError('\\udc80\\ud800 \\x00 \\x1b[2J')\n"
    told = [grade_asserts(sandbox, source, ["assert f(2) == 5"])]
    package = {"pkg/__init__.py": b"", "pkg/a.py": source.encode()}
    told.append(grade_suite(sandbox, package, run_forgers.SUITE, run_forgers.IDS[:1]))
    for grade in told:
        assert "ValueError" in grade.cases[0].error
        assert _is_text(grade.cases[0]) and grade.reason.encode() is not None


# ---- suites ----

_FAKE = b"def test_one(): pass\ndef test_two(): pass\n"


def _compiled(source: bytes) -> bytes:
    """Return a compiled file that is believed whatever the source beside it says (PEP 552)."""
    code = marshal.dumps(compile(source, "x", "exec"))
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + code


def _cached(name: str) -> str:
    return importlib.util.cache_from_source(name)


_WRONG = {"pkg/__init__.py": b"", "pkg/a.py": b"def f(x): return 0\n"}
_RIGHT = {"pkg/__init__.py": b"", "pkg/a.py": b"def f(x): return x * x + 1\n"}
JUNK: dict[str, dict[str, bytes]] = {
    "packages of the tests' names": {"tests/test_a/__init__.py": _FAKE, "tests/test_b/__init__.py": _FAKE, "test_a/__init__.py": _FAKE, "test_b.py": _FAKE},
    "compiled tests": {_cached("tests/test_a.py"): _compiled(_FAKE), _cached("tests/test_b.py"): _compiled(_FAKE)},
    "compiled tests without sources": {"tests/test_a.pyc": _compiled(_FAKE), "test_a.pyc": _compiled(_FAKE)},
    "other tests of the same names": {"tests/test_a.py": _FAKE, "tests/test_b.py": _FAKE},
    "a framework of its own": {f"{name}.py": b"raise ImportError('mine')\n" for name in ("unittest", "json", "inspect", "functools", "importlib", "os")},
    "start-up files": dict.fromkeys(("sitecustomize.py", "usercustomize.py", "conftest.py", "tests/conftest.py", "tests/sitecustomize.py"), b"import builtins\nbuiltins.AssertionError = ZeroDivisionError\n"),
    "settings of test programs": {"pytest.ini": b"[pytest]\naddopts = --collect-only\n", "setup.cfg": b"[tool:pytest]\naddopts = -k nothing\n", "tox.ini": b"[pytest]\npython_files = none\n", "pyproject.toml": b"[tool.pytest.ini_options]\naddopts = '-p pkg.a'\n"},
    "a file for a folder": {"tests": b"mine"},
    "a folder for a file": {"tests/test_a.py/x.py": _FAKE, "tests/test_b.py/__init__.py": _FAKE},
    "entry points": {"mine.dist-info/entry_points.txt": b"[pytest11]\nmine = pkg.a\n", "mine.pth": b"import os; os._exit(0)\n"},
}  # fmt: skip


@pytest.mark.parametrize("name", JUNK)
def test_nothing_beside_the_tests_is_run_in_their_place(sandbox: Sandbox, name: str) -> None:
    wrong = grade_suite(sandbox, {**_WRONG, **JUNK[name]}, run_forgers.SUITE, run_forgers.IDS)
    assert wrong.num_right == 0 and wrong.score().value == 0.0, wrong
    right = grade_suite(sandbox, {**_RIGHT, **JUNK[name]}, run_forgers.SUITE, run_forgers.IDS[:1])
    assert right.all_right, right  # and what lies about does not harm who is right


def test_tests_by_pytest_are_not_replaced_either(sandbox: Sandbox) -> None:
    for name, junk in JUNK.items():
        wrong = grade_suite(
            sandbox, {**_WRONG, **junk}, run_forgers.SUITE, run_forgers.IDS, runtime="python-pytest"
        )
        assert wrong.score().value == 0.0 and wrong.num_right == 0, (name, wrong)
    right = grade_suite(
        sandbox, _RIGHT, run_forgers.SUITE, run_forgers.IDS[:1], runtime="python-pytest"
    )
    assert right.all_right, right


# ---- the graders' own processes ----


def test_nobody_reports_through_a_grader_s_own_channel(each_level: Sandbox) -> None:
    if each_level.level < 2:
        pytest.skip("plain keeps accidents in, not attackers")
    paid = run_forgers.payments(each_level)
    assert {value for values in paid.values() for value in values} == {0.0}, paid
    assert set(run_forgers.controls(each_level).values()) == {1.0}


@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_nor_where_all_processes_belong_to_one_user(level: str) -> None:
    told = json.loads(_as_user(HERE / "run_forgers.py", level))
    assert told["uid"] != 0
    assert {value for values in told["paid"].values() for value in values} == {0.0}, told
    assert set(told["honest"].values()) == {1.0}


def test_no_verdict_here_is_ours(sandbox: Sandbox) -> None:
    """Whatever a program does to its own runner, it is judged."""
    assert os.environ.get("EDUCE_TEST_SECRET", "EDUCE_TEST_SECRET") == "EDUCE_TEST_SECRET"
    for source in list(FORGERS.values())[:6]:
        assert (
            grade_function(sandbox, source, "f", CASES, limits=LIMITS).verdict
            is not BoxVerdict.INFRA
        )
