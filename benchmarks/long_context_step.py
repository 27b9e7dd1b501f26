"""What long contexts cost in training: time and memory a token, beside peers where there are any.

    python benchmarks/long_context_step.py [--only doubling whole w3 group] [--trl PYTHON]

doubling  one step on one sequence as its length doubles: seconds and bytes a token
whole     one whole step (forward, backward, AdamW) at 32,768 tokens, positions scaled by YaRN
w3        an 8,192-token sequence, forward and backward: peak memory beside TRL and transformers
group     completions a prompt from 2 to 16 at a 2,048-token prompt: what the step grows by

Every measurement is a process of its own, so that its peak is its own; a peer that dies is a
result. Results go to benchmarks/results/long-context.json and docs/long-context-training.md, after
every process: the same command goes on where the last one ended, --again measures anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lock import quiet_machine
from works import Work, write_prompts

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "long-context-training.md"
PARTS = ("doubling", "w3", "group", "whole")
OWN_CONTEXT = 8192

Line = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--only", nargs="*", default=[], choices=PARTS)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--whole", type=int, default=32768, help="tokens of the whole step")
    parser.add_argument("--put-aside", action="store_true", help="the whole step with offload too")
    parser.add_argument("--w3", type=int, default=8192, help="tokens of W3")
    parser.add_argument("--groups", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--completion-tokens", type=int, default=64)
    parser.add_argument("--num-prompts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--trl", default="", help="interpreter of an environment with trl")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=5400, help="time an arm may take")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "long-context.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    with quiet_machine():
        from educe.models.load import find_folder

        folder = find_folder(given.model)
        results: Line = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.runs = results.setdefault("runs", {})
        given.keep = lambda: keep(results, given.out)
        for part in PARTS:
            if given.only and part not in given.only:
                continue
            results[part] = _MEASURES[part](folder, given)
            given.keep()
            given.page.write_text(page(results), encoding="utf-8")
    return 0


def keep(results: Line, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


# Measures


def doubling(folder: Path, given: argparse.Namespace) -> Line:
    rows = []
    for length in given.lengths:
        options = ["--bf16", "--checkpointing", "--warm", *_rope(length)]
        row = _median(
            [own(folder, length, options, given, r) for r in range(given.repeats)], length, "educe"
        )
        rows.append(row)
        print(told(row), flush=True)
    return {"what": "bf16 autocast over fp32 weights, checkpointing, AdamW", "rows": rows}


def whole(folder: Path, given: argparse.Namespace) -> Line:
    length = given.whole
    rows = []
    places = [("in memory", list[str]())]
    if given.put_aside:
        places.append(("put aside", ["--offload"]))
    for name, extra in places:
        options = ["--bf16", "--checkpointing", "--warm", *extra, *_rope(length)]
        row = {**own(folder, length, options, given), "arm": f"educe, {name}"}
        rows.append(row)
        print(told(row), flush=True)
    return {"what": "bf16 autocast over fp32 weights, checkpointing, AdamW", "rows": rows}


def w3(folder: Path, given: argparse.Namespace) -> Line:
    """Peers with and without checkpointing, in the type that they are faster in (bf16)."""
    length, threads = given.w3, ["--threads", str(given.threads)]
    rows: list[Line] = []
    arms: list[tuple[str, str, list[str], str]] = []
    for name, extra in (("", []), (" with checkpointing", ["--checkpointing"])):
        options = ["--bf16", *extra, *threads]
        own_options = [*options, "--no-step"]
        arms.append((f"educe{name}", "educe_sequence.py", own_options, sys.executable))
        arms.append((f"TRL{name}", "trl_sequence.py", options, given.trl))
        arms.append((f"transformers{name}", "hf_sequence.py", options, sys.executable))
    aside = ["--bf16", "--checkpointing", "--offload", *threads, "--no-step"]
    arms.append(("educe, kept parts in a file", "educe_sequence.py", aside, sys.executable))
    for name, script, options, python in arms:
        if not python:
            row: Line = {"arm": name, "note": "no environment with trl (--trl)"}
        else:
            base = [str(folder), str(length), *options]
            row = {**known_or_run(script, base, python, given), "arm": name}
        rows.append({"tokens": length, **row})
        print(told(rows[-1]), flush=True)
    return {"what": f"one sequence of {length} tokens, bf16 autocast", "rows": rows}


def group(folder: Path, given: argparse.Namespace) -> Line:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "prompts.json"
        work = Work(given.num_prompts, 1, given.completion_tokens, given.prompt_tokens)
        write_prompts(file, tokenizer, work)
        texts = json.loads(file.read_text(encoding="utf-8"))
        shared = sum(len(tokenizer(t, add_special_tokens=False).input_ids) for t in texts)
        for size in given.groups:
            # A pack must hold a whole group, or its prompt would be computed twice.
            pack = 2 * given.prompt_tokens + size * given.completion_tokens
            options = ["--steps", "2", "--bf16", "--fixed", "--micro-batch-tokens", str(pack)]
            base = [str(folder), str(file), str(size), str(given.completion_tokens)]
            row = known_or_run("educe_step.py", [*base, *options], sys.executable, given)
            if "train_s" in row:
                row["computed_tokens"] = shared + row["tokens"]
            rows.append({"arm": f"{size} completions", "group": size, **row})
            print(told(rows[-1]), flush=True)
    return {
        "what": f"{given.num_prompts} prompts of {given.prompt_tokens} tokens, "
        f"{given.completion_tokens} tokens a completion, bf16",
        "rows": rows,
    }


_MEASURES = {"doubling": doubling, "whole": whole, "w3": w3, "group": group}


def own(
    folder: Path, length: int, options: list[str], given: argparse.Namespace, repeat: int = 0
) -> Line:
    base = [str(folder), str(length), *options, "--threads", str(given.threads)]
    found = known_or_run("educe_sequence.py", base, sys.executable, given, repeat)
    return {"tokens": length, **found}


def known_or_run(
    script: str, options: list[str], python: str, given: argparse.Namespace, repeat: int = 0
) -> Line:
    """Return what an earlier command measured by the same words, else measure and keep it.

    What failed (a package that is missing) is done again; what was killed is a result.
    """
    words = [o if "/" not in o else Path(o).name for o in options]
    key = f"{repeat}: {script} {' '.join(words)}"
    known: Line | None = None if given.again else given.runs.get(key)
    if known is None or known.get("note", "").startswith("failed"):
        known = given.runs[key] = run(script, options, python, given)
        given.keep()
    return dict(known)


def _rope(length: int) -> list[str]:
    return ["--rope-factor", str(-(-length // OWN_CONTEXT))] if length > OWN_CONTEXT else []


def run(script: str, options: list[str], python: str, given: argparse.Namespace) -> Line:
    """Run an arm; return what its lines say, or how it died."""
    command = [python, str(HERE / "arms" / script), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        out, err = child.communicate(timeout=given.limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"note": f"stopped after {given.limit_s:g} s"}
    found: Line = {}
    for text in out.splitlines():
        if text.startswith('{"'):
            found.update(json.loads(text))
    if child.returncode < 0:
        return {"note": f"killed by {signal.Signals(-child.returncode).name} (out of memory?)"}
    if child.returncode:
        return {"note": f"failed: {err.strip().splitlines()[-1][:200] if err.strip() else '?'}"}
    return found


def _median(rows: list[Line], length: int, arm: str) -> Line:
    """Return the row whose time is the median one; a row that failed otherwise."""
    failed = [r for r in rows if "seconds" not in r]
    if failed:
        return {**failed[0], "arm": arm}
    middle = statistics.median_low(r["seconds"] for r in rows)
    return {**next(r for r in rows if r["seconds"] == middle), "arm": arm}


# Words


def told(row: Line) -> str:
    name = f"{row.get('arm', '')} {row.get('tokens', '')}".strip()
    if "note" in row:
        return f"{name}: {row['note']}"
    parts = [f"{row['seconds']:.1f} s"]
    if "computed_tokens" in row:
        parts += [f"train {row['train_s']:.1f} s for {row['computed_tokens']} tokens"]
    elif row.get("tokens"):
        parts += [f"{1e3 * row['seconds'] / row['tokens']:.2f} ms a token"]
    parts += [f"peak {row['peak_gb']:.2f} GB"]
    return f"{name}: {', '.join(parts)}"


def page(results: Line) -> str:
    """Return the page that docs keep of the last run."""
    blocks = [
        "# Training on long contexts: measured\n\nWritten by `benchmarks/long_context_step.py` on "
        "two cores; every row is a process of its own."
    ]
    if "doubling" in results:
        blocks.append(_doubling_table(results["doubling"]))
    if "whole" in results:
        blocks.append(_plain_table("One whole step", results["whole"]))
    if "w3" in results:
        blocks.append(_w3_table(results["w3"]))
    if "group" in results:
        blocks.append(_group_table(results["group"]))
    return "\n\n".join(blocks) + "\n"


def _doubling_table(part: Line) -> str:
    lines = [
        f"## One step as the length doubles\n\n{part['what']}. Bytes a token: what the peak grew "
        "by since the row before, a token more.\n",
        "| tokens | seconds | ms a token | peak GB | bytes a token |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    before: Line | None = None
    for row in part["rows"]:
        if "note" in row:
            lines.append(f"| {row['tokens']} | {row['note']} | | | |")
            continue
        tokens, more = row["tokens"], ""
        if before is not None:
            grown = 1e9 * (row["peak_gb"] - before["peak_gb"])
            more = f"{grown / (tokens - before['tokens']):,.0f}"
        lines.append(
            f"| {tokens} | {row['seconds']:.1f} | {1e3 * row['seconds'] / tokens:.2f} | "
            f"{row['peak_gb']:.2f} | {more} |"
        )
        before = row
    return "\n".join(lines)


def _plain_table(title: str, part: Line) -> str:
    lines = [
        f"## {title}\n\n{part['what']}.\n",
        "| arm | tokens | seconds | peak GB | in a file GB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in part["rows"]:
        if "note" in row:
            lines.append(f"| {row['arm']} | {row['tokens']} | {row['note']} | | |")
            continue
        lines.append(
            f"| {row['arm']} | {row['tokens']} | {row['seconds']:.0f} | {row['peak_gb']:.2f} | "
            f"{row.get('file_gb', 0):.2f} |"
        )
    return "\n".join(lines)


def _w3_table(part: Line) -> str:
    rows = {r["arm"]: r for r in part["rows"]}
    lines = [
        f"## W3\n\n{part['what']}, forward and backward; TRL takes its first step of AdamW "
        "after its peak.\n",
        "| arm | seconds | peak GB | educe / arm |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        if "note" in row:
            lines.append(f"| {name} | {row['note']} | | |")
            continue
        best = min((r["peak_gb"] for n, r in rows.items() if "educe" in n and "peak_gb" in r))
        share = f"{best / row['peak_gb']:.2f}"
        lines.append(f"| {name} | {row['seconds']:.1f} | {row['peak_gb']:.2f} | {share} |")
    return "\n".join(lines)


def _group_table(part: Line) -> str:
    rows = [r for r in part["rows"] if "train_s" in r]
    lines = [
        f"## Completions a prompt\n\n{part['what']}. Growth is against the first row: of the "
        "training half, and of the tokens that it computes (each prompt once).\n",
        "| completions | step s | rollouts s | training s | tokens computed | growth of time | "
        "growth of tokens |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        first = rows[0]
        time_growth = row["train_s"] / first["train_s"]
        token_growth = row["computed_tokens"] / first["computed_tokens"]
        lines.append(
            f"| {row['group']} | {row['seconds']:.1f} | {row['rollout_s']:.1f} | "
            f"{row['train_s']:.1f} | {row['computed_tokens']} | {time_growth:.2f} | "
            f"{token_growth:.2f} |"
        )
    lines += [f"| {r['group']} | {r['note']} | | | | | |" for r in part["rows"] if "note" in r]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
