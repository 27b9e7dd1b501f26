"""Compares ``educe plan`` with runs that were not used to fit it: peak memory and seconds a step.

    python benchmarks/plan_check.py --fit                        # constants of preflight/predict.py
    python benchmarks/plan_check.py [--steps 4] [--only NAME …] [--out FILE]

Each run of ``RUNS`` is probed (what its completions are like), planned with the probe, then run for
a few steps on the real 135M model. Memory is the proportional set size (PSS) of the trainer and all
its children, the highest of samples every quarter second; the first step warms up and is not
counted. The machine is measured anew for each run, just before it: rented machines change their
speed from hour to hour. About 8 minutes on two idle cores.

``--fit`` does the same with the runs of ``FITTED``, which are none of those, and prints what the
constants should be: the seconds that no measured part accounts for, as a part a step and a part a
completion, and the memory of a reward worker. Put them into predict.py, then check.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from lock import quiet_machine

from educe.observability.run_reader import RunReader

MEMORY_TOLERANCE, TIME_TOLERANCE = 0.15, 0.25
_SAMPLED_EVERY_S = 0.25


@dataclass(frozen=True)
class Run:
    """A recipe of one stage with its overrides."""

    name: str
    recipe: str
    stage: str
    overrides: tuple[str, ...]


_QUIET = ("checkpoint.every_steps=0", "checkpoint.every_minutes=0", "guards.action='alarm'")
RUNS = (
    Run(
        "rl, fp32, few long rows",
        "quickstart",
        "rl",
        (
            "model.compute_dtype='float32'", "engine.dtype='float32'", "rl.prompts=4",
            "rl.group_size=6", "engine.max_rows=24", "rl.max_completion_tokens=96",
            "optimizer.micro_batch_tokens=2048",
        ),
    ),
    Run("rl, bf16, ten domains with tools and programs", "quickstart", "rl", ()),
    Run("sft, bf16", "quickstart", "sft", ("sft.num_tasks=480",)),
)  # fmt: skip
# Two sizes, so that what is by the step and what is by the completion can be told apart.
FITTED = (
    Run("fit: rl, bf16, 6 x 8", "quickstart", "rl", ("rl.prompts=6", "engine.max_rows=48")),
    # Not fewer prompts: a batch of a model before its SFT then often has no signal, and no update.
    Run("fit: rl, bf16, 18 x 8", "quickstart", "rl", ("rl.prompts=18",)),
)
_WORKER_MODULE = "educe.rollout.score_worker"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", nargs="+", help="names of runs")
    parser.add_argument("--fit", action="store_true", help="find the constants")
    parser.add_argument("--recipe", default="", help="replaces the runs' recipe")
    parser.add_argument(
        "--set", dest="overrides", nargs="*", default=[], metavar="section.key=value"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with quiet_machine():
        return measure(given)


def measure(given: argparse.Namespace) -> int:
    runs = FITTED if given.fit else [r for r in RUNS if not given.only or r.name in given.only]
    runs = [
        replace(r, recipe=given.recipe or r.recipe, overrides=(*r.overrides, *given.overrides))
        for r in runs
    ]
    if not runs:
        sys.exit(f"no such run; known: {'; '.join(r.name for r in RUNS)}")
    with tempfile.TemporaryDirectory(prefix="educe-plan-check-") as scratch:
        rows = [check(run, given.steps, Path(scratch)) for run in runs]
    for row in rows:
        print(
            f"{row['run']}: memory {row['memory_gb']:.2f} GB, planned {row['planned_gb']:.2f} "
            f"({row['memory_error']:+.0%}); step {row['step_s']:.2f} s, planned "
            f"{row['planned_s']:.2f} ({row['time_error']:+.0%})"
        )
    if given.fit:
        print("\n".join(told_constants(rows)))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    is_good = all(
        abs(r["memory_error"]) <= MEMORY_TOLERANCE and abs(r["time_error"]) <= TIME_TOLERANCE
        for r in rows
    )
    return 0 if is_good or given.fit else 1


def told_constants(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of preflight/predict.py that the fitted runs ask for."""
    step_s, handling_s = fitted_handling(
        [(row["completions"], row["unexplained_s"]) for row in rows]
    )
    lines = ["", "for preflight/predict.py:", f"_HANDLING_S = {handling_s:.4f}"]
    lines.append(f"_STEP_S = {step_s:.3f}")
    workers = [row["worker_bytes"] for row in rows if row["worker_bytes"]]
    if workers:
        lines.append(f"_WORKER_BYTES = {statistics.mean(workers) / 2**20:.0f} * 1024**2")
    lines += ["", "seconds a step, measured and planned without handling:"]
    for row in rows:
        planned = sum(s for n, s in row["planned_parts"].items() if n != "handling")
        measured = ", ".join(f"{n} {s:.2f}" for n, s in row["measured_parts"].items())
        parts = ", ".join(f"{n} {s:.2f}" for n, s in row["planned_parts"].items())
        lines.append(f"  {row['run']}: {row['step_s']:.2f} ({measured}); {planned:.2f} ({parts})")
    return lines


