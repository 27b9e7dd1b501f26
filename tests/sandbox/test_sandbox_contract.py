from __future__ import annotations

import math
from typing import Any

import pytest

from educe.core.types import Fault
from educe.sandbox import (
    BoxVerdict,
    Call,
    CallResult,
    Job,
    JobError,
    Level,
    Limits,
    Result,
    open_sandbox,
)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/x",
        "a/../../x",
        "",
        "a\0b",
        "x" * 300,
        "a//b",
        "./a",
        "a/" * 40 + "b",
        "\udc80",
    ],
)
def test_paths_that_leave_the_job_are_refused(path: str) -> None:
    with pytest.raises(JobError):
        Job("", files={path: b""})
    with pytest.raises(JobError):
        Job("", outputs=(path,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_s", -1),
        ("wall_s", 0),
        ("wall_s", math.inf),
        ("cpu_s", math.nan),
        ("memory_mb", -5),
        ("memory_mb", 64.5),
        ("num_processes", 0),
        ("num_descriptors", True),
        ("disk_mb", 10**9),
        ("stdout_bytes", -1),
        ("cpu_s", "5"),
    ],
)
def test_limits_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(JobError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"runtime": "pyhton"},
        {"network": "internet"},
        {"entry_point": "f()", "calls": (Call(),)},
        {"entry_point": "f", "runtime": "c"},
        {"calls": (Call(),)},
        {"runtime": "executable"},
        {"env": {"LD_PRELOAD": "x"}},
        {"env": {"A=B": "x"}},
        {"argv": ("a\0b",)},
        {"stdin": "text"},
        {"files": {"a": "text"}},
        {"files": {"a": bytes(70 << 20)}},
        {"files": {"a": bytes(3 << 20)}, "limits": Limits(disk_mb=2)},
        {"seed": 1.5},
        {"limits": {"cpu_s": 1}},
        {"argv": "ls"},
        {"argv": 5},
        {"outputs": "out.txt"},
        {"files": ["a"]},
        {"env": ["A=b"]},
        {"entry_point": 5},
        {"entry_point": "f", "calls": 5},
        {"tests": "assert f(1)"},
        {"suite": "test_a.py"},
        {"idempotency_key": 5},
        {"source": b"print(1)"},
        {"files": {"a": b"", "a/b": b""}},
        {"files": {"a/b/c": b"", "a/b": b""}},
        {"files": {f"f{n}": b"" for n in range(16)}, "limits": Limits(num_inodes=16)},
        {"files": {f"{n}/f": b"" for n in range(8)}, "limits": Limits(num_inodes=16)},
        {"files": {f"f{n}": b"x" for n in range(300)}, "limits": Limits(disk_mb=1)},
    ],
)
def test_bad_jobs_are_refused_before_anything_runs(options: Any) -> None:
    with pytest.raises(JobError):
        Job(**{"source": "print(1)", **options})


def test_jobs_just_within_what_fits_are_taken_and_run() -> None:
    tight = Limits(num_inodes=16, disk_mb=1)
    full = Job(
        "import os; print(len(os.listdir()))",
        files={f"f{n}": b"x" for n in range(11)},
        limits=tight,
    )
    pages = Job("print(1)", files={f"f{n}": b"x" for n in range(255)}, limits=Limits(disk_mb=1))
    with open_sandbox(minimum="plain") as sandbox:
        assert [r.verdict for r in sandbox.run_batch([full, pages])] == [BoxVerdict.OK] * 2


def test_unknown_runtime_suggests_the_right_one() -> None:
    with pytest.raises(JobError, match="Did you mean 'python'"):
        Job("", runtime="pythn")


def test_arguments_that_are_not_builtin_values_are_refused() -> None:
    class Odd:
        pass

    job = Job("def f(x): pass", entry_point="f", calls=(Call((Odd(),)),))
    with open_sandbox("plain") as sandbox, pytest.raises(JobError, match="builtin"):
        sandbox.run(job)


def test_a_result_is_never_a_number_or_a_truth() -> None:
    result = Result(BoxVerdict.INFRA)
    assert result.fault is Fault.INFRASTRUCTURE
    with pytest.raises(TypeError):
        float(result)
    with pytest.raises(TypeError):
        bool(result)


def test_levels_parse_by_name_and_number() -> None:
    assert Level.parse("namespaces") is Level.parse(3) is Level.NAMESPACES
    with pytest.raises(JobError, match="Did you mean 'cgroups'"):
        Level.parse("cgroup")


def test_results_with_huge_values_are_shown() -> None:
    result = Result(BoxVerdict.OK, calls=(CallResult("returned", 10**5000),))
    told = result.to_json()["calls"]
    assert "too large to show" in told[0]["value"]
