"""The page of speed.py: rows from the arms' runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speed_works import FIGURES, ROWS, Row, figure_of

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Compared:
    """A row's medians; ``peer`` is the best of the peers, ``ratio`` above 1 is in our favour."""

    ours: float | None
    peer: float | None
    peer_name: str
    ratio: float | None
    is_met: bool | None
    repeats: int
    notes: tuple[str, ...]


def compared(row: Row, runs: Runs) -> Compared:
    """Return what a row's arms say so far."""
    ours = median_of(row.ours, row.figure, runs)
    found = {name: _peer_value(name, row, runs) for name in row.peers}
    known = {name: value for name, value in found.items() if value is not None}
    best = (max if row.is_rate else min)(known, key=lambda n: known[n]) if known else ""
    peer = known.get(best)
    ratio = None
    if ours and peer:
        ratio = ours / peer if row.is_rate else peer / ours
    is_met = None if ratio is None else ratio >= row.target
    if not row.peers and ours is not None:
        is_met = ours <= row.target
    notes = [
        f"{name}: {run['note']}" for name in row.arms for run in runs.get(name, []) if "note" in run
    ]
    notes += [f"{name}: not run" for name in row.arms if not runs.get(name)]
    return Compared(
        ours,
        peer,
        best or ", ".join(row.peers),
        ratio,
        is_met,
        len(values_of(row.ours, row.figure, runs)),
        tuple(dict.fromkeys(notes)),
    )


def _peer_value(name: str, row: Row, runs: Runs) -> float | None:
    """Return a peer's median; the time that it had where it was always stopped before its end."""
    figure = row.peer_figure or row.figure
    value = median_of(name, figure, runs)
    stopped = [run["stopped_after_s"] for run in runs.get(name, []) if "stopped_after_s" in run]
    if value is None and figure == "seconds" and stopped:
        return float(max(stopped))
    return value


def values_of(arm: str, figure: str, runs: Runs) -> list[float]:
    values = [figure_of(list(run["lines"]), figure) for run in runs.get(arm, [])]
    return [v for v in values if v is not None]


def median_of(arm: str, figure: str, runs: Runs) -> float | None:
    values = values_of(arm, figure, runs)
    return statistics.median(values) if values else None


def line_of(row: Row, runs: Runs) -> str:
    """Return a row as one line."""
    c, unit = compared(row, runs), FIGURES[row.figure][2]
    text = f"{row.name:18} {row.ours} {_number(c.ours)} {unit}"
    if row.peers:
        text += f", {c.peer_name} {_number(c.peer)}: {_times(c.ratio)} ({row.target:g} wanted)"
    else:
        text += f" ({row.target:g} allowed)"
    return text + (f"  [{'; '.join(c.notes)}]" if c.notes else "")


def page(found: Mapping[str, Runs]) -> str:
    """Return the section of docs/speed.md; ``found`` has the runs of each kind of processor."""
    lines = [
        "Written by `python benchmarks/speed.py`: medians of runs that took turns, two cores,",
        "SmolLM2-135M-Instruct. W1: 8 prompts x 8 completions of at most 128 tokens, temperature",
        "1, every weight trained. W2: 4 prompts of 2,048 tokens x 8 completions of at most 64.",
        "Completed tokens count, up to and with the end token. A ratio above 1 speaks for educe;",
        "of several peers the best one counts. Floor: the step's matrix products timed alone, and",
        "the bytes of the cache and the logits at the rate of a large copy. A peer that was",
        "stopped counts with the time that it had: the ratio is then a lower bound, and a line",
        "below says so.",
    ]
    for kind, runs in found.items():
        lines += ["", f"### {kind}", "", *_table(runs)]
    return "\n".join(lines)


def _table(runs: Runs) -> list[str]:
    lines = [
        "| row | educe | peer | ratio | wanted | met | runs |",
        "|---|---|---|---|---|---|---|",
    ]
    noted: list[str] = []
    for row in ROWS:
        c, unit = compared(row, runs), FIGURES[row.figure][2]
        if c.ours is None and c.peer is None:
            continue
        wanted = f"{row.target:g}x" if row.peers else f"at most {row.target:g} {unit}"
        met = {True: "yes", False: "no", None: "-"}[c.is_met]
        peer = f"{c.peer_name}: {_number(c.peer)} {unit}" if row.peers else "-"
        lines.append(
            f"| {row.name} | {row.ours}: {_number(c.ours)} {unit} | {peer} | {_times(c.ratio)} | "
            f"{wanted} | {met} | {c.repeats} |"
        )
        noted += [f"- {row.name}: {note}" for note in c.notes]
    return [*lines, *(["", *noted] if noted else [])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
