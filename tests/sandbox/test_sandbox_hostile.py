# ruff: noqa: E501
"""Every hostile row, one after another through the same pool, at each level of this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_state import listener, wait_for_rest
from hostile import FAST, ROWS, Row

from educe.sandbox import BoxVerdict, Job, Level, Result, Sandbox, SandboxError, open_sandbox

HERE = Path(__file__).parent
# The rows of the normal tier at the lower levels: one of each kind, none that waits for long.
QUICK = {
    "fork bomb", "endless memory", "stdout flood", "200 kB of output", "busy loop", "null pointer",
    "environment", "files of the host", "network", "kernel doors", "the i386 table", "raises its limits",
    "a child that holds the pipe", "writes to programs", "threads", "its own file", "kill itself", "exec",
    "attributes of a file outside",
}  # fmt: skip


def run_rows(level: str, rows: list[Row]) -> dict[str, tuple[Row, Result]]:
    os.environ["EDUCE_TEST_SECRET"] = "EDUCE_TEST_SECRET"
    try:
        sandbox = open_sandbox(level, num_parallel=4)
    except SandboxError as error:
        pytest.skip(str(error))
    with listener(), sandbox:
        needle = "secret = 'NEEDLE' + '-IN-AN-EARLIER-JOB'\nprint(secret * 3)"
        sandbox.run(Job(needle))
        rows = [row for row in rows if sandbox.level in row.levels]
        results = sandbox.run_batch([row.job() for row in rows])
        assert sandbox.run(Job("print('fine')")).verdict is BoxVerdict.OK
        check_nothing_is_left(sandbox)
    return {row.name: (row, result) for row, result in zip(rows, results, strict=True)}


def check_nothing_is_left(sandbox: Sandbox) -> None:
    """Fail when a process of a finished job is still alive, or the supervisor holds on to things."""
    complaint = wait_for_rest(sandbox)
    assert not complaint, complaint


@pytest.fixture(scope="module")
def best() -> Iterator[dict[str, tuple[Row, Result]]]:
    yield run_rows("cgroups" if os.geteuid() == 0 else "namespaces", ROWS)


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_hostile_row(best: dict[str, tuple[Row, Result]], name: str) -> None:
    if name not in best:
        pytest.skip("nothing is promised at this level")
    row, result = best[name]
    assert not row.complaint(result), row.complaint(result)


@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_quick_rows_at_lower_levels(level: str) -> None:
    outcome = run_rows(level, [row for row in ROWS if row.name in QUICK])
    complaints = [row.complaint(result) for row, result in outcome.values()]
    assert not [complaint for complaint in complaints if complaint]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_all_rows_at_lower_levels(level: str) -> None:
    complaints = [row.complaint(result) for row, result in run_rows(level, ROWS).values()]
    assert not [complaint for complaint in complaints if complaint]


def _as_user(program: Path, *arguments: str) -> str:
    command = [sys.executable, str(program), *arguments]
    if os.geteuid() == 0:
        command = [sys.executable, str(HERE / "unprivileged.py"), "12345", str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if "no sandbox of level" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_quick_rows_as_an_ordinary_user(level: str) -> None:
    told = json.loads(_as_user(HERE / "run_hostile.py", level, ",".join(sorted(QUICK))))
    assert told["uid"] != 0
    assert told["complaints"] == []


@pytest.mark.slow
@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_all_rows_as_an_ordinary_user(level: str) -> None:
    told = json.loads(_as_user(HERE / "run_hostile.py", level))
    assert told["uid"] != 0
    assert told["complaints"] == []


@pytest.mark.parametrize("level", ["cgroups", "namespaces", "confined"])
def test_jobs_are_killed_at_their_deadline(level: str) -> None:
    """No assertion on speed: the job must be dead, and soon enough not to be a hang."""
    bomb = next(row for row in ROWS if row.name == "fork bomb")
    try:
        sandbox = open_sandbox(level)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        result = sandbox.run(Job(bomb.source, limits=FAST))
        assert result.verdict is not BoxVerdict.OK
        check_nothing_is_left(sandbox)


def test_levels_are_stamped_on_results(each_level: Sandbox) -> None:
    assert each_level.run(Job("print(1)")).level is each_level.level
    assert each_level.level in Level
