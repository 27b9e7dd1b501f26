"""Compares ``educe plan`` with runs that were not used to fit it: peak memory and seconds a step.

    python benchmarks/plan_check.py [--steps 4] [--only NAME …] [--out FILE]

Each run of ``RUNS`` is probed (what its completions are like), planned with the probe, then run for
a few steps on the real 135M model. Memory is the proportional set size (PSS) of the trainer and all
its children, the highest of samples every quarter second; the first step warms up and is not
counted. The fit used ``FITTED`` alone (``--fit`` runs it, to see the parts). About 8 minutes on two
idle cores, most of it the runs themselves; a first call measures the machine as well (a minute for
each pair of types).
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
from dataclasses import dataclass
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
FITTED = Run("fit: rl, bf16, 6 x 8", "quickstart", "rl", ("rl.prompts=6", "engine.max_rows=48"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", nargs="+", help="names of runs")
    parser.add_argument("--fit", action="store_true", help="the run that constants were fitted on")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    runs = (FITTED,) if given.fit else [r for r in RUNS if not given.only or r.name in given.only]
    with quiet_machine(), tempfile.TemporaryDirectory(prefix="educe-plan-check-") as scratch:
        rows = [check(run, given.steps, Path(scratch)) for run in runs]
    for row in rows:
        print(
            f"{row['run']}: memory {row['memory_gb']:.2f} GB, planned {row['planned_gb']:.2f} "
            f"({row['memory_error']:+.0%}); step {row['step_s']:.2f} s, planned "
            f"{row['planned_s']:.2f} ({row['time_error']:+.0%})"
        )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    is_good = all(
        abs(r["memory_error"]) <= MEMORY_TOLERANCE and abs(r["time_error"]) <= TIME_TOLERANCE
        for r in rows
    )
    return 0 if is_good else 1


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
    planned = json.loads(_educe("plan", run.recipe, *overrides, "--json", "--probe", str(probe)))
    peak = _run_and_weigh(run.recipe, overrides, folder / "log.txt")
    rows = [r for r in RunReader(folder / "run").metrics() if r.stage == run.stage]
    step_s = statistics.mean(r.wall_time_s for r in rows[1:])
    (stage,) = planned["stages"]
    planned_s, planned_gb = stage["step"]["seconds"], planned["memory"]["total"] / 2**30
    return {
        "run": run.name,
        "memory_gb": peak / 2**30,
        "planned_gb": planned_gb,
        "memory_error": planned_gb / (peak / 2**30) - 1.0,
        "step_s": step_s,
        "planned_s": planned_s,
        "time_error": planned_s / step_s - 1.0,
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


def _run_and_weigh(recipe: str, overrides: Sequence[str], log: Path) -> int:
    """Train; return the highest PSS of the process and its children, in bytes."""
    command = [sys.executable, "-m", "educe", "train", recipe, *overrides, "--plain"]
    with log.open("w", encoding="utf-8") as stream:
        process = psutil.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _weight(process))
            time.sleep(_SAMPLED_EVERY_S)
    if process.returncode:
        sys.exit(f"the run failed:\n{log.read_text(encoding='utf-8')[-4000:]}")
    return peak


def _weight(process: psutil.Process) -> int:
    total = 0
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    for member in family:
        total += _proportional(member.pid)
    return total


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
