"""A resumable queue of arms: a process an arm, a core a worker, a JSON line a finished arm.

A benchmark names its arms in phases and gives the function that does one. The command starts itself
again with ``--arm NAME`` for each of them, so that an arm has a process, one thread and, with
several workers, a core of its own. OUT/results.jsonl gets a line when an arm is done; the same
command again does only what has no line yet. A line torn by a crash is dropped, its arm done again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lock import quiet_machine

Row = dict[str, Any]
Work = Callable[["Arm"], Row]
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm; ``options`` are for the function that does it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


class Results:
    """The finished arms' lines, in the order in which they finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = json.loads(line)
                self.rows[row["arm"]] = row
            except (ValueError, KeyError, TypeError) as error:
                sys.exit(f"{path}:{number}: not an arm's line ({error}); delete it to do it again")

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def add(self, row: Row) -> None:
        """Append a line and see it onto the disk."""
        self.rows[row["arm"]] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def add_queue_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Add what every queue of arms understands."""
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of runs and results")
    parser.add_argument("--workers", type=int, default=1, help="arms at once, each on its own core")
    parser.add_argument("--report-only", action="store_true", help="report what is done; run none")
    parser.add_argument("--arm", default="", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Add what studies of one stage over the arms' SFT model have in common."""
    recipe = Path(__file__).with_name("algorithm_arms.toml")
    parser.add_argument("--recipe", default=str(recipe))
    parser.add_argument("--start", default="", help="folder of an SFT model; empty trains one")
    parser.add_argument("--tasks", type=int, default=40, help="held-out tasks a domain")
    parser.add_argument("--docs", type=Path, default=Path("docs/algorithms.md"))
    parser.add_argument(
        "--set", dest="overrides", nargs="*", default=[], metavar="section.key=value"
    )


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse, and remember the arguments for the children."""
    given = parser.parse_args(arguments)
    given.again = list(sys.argv[1:] if arguments is None else arguments)
    return given


def alone(given: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a queue as the only benchmark; a child's lock is its parent's, and a report computes
    nothing."""
    if given.arm or given.report_only:
        return run(given)
    with quiet_machine(is_timing=False):
        return run(given)


def run_arms(
    given: argparse.Namespace, phases: Sequence[Sequence[Arm]], work: Work, script: str
) -> Results:
    """Do all arms that have no line yet, phase after phase; in a child, its one arm.

    Args:
        script: the benchmark's file, started again for each arm with this process's arguments.

    Exits with a message when arms failed, after all the others of their phase are done.
    """
    if given.arm:
        arm = next(a for phase in phases for a in phase if a.name == given.arm)
        _be_alone_on(given.core)
        _write_whole(_line_of(given.out, arm.name), {"arm": arm.name, **work(arm)})
        sys.exit(0)
    results = Results(given.out / "results.jsonl")
    if given.report_only:
        return results
    names = [a.name for phase in phases for a in phase]
    cores = sorted(os.sched_getaffinity(0))
    for phase in phases:
        left = [arm for arm in phase if arm.name not in results]
        queue = Queue(results, given.out, script, given.again, max(1, given.workers), cores)
        failed = queue.run(left, len(names))
        if failed:
            sys.exit(
                f"failed: {', '.join(failed)}; see {given.out}/logs. The same command does only "
                "what is missing"
            )
    return results


@dataclass(slots=True)
class Queue:
    """Children at work."""

    results: Results
    out: Path
    script: str
    arguments: Sequence[str]
    workers: int
    cores: Sequence[int]
    _running: dict[int, tuple[Arm, subprocess.Popen[bytes], float]] = field(default_factory=dict)

    def run(self, arms: Sequence[Arm], total: int) -> list[str]:
        """Do the arms in order, at most ``workers`` at once; return the names of the failed.

        An arm never outlives its queue: another one would write to the same folder.
        """
        waiting, failed = list(arms), []
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            while waiting or self._running:
                for place in range(self.workers):
                    if waiting and place not in self._running:
                        arm = waiting.pop(0)
                        self._running[place] = (arm, self._start(arm, place), time.monotonic())
                failed += self._collect(total)
                time.sleep(_POLL_S)
        finally:
            for _, process, _ in self._running.values():
                process.terminate()
            for _, process, _ in self._running.values():
                process.wait()
            signal.signal(signal.SIGTERM, before)
        return failed

    def _start(self, arm: Arm, place: int) -> subprocess.Popen[bytes]:
        core = self.cores[place % len(self.cores)] if self.workers > 1 else -1
        log = self.out / "logs" / f"{arm.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        one_thread = {f"{n}_NUM_THREADS": "1" for n in ("OMP", "MKL", "OPENBLAS")}
        child = ["--arm", arm.name, "--core", str(core)]
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, self.script, *self.arguments, *child],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **one_thread},
            )

    def _collect(self, total: int) -> list[str]:
        """Take the results of children that ended; return the names of those that failed."""
        failed = []
        for place, (arm, process, begin) in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[place]
            line = _line_of(self.out, arm.name)
            minutes = (time.monotonic() - begin) / 60
            if process.returncode == 0 and line.exists():
                self.results.add(json.loads(line.read_text(encoding="utf-8")))
                line.unlink()
                print(
                    f"[{len(self.results.rows)}/{total}] {arm.name}: {minutes:.1f} min", flush=True
                )
            else:
                failed.append(arm.name)
                print(f"{arm.name}: exit code {process.returncode}", flush=True)
        return failed


def _be_alone_on(core: int) -> None:
    if core >= 0:
        os.sched_setaffinity(0, {core})


def _line_of(out: Path, name: str) -> Path:
    return out / "arms" / f"{name}.json"


def _write_whole(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(row), encoding="utf-8")
    beside.replace(path)
