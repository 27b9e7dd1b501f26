"""What ``benchmarks/sandbox.py`` counts: what must not happen, over many programs of each kind."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "sandbox"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "rollout"))

import soak
from hostile import ROWS
from tamper import TAMPERS, TASK_INPUTS

from educe.sandbox import Case, Job, JobError, Limits, Sandbox, grade_function, open_sandbox
from educe.sandbox.contract import Level

Values = dict[str, float]
_CASES = [Case((x,), x * x + 1) for x in TASK_INPUTS]
# What must be refused before anything is written: keyword arguments of a job.
BAD_JOBS: dict[str, Callable[[], Job]] = {
    "a path that leaves the job": lambda: Job("", files={"../x": b""}),
    "an absolute path": lambda: Job("", files={"/etc/x": b""}),
    "a path with a NUL byte": lambda: Job("", files={"a\0b": b""}),
    "an output above the job": lambda: Job("", outputs=("a/../../x",)),
    "a file of 65 MiB": lambda: Job("", files={"big": bytes(65 << 20)}),
    "a file larger than the disk": lambda: Job(
        "", files={"big": bytes(3 << 20)}, limits=Limits(disk_mb=2)
    ),
    "an unknown runtime": lambda: Job("", runtime="cobol"),
    "an unknown network": lambda: Job("", network="all"),  # type: ignore[arg-type]
    "a negative limit": lambda: Job("", limits=Limits(cpu_s=-1)),
    "an endless limit": lambda: Job("", limits=Limits(wall_s=float("inf"))),
    "a linker variable": lambda: Job("", env={"LD_PRELOAD": "x"}),
    "a program without a name": lambda: Job("", runtime="executable"),
}


def _counted(found: dict[str, list[str]]) -> Values:
    """Print the first complaints of each kind and return how many there are."""
    for name, told in found.items():
        for complaint in told[:5]:
            print(f"  {name}: {complaint}", file=sys.stderr)
    return {name: float(len(told)) for name, told in found.items()}


def rows() -> Values:
    """Run every hostile row at every level of this host, through one pool each."""
    found: dict[str, list[str]] = {}
    for level in (Level.CGROUPS, Level.NAMESPACES, Level.CONFINED):
        try:
            # Without namespaces all jobs count against one user's limit of processes.
            sandbox = open_sandbox(level, num_parallel=1 if level is Level.CONFINED else 4)
        except Exception as error:
            print(f"  level {level.name.lower()} is not offered here: {error}", file=sys.stderr)
            continue
        with sandbox:
            chosen = [row for row in ROWS if level in row.levels]
            results = sandbox.run_batch([row.job() for row in chosen])
            told = [row.complaint(r) for row, r in zip(chosen, results, strict=True)]
            found[f"rows_wrong_{level.name.lower()}"] = [one for one in told if one]
    return _counted(found)


def integrity() -> Values:
    """Grade every tamper program once and every golden one twenty times."""
    limits = Limits(cpu_s=2, wall_s=20, case_wall_s=1)
    with open_sandbox(num_parallel=4) as sandbox:
        paid = [
            name
            for name, source in TAMPERS.items()
            if grade_function(sandbox, source, "f", _CASES, limits=limits).score().value != 0.0
        ]
        return _counted({"cheats_paid": paid, "gold_failed": soak.golden_failures(sandbox, 20)})


def flips(repeats: int) -> Values:
    """Judge the same programs again and again beside processes that keep every core busy."""
    with open_sandbox(num_parallel=4) as sandbox, soak.loaded_machine():
        return _counted({"flips": soak.verdict_flips(sandbox, repeats)})


def mix(count: int) -> Values:
    """Run hostile programs in random order through one pool."""
    with open_sandbox(num_parallel=4) as sandbox:
        return _counted({"mix_wrong": soak.random_mix(sandbox, count)})


def flat(count: int) -> Values:
    """Run many short jobs and look at what grew."""
    with open_sandbox(num_parallel=4) as sandbox:
        return _counted({"flat_wrong": soak.many_jobs(sandbox, count)})


def sleepers(count: int) -> Values:
    """Let many jobs sleep at once; count what went wrong."""
    begun = time.perf_counter()
    counted = _counted({"sleepers_wrong": soak.sleepers(count, 3.0)})
    return counted | {"sleepers_s": time.perf_counter() - begun}


def callers() -> Values:
    """Ask one question from a thread, an asyncio loop, a notebook's cell and a forked worker."""
    job = Job("print(6 * 7)")
    with open_sandbox(num_parallel=2) as sandbox:
        right = sandbox.run(job).stdout
        answers = {
            "a thread": _from_a_thread(sandbox, job),
            "an asyncio loop": asyncio.run(_from_a_loop(sandbox, job)),
            "a notebook's cell": asyncio.run(_from_a_cell(sandbox, job)),
            "a forked worker": _from_a_fork(sandbox, job),
        }
        wrong = [f"{who} got {answer!r}" for who, answer in answers.items() if answer != right]
    return _counted({"callers_wrong": wrong + ([] if right == b"42\n" else [repr(right)])})


def _from_a_thread(sandbox: Sandbox, job: Job) -> bytes:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(sandbox.run(job).stdout))
    thread.start()
    thread.join()
    return found[0]


async def _from_a_loop(sandbox: Sandbox, job: Job) -> bytes:
    return (await sandbox.run_async(job)).stdout


async def _from_a_cell(sandbox: Sandbox, job: Job) -> bytes:
    """A notebook runs plain, blocking calls inside a loop that is already running."""
    return sandbox.run(job).stdout


def _from_a_fork(sandbox: Sandbox, job: Job) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, sandbox.run(job).stdout)
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    answer = os.read(reader, 100)
    os.close(reader)
    return answer


def bad_input() -> Values:
    """Count what was not refused when it was made."""
    accepted = []
    for name, make in BAD_JOBS.items():
        try:
            make()
        except JobError:
            continue
        accepted.append(name)
    return _counted({"bad_input_taken": accepted})


def hung_checks() -> Values:
    """Time 100 good checks behind W + 1 that never end, on W workers with a limit of a second."""
    from hostile_domains import task_that

    from educe.config.settings import DomainSettings
    from educe.rollout.scoring import ScoringPool

    domains = {"hostile": DomainSettings(function="hostile_domains:make")}
    workers, took = 2, []
    for hung in (0, workers + 1):
        with ScoringPool(domains, num_workers=workers, timeout_s=1.0) as pool:
            pool.submit_score("first", task_that("judge"), None, ())
            while not pool.poll(1.0):
                pass
            begun = time.perf_counter()
            for index in range(hung):
                pool.submit_score(("hung", index), task_that("hold the interpreter"), None, ())
            for index in range(100):
                pool.submit_score(index, task_that("judge", index), None, ())
            while pool.num_pending:
                pool.poll(1.0)
            took.append(time.perf_counter() - begun)
    return {"good_checks_s": took[0], "good_checks_behind_hung_s": took[1]}