def fitted_handling(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (seconds a step, seconds a completion) that come nearest to what is unexplained.

    Neither is negative: where one would be, the other alone explains what it can.

    Args:
        rows: completions of a step, and its seconds that no measured part accounts for.
    """
    counts, seconds = ([row[i] for row in rows] for i in (0, 1))
    centre, mean = statistics.mean(counts), statistics.mean(seconds)
    spread = sum((c - centre) ** 2 for c in counts)
    slope = sum((c - centre) * s for c, s in rows) / spread if spread else 0.0
    start = mean - slope * centre
    if slope < 0:
        return max(0.0, mean), 0.0
    if start < 0:
        return 0.0, max(0.0, sum(c * s for c, s in rows) / sum(c * c for c in counts))
    return start, slope


def check(run: Run, steps: int, scratch: Path) -> dict[str, Any]:
    """Probe, plan and run; return what was planned beside what was measured."""
    folder = scratch / run.name.replace(" ", "-").replace(",", "").replace(":", "")
    folder.mkdir()
    length = f"rl.steps={steps}" if run.stage == "rl" else f"sft.steps={2 * steps}"
    overrides = [
        *_QUIET, *run.overrides, f'stages=["{run.stage}"]', length, "rl.minutes=0", "sft.minutes=0",
        f"run.out='{folder}'", "run.name='run'",
    ]  # fmt: skip
    probe = folder / "probe.json"
    probe.write_text(
        _educe("probe", run.recipe, *overrides, "--json", "--tasks", "6", "--samples", "4"),
        encoding="utf-8",
    )
    planned = json.loads(
        _educe("plan", run.recipe, *overrides, "--json", "--refresh", "--probe", str(probe))
    )
    peak, worker_bytes = _run_and_weigh(run.recipe, overrides, folder / "log.txt")
    rows = [r for r in RunReader(folder / "run").metrics() if r.stage == run.stage]
    step_s = statistics.mean(r.wall_time_s for r in rows[1:])
    (stage,) = planned["stages"]
    planned_s, planned_gb = stage["step"]["seconds"], planned["memory"]["total"] / 2**30
    parts = stage["step"]["parts"]
    phases = sorted({k for r in rows[1:] for k in r.values if k.startswith("time/")})
    return {
        "run": run.name,
        "memory_gb": peak / 2**30,
        "planned_gb": planned_gb,
        "memory_error": planned_gb / (peak / 2**30) - 1.0,
        "step_s": step_s,
        "planned_s": planned_s,
        "time_error": planned_s / step_s - 1.0,
        "completions": stage["step"]["completions"],
        "unexplained_s": step_s - (planned_s - parts.get("handling", 0.0)),
        "worker_bytes": worker_bytes,
        "planned_parts": parts,
        "measured_parts": {
            k.removeprefix("time/").removesuffix("_s"): statistics.mean(
                r.values.get(k, 0.0) for r in rows[1:]
            )
            for k in phases
        },
        "planned": planned,
        "steps_s": [r.wall_time_s for r in rows],
        "times": [{k: v for k, v in r.values.items() if k.startswith("time/")} for r in rows],
        "tokens": [r.values.get("rl/tokens") for r in rows],
    }


def _educe(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "educe", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1) or not done.stdout:
        sys.exit(f"educe {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def _run_and_weigh(recipe: str, overrides: Sequence[str], log: Path) -> tuple[int, float]:
    """Train; return the highest PSS of the process and its children, and then the mean of a reward
    worker's, in bytes (0 without workers)."""
    command = [sys.executable, "-m", "educe", "train", recipe, *overrides, "--plain"]
    with log.open("w", encoding="utf-8") as stream:
        process = psutil.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        peak, worker = 0, 0.0
        while process.poll() is None:
            total, workers = _weight(process)
            if total > peak:
                peak = total
                worker = statistics.mean(workers) if workers else worker
            time.sleep(_SAMPLED_EVERY_S)
    if process.returncode:
        sys.exit(f"the run failed:\n{log.read_text(encoding='utf-8')[-4000:]}")
    return peak, worker


def _weight(process: psutil.Process) -> tuple[int, list[int]]:
    """Return the PSS of a process with its children, and of each reward worker."""
    total, workers = 0, []
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0, []
    for member in family:
        own = _proportional(member.pid)
        total += own
        if own and _is_worker(member):
            workers.append(own)
    return total, workers


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any(_WORKER_MODULE in word for word in process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return False


def _proportional(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:  # it ended meanwhile
        return 0
    (line,) = (part for part in text.splitlines() if part.startswith("Pss:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    raise SystemExit(main())
