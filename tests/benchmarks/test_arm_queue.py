"""The queue of arms: it resumes, drops a torn line, keeps arms apart, and says what failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arm_queue import Results

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

SCRIPT = f"""
import argparse, os, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from pathlib import Path
from arm_queue import Arm, add_queue_options, parsed, run_arms

def work(arm):
    with (Path(given.out) / "done").open("a") as file:
        file.write(arm.name + "\\n")
    if arm.name == given.slow:
        (Path(given.out) / "slow").write_text(str(os.getpid()))
        time.sleep(600)
    if arm.name == given.bad:
        raise RuntimeError("as asked")
    return {{
        "seed": arm.options.get("seed"),
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": os.environ["OMP_NUM_THREADS"],
    }}

parser = argparse.ArgumentParser()
parser.add_argument("--bad", default="")
parser.add_argument("--slow", default="")
add_queue_options(parser, "unused")
given = parsed(parser, None)
arms = [Arm(f"a-{{seed}}", {{"seed": seed}}) for seed in range(3)]
results = run_arms(given, [[Arm("first")], arms], work, __file__)
print("finished", len(results.rows))
"""


@pytest.fixture
def queue(tmp_path):
    script = tmp_path / "bench.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"

    def run(*options):
        command = [sys.executable, str(script), "--out", str(out), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    run.out, run.lines = out, lambda: (out / "results.jsonl").read_text().splitlines()
    run.done = lambda: (out / "done").read_text().split()
    return run


def test_every_arm_once_in_phases_each_with_its_options(queue):
    told = queue()
    assert told.returncode == 0 and "finished 4" in told.stdout, told.stderr
    rows = [json.loads(line) for line in queue.lines()]
    assert [r["arm"] for r in rows] == queue.done() == ["first", "a-0", "a-1", "a-2"]
    assert [r["seed"] for r in rows] == [None, 0, 1, 2]
    assert {r["threads"] for r in rows} == {"1"}
    assert all(len(r["cores"]) == len(os.sched_getaffinity(0)) for r in rows)
    assert "finished 4" in queue().stdout
    assert len(queue.done()) == 4, "nothing is done twice"


def test_a_torn_line_is_dropped_and_its_arm_done_again(queue):
    queue()
    path = queue.out / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    told = queue()
    assert "finished 4" in told.stdout
    assert queue.done() == ["first", "a-0", "a-1", "a-2", "a-2"]
    assert {json.loads(line)["arm"] for line in queue.lines()} == {"first", "a-0", "a-1", "a-2"}


def test_workers_have_a_core_each(queue):
    told = queue("--workers", "2")
    assert told.returncode == 0, told.stderr
    cores = [json.loads(line)["cores"] for line in queue.lines()]
    assert all(len(c) == 1 for c in cores)
    assert len({c[0] for c in cores[1:]}) == min(2, len(os.sched_getaffinity(0)))


def test_a_failed_arm_is_named_the_others_are_done_and_it_is_tried_again(queue):
    told = queue("--bad", "a-1")
    assert told.returncode == 1 and "failed: a-1" in told.stderr
    assert "as asked" in (queue.out / "logs" / "a-1.log").read_text()
    assert [json.loads(line)["arm"] for line in queue.lines()] == ["first", "a-0", "a-2"]
    assert "finished 4" in queue().stdout
    assert queue.done()[-1] == "a-1" and len(queue.done()) == 5


def test_a_failure_keeps_the_next_phase_from_starting(queue):
    told = queue("--bad", "first")
    assert "failed: first" in told.stderr and queue.done() == ["first"]


def test_report_only_starts_nothing(queue):
    assert "finished 0" in queue("--report-only").stdout
    assert not (queue.out / "done").exists()


def test_a_line_that_is_no_arms_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"arm": "a"}\n[1]\n')
    with pytest.raises(SystemExit, match=r"results\.jsonl:2: not an arm's line"):
        Results(path)


def test_arms_end_with_their_queue(queue):
    """What went on would write to the folder of the arm that the next command begins."""
    script = queue.out.parent / "bench.py"
    command = [sys.executable, str(script), "--out", str(queue.out), "--slow", "a-1"]
    told, deadline = queue.out / "slow", time.monotonic() + 60
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
                time.sleep(0.05)
            child = int(told.read_text())
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert queue().returncode == 0 and len(queue.lines()) == 4
