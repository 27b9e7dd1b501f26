"""Many jobs: what must stay true over thousands of them. Sizes are the caller's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from host_state import look, wait_for_rest, what_changed
from hostile import ROWS
from tamper import GOLDEN, TAMPERS, TASK_INPUTS

from educe.sandbox import (
    BoxVerdict,
    Call,
    Case,
    FunctionGrade,
    Job,
    Level,
    Limits,
    Sandbox,
    grade_function,
    open_sandbox,
)
from educe.sandbox.graders import grade_calls

SCALE = float(os.environ.get("EDUCE_SOAK_SCALE", "1"))
CASES = [Case((x,), x * x + 1) for x in TASK_INPUTS]
# No verdict here may depend on how fast the machine is.
_STEADY_TAMPERS = ("always equal", "exit in function", "hard exit at import", "syntax error", "nan")
# name: how many repeats stand for one of these, which take a hundred times as long as a short job
_STEADY_ROWS = {
    "endless memory": 20, "stdout flood": 5, "busy loop": 20, "null pointer": 1, "exit text": 1,
    "exec": 1,
}  # fmt: skip


def size(full: int) -> int:
    """Return a soak test's size: the full one times ``EDUCE_SOAK_SCALE`` (default 1)."""
    return max(1, round(full * SCALE))


def random_mix(sandbox: Sandbox, count: int, *, seed: int = 7, batch: int = 200) -> list[str]:
    """Run hostile programs in random order; return what went wrong with them or the host."""
    draw = random.Random(seed)
    rows = [row for row in ROWS if sandbox.level in row.levels]
    sandbox.run_batch([Job("")] * 16)
    told = [wait_for_rest(sandbox)]
    before = look(sandbox)
    while count > 0:
        chosen = [draw.choice(rows) for _ in range(min(batch, count))]
        count -= len(chosen)
        results = sandbox.run_batch([row.job() for row in chosen])
        told += [row.complaint(result) for row, result in zip(chosen, results, strict=True)]
        after = sandbox.run(Job("print('fine')"))
        if after.verdict is not BoxVerdict.OK:
            told.append(f"the next job ended with {after.verdict}: {after.reason}")
    told.append(wait_for_rest(sandbox))
    return [complaint for complaint in told if complaint] + what_changed(before, look(sandbox))


def many_jobs(sandbox: Sandbox, count: int, *, batch: int = 500) -> list[str]:
    """Run short jobs; return what did not stay flat, after a start-up that is not counted."""
    jobs = [Job(f"print({n})") for n in range(batch)]
    told: list[str] = []

    def run(number: int) -> None:
        for at in range(0, number, batch):
            part = jobs[: min(batch, number - at)]
            for job, result in zip(part, sandbox.run_batch(part), strict=True):
                if result.stdout.strip() != job.source[6:-1].encode():
                    told.append(f"{result.verdict}: {result.reason}; {result.stdout!r}")

    run(max(1, min(2000, count // 10)))
    told.append(wait_for_rest(sandbox))
    before = look(sandbox)
    run(count)
    told.append(wait_for_rest(sandbox))
    return [complaint for complaint in told if complaint] + what_changed(before, look(sandbox))


def sleepers(count: int, seconds: float) -> list[str]:
    """Let jobs sleep, all at once; return what went wrong."""
    limits = Limits(cpu_s=5, wall_s=seconds + 600, memory_mb=64, disk_mb=1, num_inodes=16)
    job = Job(f"import time; time.sleep({seconds}); print('woke')", limits=limits)
    with open_sandbox(minimum=Level.NAMESPACES, num_parallel=count) as sandbox:
        told = [
            f"{result.verdict}: {result.reason}"
            for result in sandbox.run_batch([job] * count)
            if result.verdict is not BoxVerdict.OK or result.stdout != b"woke\n"
        ]
        peak = sandbox.stats()["peak_rss_mb"]
        if peak >= 200:
            told.append(f"the supervisor needed {peak:.0f} MiB")
        told.append(wait_for_rest(sandbox, 120))
    return [complaint for complaint in told if complaint]


def verdict_flips(sandbox: Sandbox, repeats: int) -> list[str]:
    """Judge the same programs again and again; return every verdict that was not the usual one."""
    told = []
    for name, source in {**GOLDEN, **{n: TAMPERS[n] for n in _STEADY_TAMPERS}}.items():
        calls = tuple(Call(case.args) for case in CASES)
        job = Job(source, entry_point="f", calls=calls, limits=Limits(case_wall_s=5.0))
        grades = [grade_calls(r, CASES) for r in sandbox.run_batch([job] * repeats)]
        told += _minorities(name, Counter(_shown(grade) for grade in grades))
    by_name = {row.name: row for row in ROWS}
    for name, share in _STEADY_ROWS.items():
        results = sandbox.run_batch([by_name[name].job()] * max(2, repeats // share))
        told += _minorities(name, Counter(str(result.verdict) for result in results))
    return told


def _shown(grade: FunctionGrade) -> str:
    return f"{grade.verdict} {[case.outcome for case in grade.cases]} {grade.score().value}"


def _minorities(name: str, seen: Counter[str]) -> list[str]:
    usual, _ = seen.most_common(1)[0]
    return [f"{name}: {how} {n} times, usually {usual}" for how, n in seen.items() if how != usual]


def golden_failures(sandbox: Sandbox, times: int) -> list[str]:
    """Judge every golden program a number of times; return those that ever failed."""
    return [
        f"{name}: {grade}"
        for name, source in GOLDEN.items()
        for grade in (grade_function(sandbox, source, "f", CASES) for _ in range(times))
        if not grade.all_right
    ]


@contextmanager
def loaded_machine() -> Iterator[None]:
    """Keep every core busy with something else."""
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
