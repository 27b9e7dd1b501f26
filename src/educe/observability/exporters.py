"""A finished (or running) run, copied out: CSV for spreadsheets, event files for TensorBoard."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from educe.core.types import JSON
from educe.observability.event_metrics import evaluation_row
from educe.observability.run_reader import RunReader, StoredSample
from educe.observability.sinks import TensorBoardSink

_SAMPLE_COLUMNS = (
    "stage",
    "step",
    "attempt",
    "domain",
    "task_id",
    "split",
    "request_id",
    "sample_index",
    "verdict",
    "fault",
    "score",
    "reward",
    "advantage",
    "completion_tokens",
    "stop_reason",
    "reason",
    "prompt",
    "completion",
)


def export_csv(store: RunReader, folder: str | Path) -> list[Path]:
    """Write ``metrics.csv`` (a row a step, a column a metric), ``samples.csv`` and ``events.csv``.

    Text that a spreadsheet would take for a formula gets a leading apostrophe: what a model wrote
    must not run in one.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _write(folder / "metrics.csv", _metric_lines(store)),
        _write(folder / "samples.csv", _sample_lines(store)),
        _write(folder / "events.csv", _event_lines(store)),
    ]


def _write(path: Path, lines: Iterator[list[JSON]]) -> Path:
    with path.open("w", newline="", encoding="utf-8", errors="replace") as stream:
        csv.writer(stream).writerows([_cell(value) for value in line] for line in lines)
    return path


def _cell(value: JSON) -> JSON:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _metric_lines(store: RunReader) -> Iterator[list[JSON]]:
    rows = store.metrics()
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    yield ["stage", "step", "wall_time_s", *names]
    for row in rows:
        yield [row.stage, row.step, row.wall_time_s, *(row.values.get(n, "") for n in names)]


def _sample_lines(store: RunReader) -> Iterator[list[JSON]]:
    yield list(_SAMPLE_COLUMNS)
    for sample in store.samples():
        flat = flatten_sample(sample)
        yield [flat[column] for column in _SAMPLE_COLUMNS]


def flatten_sample(sample: StoredSample) -> dict[str, JSON]:
    """Return a sample as one flat row; the prompt is what came before the first assistant turn."""
    body = sample.body
    score = body.get("score") or {}
    turns = body.get("turns") or []
    messages = body.get("messages") or []
    roles = [message.get("role") for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(messages)
    same_name = ("domain", "task_id", "split", "request_id", "sample_index", "reward", "advantage")
    return {
        "stage": sample.stage,
        "step": sample.step,
        "attempt": sample.attempt,
        **{key: body.get(key) for key in same_name},
        "verdict": "unscored" if score.get("value") is None else score.get("verdict"),
        "fault": score.get("fault"),
        "score": score.get("value"),
        "reason": score.get("reason", ""),
        "completion_tokens": sum(len(turn.get("completion_token_ids", ())) for turn in turns),
        "stop_reason": turns[-1].get("stop_reason", "") if turns else "",
        "prompt": _join(messages[:first]),
        "completion": _join(messages[first:]),
    }


def _join(messages: list[JSON]) -> str:
    """Return one message's text as it is, several with their roles."""
    if len(messages) == 1:
        return str(messages[0].get("content", ""))
    return "\n".join(f"[{m.get('role')}] {m.get('content', '')}" for m in messages)


def _event_lines(store: RunReader) -> Iterator[list[JSON]]:
    yield ["time", "attempt", "kind", "payload"]
    for event in store.events():
        yield [event.time, event.attempt, event.kind, json.dumps(dict(event.payload))]


def export_tensorboard(store: RunReader, folder: str | Path) -> list[Path]:
    """Write event files, one subfolder a stage, and return those folders.

    Steps that a resume repeated appear once. Raises MissingExtraError without tensorboard.
    """
    folder = Path(folder)
    sink = TensorBoardSink(folder)
    stages = store.stages()
    for stage in stages:
        times = store.times(stage)
        for row in store.metrics(stage):
            sink.write(row, times[row.step])
    for event in store.events("eval"):
        evaluated = evaluation_row(event.payload)
        if evaluated is not None:
            sink.write(evaluated, event.time)
            stages = list(dict.fromkeys([*stages, evaluated.stage]))
    sink.close()
    return [folder / stage for stage in stages]
