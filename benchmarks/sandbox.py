"""What isolation costs and keeps, each figure beside its target and what it is compared with.

    python benchmarks/sandbox.py [--jobs 400] [--soak] [--only NAME …]

All processes of this machine share its cores, so the ratios mean more than the milliseconds: the
things that are compared are measured in turns, a few at a time, and the medians are taken over all
turns. Results go to benchmarks/results/sandbox.json and docs/sandbox-figures.md; what a run leaves
out stays there from the run before. ``--soak`` takes the sizes of the soak tests for the random mix
and the flat run: most of an hour instead of a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import sandbox_behaviour as behaviour
import sandbox_measures as measures
from lock import quiet_machine

from educe.sandbox import Level

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "sandbox.json"
PAGE = HERE.parent / "docs" / "sandbox-figures.md"
MIX, FLAT, FLIPS = (500, 10_000), (5000, 100_000), 1000


@dataclass(frozen=True)
class Figure:
    """One line: what it is, its bound, and the value of the same run that it is divided by."""

    text: str
    bound: float
    is_at_most: bool = True
    unit: str = ""
    beside: str = ""
    beside_text: str = ""
    is_ratio: bool = False  # the bound is on the ratio, not on the value

    def judge(self, name: str, values: measures.Values) -> tuple[str, str, str, str] | None:
        """Return (value, bound, verdict, what it is compared with); None when not measured."""
        if name not in values or (self.is_ratio and self.beside not in values):
            return None
        value = values[name]
        other = values.get(self.beside, 0.0)
        ratio = value / other if other else 0.0
        judged = ratio if self.is_ratio else value
        met = judged <= self.bound if self.is_at_most else judged >= self.bound
        unit = "x" if self.is_ratio else f" {self.unit}" if self.unit else ""
        digits = 0 if not unit else 2
        bound = f"{'<=' if self.is_at_most else '>='} {self.bound:g}{unit}"
        beside = ""
        if other and not self.beside_text:
            beside = f"of {other:,.0f}"
        elif other:
            beside = f"{value:.2f} {self.unit} beside {other:.2f} {self.unit} of {self.beside_text}"
            beside += "" if self.is_ratio else f": {ratio:.2f}x"
        return f"{judged:.{digits}f}{unit}", bound, "met" if met else "MISSED", beside

    def line(self, name: str, values: measures.Values) -> str:
        """Return the printed line; a figure that could not be measured says so."""
        judged = self.judge(name, values)
        if judged is None:
            return f"{'skipped':>12}  {'':24}{self.text}"
        value, bound, verdict, beside = judged
        return f"{value:>12}  {bound:<14} {verdict:<6}  {self.text}" + (
            f"; {beside}" if beside else ""
        )


_FLOOR = {"beside": "floor_ms", "beside_text": "a plain Python fork + compile + exit"}
_KILL = {"beside": "kill_floor_ms", "beside_text": "a plain child, killed and waited for"}
FIGURES = {
    "cold_ms": Figure("isolated Python job, cold, median", 4.0, unit="ms", **_FLOOR),
    "cold_p99_ms": Figure("isolated Python job, cold, 99th percentile", 15.0, unit="ms", **_FLOOR),
    "armed_ms": Figure("isolated Python job, prepared box, median", 1.5, unit="ms", **_FLOOR),
    "armed_p99_ms": Figure("prepared box, 99th percentile", 5.0, unit="ms", **_FLOOR),
    "overhead": Figure("cold job against Python's floor", 2.0, unit="ms", is_ratio=True, **_FLOOR),
    "boxes_per_s": Figure(
        "jobs a second against `python -I -S` processes", 3.0, False, "/s", "bare_per_s",
        "`python -I -S`", True,
    ),
    "boxes_per_s_bwrap": Figure(
        "jobs a second against bubblewrap's", 5.0, False, "/s", "bwrap_per_s", "bubblewrap", True
    ),
    "case_cpu_ms": Figure(
        "one more test case, processor time", 1.2, True, "ms", "call_floor_ms",
        "a plain fork + call + exit",
    ),
    "kill_sleep_ms": Figure("dead after the deadline: a sleeper", 100.0, unit="ms", **_KILL),
    "kill_loop_ms": Figure("dead after the deadline: a busy loop", 100.0, unit="ms", **_KILL),
    "kill_bomb_ms": Figure("dead after the deadline: a fork bomb", 100.0, unit="ms", **_KILL),
    "kill_sleep_loaded_ms": Figure("the same, machine busy: a sleeper", 150.0, unit="ms", **_KILL),
    "kill_loop_loaded_ms": Figure("the same, machine busy: a loop", 150.0, unit="ms", **_KILL),
    "kill_bomb_loaded_ms": Figure("the same, machine busy: a bomb", 150.0, unit="ms", **_KILL),
    "user_cold_ms": Figure(
        "cold job of an ordinary user against root's", 1.4, True, "ms", "root_cold_ms", "root", True
    ),
    "sleepers_wrong": Figure("of 1,000 sleepers at once: complaints", 0.0),
    "rows_wrong_cgroups": Figure("hostile rows with another ending, level cgroups", 0.0),
    "rows_wrong_namespaces": Figure("hostile rows with another ending, level namespaces", 0.0),
    "rows_wrong_confined": Figure("hostile rows with another ending, level confined", 0.0),
    "mix_wrong": Figure("complaints in a random mix of hostile jobs", 0.0, beside="mix_jobs"),
    "flat_wrong": Figure("complaints of growth after many jobs", 0.0, beside="flat_jobs"),
    "cheats_paid": Figure("tamper programs rewarded", 0.0),
    "gold_failed": Figure("golden programs failed, 20 times each", 0.0),
    "flips": Figure("verdicts that flipped in 1,000 repeats beside a loading process", 0.0),
    "callers_wrong": Figure("of thread, loop, notebook, forked worker: other answers", 0.0),
    "bad_input_taken": Figure("bad inputs that were not refused", 0.0),
    "good_checks_behind_hung_s": Figure(
        "100 good checks behind W + 1 hung ones", 10.0, True, "s", "good_checks_s",
        "100 good checks alone",
    ),
}  # fmt: skip


def measure(given: argparse.Namespace) -> measures.Values:
    """Run the measurements that were asked for, saying which is on."""
    mix, flat = MIX[given.soak], FLAT[given.soak]
    steps: dict[str, Callable[[], measures.Values]] = {
        "latency": lambda: measures.latency_and_throughput(given.jobs),
        "cases": lambda: measures.case_cpu(200),
        "kill": measures.kill_delays,
        "user": lambda: measures.ordinary_user(given.jobs // 2),
        "sleepers": lambda: behaviour.sleepers(1000),
        "hung": behaviour.hung_checks,
        "callers": behaviour.callers,
        "bad-input": behaviour.bad_input,
        "integrity": behaviour.integrity,
        "rows": behaviour.rows,
        "flips": lambda: behaviour.flips(FLIPS),
        "mix": lambda: {**behaviour.mix(mix), "mix_jobs": float(mix)},
        "flat": lambda: {**behaviour.flat(flat), "flat_jobs": float(flat)},
    }
    unknown = set(given.only) - set(steps)
    if unknown:
        sys.exit(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(steps)}")
    values: measures.Values = {}
    for name, step in steps.items():
        if not given.only or name in given.only:
            begun = time.perf_counter()
            values |= step()
            print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    for copy, of in (("overhead", "cold_ms"), ("boxes_per_s_bwrap", "boxes_per_s")):
        if of in values:
            values[copy] = values[of]
    return values


def keep(values: measures.Values) -> dict[str, Any]:
    """Put the figures of a run over those of earlier ones, each with its day; return them all."""
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"figures": {}}
    today = date.today().isoformat()
    known["figures"] |= {name: {"value": value, "on": today} for name, value in values.items()}
    known["machine"] = machine_text()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return known


def machine_text() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, Linux {platform.release()}, Python {platform.python_version()}"


def page(known: dict[str, Any]) -> str:
    """Return the page with all figures."""
    values = {name: figure["value"] for name, figure in known["figures"].items()}
    level = f", level {Level(int(values['level'])).name.lower()}" if "level" in values else ""
    lines = [
        "# What isolation costs and keeps",
        "",
        "Written by `python benchmarks/sandbox.py` on an otherwise idle machine: "
        f"{known['machine']}{level}. What is compared was measured in turns in one run. The "
        "promises are explained in [design/0003](design/0003-sandbox.md).",
        "",
        "| what | value | bound | | beside | day |",
        "|---|---|---|---|---|---|",
    ]
    for name, figure in FIGURES.items():
        judged = figure.judge(name, values)
        if judged is None:
            lines.append(f"| {figure.text} | not measured | | | | |")
            continue
        value, bound, verdict, beside = judged
        day = known["figures"][name]["on"]
        lines.append(f"| {figure.text} | {value} | {bound} | {verdict} | {beside} | {day} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--soak", action="store_true", help="full sizes of the long runs")
    parser.add_argument("--only", nargs="+", default=[], help="measurements, e.g. latency kill")
    parser.add_argument("--cold-only", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.cold_only:
        with measures.cold_sandbox() as sandbox:
            measures.job_times(sandbox, 10, 0.0)
            print(median(measures.job_times(sandbox, given.cold_only, 0.0)))
        return 0
    with quiet_machine():
        values = measure(given)
    was_forced = os.environ.get("EDUCE_BENCH_ANYWAY") == "1"
    print(machine_text() + (", NOT on a quiet machine: not kept" if was_forced else ""))
    for name, figure in FIGURES.items():
        if not given.only or name in values:
            print(figure.line(name, values))
    if not was_forced:
        PAGE.write_text(page(keep(values)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
