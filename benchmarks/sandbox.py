"""What isolation costs, as ratios measured side by side in one run.

    python benchmarks/sandbox.py [--jobs 400] [--json FILE]

Each line says what was measured, its target and whether it was met. All processes of this machine
share its cores, so the ratios mean more than the milliseconds: the things that are compared are
measured in turns, a few at a time, and the medians are taken over all turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lock import quiet_machine

from educe.sandbox import BoxVerdict, Call, Job, Limits, Sandbox, open_sandbox
from educe.sandbox.contract import Level
from educe.sandbox.embedded import EmbeddedBackend
from educe.sandbox.launch import interpreter

SOURCE = "print(sum(range(10)))"
JOB = Job(SOURCE)
HERE = Path(__file__).resolve().parent
# Forks itself, compiles and runs the program in the child, waits: what Python alone costs.
_FLOOR = """
import gc, os, sys, time
source, count = sys.argv[1], int(sys.argv[2])
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
gc.freeze()
took = []
for _ in range(count):
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        exec(compile(source, "main.py", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    took.append(time.perf_counter() - begun)
os.write(2, repr(took).encode())
"""


def floor_times(count: int) -> list[float]:
    command = [interpreter(), "-I", "-S", "-c", _FLOOR, SOURCE, str(count)]
    told = subprocess.run(command, capture_output=True, check=True).stderr
    return [float(part) for part in told.decode().strip("[]").split(",")]


def job_times(sandbox: Sandbox, count: int, pause_s: float) -> list[float]:
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        result = sandbox.run(JOB)
        took.append(time.perf_counter() - begun)
        assert result.verdict is BoxVerdict.OK, result
        time.sleep(pause_s)  # the next box gets ready outside what is measured
    return took


def rate(run: Callable[[int], object], count: int, workers: int) -> float:
    """Return calls per second with some workers side by side."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, range(count)))
    return count / (time.perf_counter() - begun)


def bare_run(_: int) -> None:
    subprocess.run([interpreter(), "-I", "-S", "-c", SOURCE], capture_output=True, check=True)


def bubblewrap_run(_: int) -> None:
    shown = [
        part for path in ("/usr", "/lib", "/lib64", "/bin") for part in ("--ro-bind", path, path)
    ]
    prefix = str(Path(interpreter()).parent.parent)
    command = ["bwrap", "--unshare-all", *shown, "--ro-bind", prefix, prefix, "--tmpfs", "/tmp"]
    command += [interpreter(), "-I", "-S", "-c", SOURCE]
    subprocess.run(command, capture_output=True, check=True)


def kill_delays(sandbox: Sandbox) -> dict[str, float]:
    """Return seconds past the deadline until a job was known to be dead, the worst of three."""
    programs = {
        "sleep": "import time; time.sleep(60)",
        "fork bomb": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    }
    limits = Limits(cpu_s=60, wall_s=0.5, num_processes=64)
    delays = {}
    for name, source in programs.items():
        worst = 0.0
        for _ in range(3):
            begun = time.perf_counter()
            result = sandbox.run(Job(source, limits=limits))
            waited = result.times.queue_s + limits.wall_s
            worst = max(worst, time.perf_counter() - begun - waited)
        delays[name] = worst
    return delays


def case_cpu(sandbox: Sandbox, count: int) -> float:
    """Return processor seconds of one more test case, fork included."""

    def spent(calls: int) -> float:
        job = Job(
            "def f(x): return x + 1", entry_point="f", calls=tuple(Call((i,)) for i in range(calls))
        )
        return median(sandbox.run(job).times.cpu_s for _ in range(5))

    return (spent(count + 10) - spent(10)) / count


def as_user(count: int) -> float | None:
    """Return the median cold job of an ordinary user, None where that cannot be tried here."""
    helper = HERE.parent / "tests" / "sandbox" / "unprivileged.py"
    if os.geteuid() != 0 or not helper.exists():
        return None
    command = [sys.executable, str(helper), "12345", str(Path(__file__).resolve())]
    done = subprocess.run(
        [*command, "--cold-only", str(count)], capture_output=True, text=True, check=False
    )
    return float(done.stdout) if done.returncode == 0 else None


def cold_sandbox() -> Sandbox:
    return Sandbox(EmbeddedBackend(minimum=Level.NAMESPACES, num_parallel=1, num_spare=0))


def measure(count: int) -> dict[str, float]:
    found: dict[str, list[float]] = {
        name: [] for name in ("floor", "cold", "armed", "bare", "box", "bwrap")
    }
    turns, workers = 5, len(os.sched_getaffinity(0))
    has_bubblewrap = shutil.which("bwrap") is not None
    with cold_sandbox() as cold, open_sandbox(num_parallel=workers) as warm:
        for sandbox in (cold, warm):
            job_times(sandbox, 10, 0.01)
        for _ in range(turns):
            found["floor"] += floor_times(count // turns)
            found["cold"] += job_times(cold, count // turns, 0.0)
            found["armed"] += job_times(warm, count // turns, 0.006)
            found["bare"].append(rate(bare_run, count // turns, workers))
            begun = time.perf_counter()
            warm.run_batch([JOB] * count)
            found["box"].append(count / (time.perf_counter() - begun))
            if has_bubblewrap:
                found["bwrap"].append(rate(bubblewrap_run, count // turns, workers))
        delays = kill_delays(warm)
        values = {
            "level": float(warm.level),
            "floor_ms": median(found["floor"]) * 1e3,
            "cold_ms": median(found["cold"]) * 1e3,
            "cold_p99_ms": quantiles(found["cold"], n=100)[98] * 1e3,
            "armed_ms": median(found["armed"]) * 1e3,
            "armed_p99_ms": quantiles(found["armed"], n=100)[98] * 1e3,
            "overhead_ratio": median(found["cold"]) / median(found["floor"]),
            "boxes_per_s": median(found["box"]),
            "bare_per_s": median(found["bare"]),
            "throughput_ratio": median(found["box"]) / median(found["bare"]),
            "case_cpu_ms": case_cpu(warm, 200) * 1e3,
            "kill_sleep_ms": delays["sleep"] * 1e3,
            "kill_bomb_ms": delays["fork bomb"] * 1e3,
        }
    if has_bubblewrap:
        values["bwrap_ratio"] = median(found["box"]) / median(found["bwrap"])
    user = as_user(count // 2)
    if user is not None:
        values["user_ratio"] = user * 1e3 / values["cold_ms"]
    return values


# name: (what it is, limit, whether at most or at least)
TARGETS = {
    "cold_ms": ("isolated Python job, cold, median", 4.0, "<="),
    "armed_ms": ("isolated Python job, prepared box, median", 1.5, "<="),
    "overhead_ratio": ("cold job / plain Python fork + compile + exit", 2.0, "<="),
    "throughput_ratio": ("jobs per second / `python -I -S` processes per second", 3.0, ">="),
    "bwrap_ratio": ("jobs per second / bubblewrap's", 5.0, ">="),
    "case_cpu_ms": ("one more test case, processor time", 1.2, "<="),
    "kill_sleep_ms": ("dead after the deadline, a sleeper", 100.0, "<="),
    "kill_bomb_ms": ("dead after the deadline, a fork bomb", 100.0, "<="),
    "user_ratio": ("cold job of an ordinary user / root's", 1.4, "<="),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--json", type=Path, help="append the figures to this file")
    parser.add_argument("--cold-only", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.cold_only:
        with cold_sandbox() as sandbox:
            print(median(job_times(sandbox, given.cold_only, 0.0)))
        return 0
    with quiet_machine():
        values = measure(given.jobs)
    for name, (text, limit, how) in TARGETS.items():
        if name not in values:
            print(f"{'skipped':>10}          {text}")
            continue
        met = values[name] <= limit if how == "<=" else values[name] >= limit
        print(f"{values[name]:10.2f} {how} {limit:5.1f}  {'met   ' if met else 'MISSED'} {text}")
    if given.json:
        with given.json.open("a") as file:
            file.write(json.dumps(values) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
