"""What ``benchmarks/sandbox.py`` times, each beside what it is compared with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "sandbox"))

import soak

from educe.sandbox import BoxVerdict, Call, Job, Limits, Sandbox, open_sandbox
from educe.sandbox.contract import Level
from educe.sandbox.embedded import EmbeddedBackend
from educe.sandbox.launch import interpreter

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
Values = dict[str, float]
SOURCE = "print(sum(range(10)))"
JOB = Job(SOURCE)
BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
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
# The same without a program: what a process for one function call costs Python.
_CALL_FLOOR = """
import gc, os, resource, sys
gc.freeze()
def used():
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in both)
begun = used()
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        (lambda x: x + 1)(1)
        os._exit(0)
    os.waitpid(child, 0)
print((used() - begun) / int(sys.argv[1]))
"""


def cold_sandbox() -> Sandbox:
    """A sandbox that prepares a box only when a job asks for one."""
    return Sandbox(EmbeddedBackend(minimum=Level.NAMESPACES, num_parallel=1, num_spare=0))


def job_times(sandbox: Sandbox, count: int, pause_s: float) -> list[float]:
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        result = sandbox.run(JOB)
        took.append(time.perf_counter() - begun)
        assert result.verdict is BoxVerdict.OK, result
        time.sleep(pause_s)  # the next box gets ready outside what is measured
    return took


def _bare(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [interpreter(), "-I", "-S", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True)


def _floor_times(count: int) -> list[float]:
    told = _bare(_FLOOR, SOURCE, str(count)).stderr
    return [float(part) for part in told.strip("[]").split(",")]


def _rate(run: Callable[[int], object], count: int, workers: int) -> float:
    """Return calls per second with some workers side by side."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, range(count)))
    return count / (time.perf_counter() - begun)


def _bubblewrap_run(_: int) -> None:
    shown = [
        part for path in ("/usr", "/lib", "/lib64", "/bin") for part in ("--ro-bind", path, path)
    ]
    prefix = str(Path(interpreter()).parent.parent)
    command = ["bwrap", "--unshare-all", *shown, "--ro-bind", prefix, prefix, "--tmpfs", "/tmp"]
    command += [interpreter(), "-I", "-S", "-c", SOURCE]
    subprocess.run(command, capture_output=True, check=True)


def latency_and_throughput(count: int) -> Values:
    """Measure the compared things in turns, and take medians over all turns."""
    names = ("floor", "cold", "armed", "bare", "box", "bwrap")
    found: dict[str, list[float]] = {name: [] for name in names}
    turns, workers = 5, len(os.sched_getaffinity(0))
    share = max(1, count // turns)
    has_bubblewrap = shutil.which("bwrap") is not None
    with cold_sandbox() as cold, open_sandbox(num_parallel=workers) as warm:
        for sandbox in (cold, warm):
            job_times(sandbox, 10, 0.01)
        for _ in range(turns):
            found["floor"] += _floor_times(share)
            found["cold"] += job_times(cold, share, 0.0)
            found["armed"] += job_times(warm, share, 0.006)
            found["bare"].append(_rate(lambda _: _bare(SOURCE), share, workers))
            begun = time.perf_counter()
            warm.run_batch([JOB] * count)
            found["box"].append(count / (time.perf_counter() - begun))
            if has_bubblewrap:
                found["bwrap"].append(_rate(_bubblewrap_run, share, workers))
        level = float(warm.level)
    values = {
        "level": level,
        "floor_ms": median(found["floor"]) * 1e3,
        "boxes_per_s": median(found["box"]),
        "bare_per_s": median(found["bare"]),
    }
    for name in ("cold", "armed"):
        values[f"{name}_ms"] = median(found[name]) * 1e3
        values[f"{name}_p99_ms"] = quantiles(found[name], n=100)[98] * 1e3
    if has_bubblewrap:
        values["bwrap_per_s"] = median(found["bwrap"])
    return values


def case_cpu(count: int) -> Values:
    """Measure the processor time of one more test case, its process included."""

    def spent(sandbox: Sandbox, calls: int) -> float:
        made = tuple(Call((i,)) for i in range(calls))
        job = Job("def f(x): return x + 1", entry_point="f", calls=made, limits=Limits(cpu_s=60))
        return median(sandbox.run(job).times.cpu_s for _ in range(5))

    with open_sandbox() as sandbox:
        cost = (spent(sandbox, count + 10) - spent(sandbox, 10)) / count
    return {
        "case_cpu_ms": cost * 1e3,
        "call_floor_ms": float(_bare(_CALL_FLOOR, "200").stdout) * 1e3,
    }


def kill_delays(repeats: int = 8) -> Values:
    """Measure the worst delay from a deadline to the answer, quiet and on a machine kept busy."""
    values = {"kill_floor_ms": _plain_kill_delay(repeats)}
    with open_sandbox() as sandbox:
        values |= {f"kill_{name}_ms": worst for name, worst in _worst(sandbox, repeats).items()}
        with soak.loaded_machine():
            loaded = _worst(sandbox, repeats)
    return values | {f"kill_{name}_loaded_ms": worst for name, worst in loaded.items()}


def _worst(sandbox: Sandbox, repeats: int) -> dict[str, float]:
    programs = {
        "sleep": "import time; time.sleep(60)",
        "loop": "while True: pass",
        "bomb": BOMB,
    }
    limits = Limits(cpu_s=60, wall_s=0.5, num_processes=64)
    worst = {}
    for name, source in programs.items():
        delays = []
        for _ in range(repeats):
            begun = time.perf_counter()
            result = sandbox.run(Job(source, limits=limits))
            # A job that the machine kept waiting has another go, with more time.
            waited = result.times.queue_s + result.times.limit_s
            delays.append(time.perf_counter() - begun - waited)
        worst[name] = max(delays) * 1e3
    return worst


def _plain_kill_delay(repeats: int) -> float:
    """The same for a plain child process: a time-out, a signal and a wait."""
    delays = []
    for _ in range(repeats):
        process = subprocess.Popen(["sleep", "60"])
        begun = time.perf_counter()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        delays.append(time.perf_counter() - begun - 0.5)
    return max(delays) * 1e3


def ordinary_user(count: int) -> Values:
    """Measure a cold job of an ordinary user, between those of root; nothing where that fails."""
    program = str(HERE / "sandbox.py")
    helper = str(TESTS / "sandbox" / "unprivileged.py")
    if os.geteuid() != 0:
        return {}

    def run(*prefix: str) -> float:
        command = [sys.executable, *prefix, program, "--cold-only", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return float(done.stdout) if done.returncode == 0 else float("nan")

    found: dict[str, list[float]] = {"root": [run()], "user": []}
    for _ in range(2):  # in turns: the machine is not the same all the time
        found["user"].append(run(helper, "12345"))
        found["root"].append(run())
    if any(one != one for one in found["user"]):
        return {}
    return {
        "user_cold_ms": median(found["user"]) * 1e3,
        "root_cold_ms": median(found["root"]) * 1e3,
    }
