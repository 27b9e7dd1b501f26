"""The run store: everything that one run recorded, in one folder.

    runs/NAME/
      run.json               what the run is: id, schema version, resolved recipe
      attempts/0001.json     one a start or resume: when, where, from which step
      segments/0001-….jsonl  the records, one file for each process and attempt, append-only
      index.sqlite           made by readers, may be deleted

Writing never touches SQLite, so any number of processes may record at once; reading brings the
index up to date first. Other parts keep their files (checkpoints, reports) in the same folder.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from educe.core.errors import InfrastructureError, RecipeError
from educe.core.protocols import MetricRow
from educe.core.types import JSON
from educe.observability.attempts import RUN_FILE, claim_attempt, read_attempts, write_once
from educe.observability.index import RunIndex, live
from educe.observability.segments import (
    SEGMENT_FOLDER,
    SegmentWriter,
    attempt_of,
    encode_record,
    is_being_written,
    read_record_at,
    segment_paths,
)

SCHEMA_VERSION = 1
_CLOSED = "process_end"

RunStatus = Literal["new", "running", "finished", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it was recorded; ``time`` in seconds since the epoch."""

    kind: str
    payload: Mapping[str, JSON]
    attempt: int
    time: float


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample record: the dict that the loop wrote, with where it belongs."""

    stage: str
    step: int
    attempt: int
    body: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Which samples to read; empty fields let everything through.

    Attributes:
        domain: exact name or glob (``rg/*``).
        verdict: right, wrong, partial, unparseable, refused or unscored.
        min_reward, max_reward: inclusive; samples without a reward fail a set limit.
        step: of the stage.
        newest_first: order of steps.
    """

    domain: str = ""
    verdict: str = ""
    split: str = ""
    stage: str = ""
    step: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    limit: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run at a glance.

    ``status`` is of the newest attempt: running (a process holds a segment open), finished or
    failed (the process that began it said so at its end), or stopped (it ended without a word:
    killed, power cut).
    """

    name: str
    run_id: str
    folder: Path
    created: float
    educe_version: str
    num_attempts: int
    status: RunStatus
    last_steps: Mapping[str, int] = field(default_factory=dict)


class RunStore:
    """One run's records: a Recorder for the loops and the source for everything that looks at them.

    ``create`` starts a run, ``resume`` continues one as a new attempt, ``open`` joins the newest
    attempt (further processes) or just reads. The segment is opened at the first record. Safe to
    share between threads; after a fork or pickling, the other process gets a segment of its own.
    """

    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder = folder
        self.attempt = attempt
        self.description: dict[str, JSON] = _read_description(folder)
        self._index = RunIndex(folder)
        self._writer: SegmentWriter | None = None
        self._opening = threading.Lock()
        self._numbers = itertools.count(1)

    @classmethod
    def create(
        cls, folder: str | Path, recipe_json: Mapping[str, JSON] | str, *, name: str = ""
    ) -> Self:
        """Start a run in a folder that holds none yet (it may hold other files).

        Args:
            recipe_json: the resolved recipe, as JSON values or JSON text.
            name: shown in lists; the folder's name by default.

        Raises:
            RecipeError: the folder already holds a run.
            InfrastructureError: the folder cannot be written.
        """
        from educe import __version__

        folder = Path(folder)
        recipe = json.loads(recipe_json) if isinstance(recipe_json, str) else dict(recipe_json)
        description = {
            "schema_version": SCHEMA_VERSION,
            "run_id": uuid.uuid4().hex[:12],
            "name": name or folder.resolve().name,
            "created": time.time(),
            "educe_version": __version__,
            "recipe": recipe,
        }
        if not write_once(folder / RUN_FILE, description):
            raise RecipeError(
                f"{folder} already holds a run. Continue it with --resume, or give another run.name"
            )
        return cls(folder, claim_attempt(folder, next_step={}, recipe=None))

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a run to read it, or to record as one more process of its newest attempt.

        Raises RecipeError when the folder holds no run, InfrastructureError when its format is
        newer than this educe.
        """
        folder = Path(folder)
        return cls(folder, max(read_attempts(folder), default=1))

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        *,
        next_step: Mapping[str, int] | None = None,
        recipe_json: Mapping[str, JSON] | None = None,
    ) -> Self:
        """Continue a run as a new attempt, and record a ``resume`` event.

        Args:
            next_step: stage: first step this attempt does. What earlier attempts recorded of that
                stage from there on no longer counts. Stages not named take the first step that this
                attempt records.
            recipe_json: the resolved recipe, when it was changed for this attempt.
        """
        folder = Path(folder)
        _read_description(folder)
        starts = dict(next_step or {})
        attempt = claim_attempt(folder, next_step=starts, recipe=recipe_json)
        store = cls(folder, attempt)
        store.record_event("resume", {"attempt": attempt, "next_step": starts})
        return store

    # Recording

    def record_metrics(self, row: MetricRow) -> None:
        """Record metrics of a step; several rows of one step are merged when read."""
        self._append(
            "metrics",
            stage=row.stage,
            step=int(row.step),
            wall=float(row.wall_time_s),
            values={name: float(value) for name, value in row.values.items()},
        )

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        """Record one sample (see docs/observability.md for its keys)."""
        self._append("sample", stage=stage, step=int(step), sample=sample)

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        """Record an event; ``checkpoint`` also puts everything so far on the disk."""
        self._append("event", event=kind, payload=payload)
        if kind == "checkpoint":
            self.sync()

    def _append(self, kind: str, **content: JSON) -> None:
        record = {"k": kind, "t": time.time(), "n": next(self._numbers), **content}
        self._segment().append(encode_record(record))

    def _segment(self) -> SegmentWriter:
        writer = self._writer
        if writer is None or writer.process_id != os.getpid():
            with self._opening:
                writer = self._writer
                if writer is None or writer.process_id != os.getpid():
                    writer = self._writer = SegmentWriter(self.folder, self.attempt)
        return writer

    @property
    def num_dropped(self) -> int:
        """Records of this process that the disk refused."""
        return 0 if self._writer is None else self._writer.num_dropped

    def sync(self) -> None:
        """Put everything this process recorded on the disk."""
        if self._writer is not None:
            self._writer.sync()

    def close(self, error: BaseException | None = None) -> None:
        """End this process's part of the run, well or (with ``error``) badly."""
        writer = self._writer
        if writer is not None and writer.process_id == os.getpid():
            reason = "" if error is None else f"{type(error).__name__}: {error}"
            try:
                end = {"error": reason, "num_dropped": writer.num_dropped}
                self.record_event(_CLOSED, {"process_id": os.getpid(), **end})
                writer.sync()
            except (InfrastructureError, OSError):
                pass  # told at the first refused record; a missing end reads as "stopped"
            writer.close()
        self._writer = None
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.attempt)

    # Reading

    @property
    def name(self) -> str:
        return str(self.description["name"])

    @property
    def recipe(self) -> dict[str, JSON]:
        """The resolved recipe of the newest attempt that brought one, else the first one."""
        recipes = [a.get("recipe") for a in read_attempts(self.folder).values()]
        newest = [r for r in recipes if r]
        return dict(newest[-1] if newest else self.description["recipe"])

    def info(self) -> RunInfo:
        described = self.description
        self._index.refresh()
        steps = self._index.query(
            f"SELECT r.stage, max(r.step) FROM {live('metrics')} GROUP BY r.stage "
            "ORDER BY (SELECT min(g.first_time) FROM stages g WHERE g.stage = r.stage)"
        )
        return RunInfo(
            name=self.name,
            run_id=described["run_id"],
            folder=self.folder,
            created=described["created"],
            educe_version=described["educe_version"],
            num_attempts=len(read_attempts(self.folder)),
            status=self._status(),
            last_steps=dict(steps),
        )

    def _status(self) -> RunStatus:
        attempts = read_attempts(self.folder)
        attempt = max(attempts, default=1)
        paths = [p for p in segment_paths(self.folder) if attempt_of(p) == attempt]
        if not paths:
            return "new"
        if any(is_being_written(p) for p in paths):
            return "running"
        self._index.refresh()
        found = self._index.query(
            "SELECT payload FROM events WHERE kind = ? AND attempt = ?", (_CLOSED, attempt)
        )
        ends = [json.loads(payload) for (payload,) in found]
        owner = attempts.get(attempt, {}).get("process_id")
        # Workers may be killed at the end of a good run; what counts is how their owner ended.
        ends = [end for end in ends if end["process_id"] == owner] or ends
        if not ends:
            return "stopped"
        return "failed" if any(end["error"] for end in ends) else "finished"

    def stages(self) -> list[str]:
        """Return the stages with metrics or samples, in the order in which they began."""
        self._index.refresh()
        rows = self._index.query("SELECT stage FROM stages GROUP BY stage ORDER BY min(first_time)")
        return [stage for (stage,) in rows]

    def metrics(self, stage: str = "", *, after_step: int | None = None) -> list[MetricRow]:
        """Return one row a (stage, step), stages in order and steps rising within each.

        What was done twice because of a resume counts once: the newest attempt's.

        Args:
            stage: only this one.
            after_step: only later steps (for followers).
        """
        rows: list[MetricRow] = []
        for name in [stage] if stage else self.stages():
            rows += self._stage_metrics(name, after_step)
        return rows

    def _stage_metrics(self, stage: str, after_step: int | None) -> list[MetricRow]:
        self._index.refresh()
        found = self._index.query(
            f"SELECT r.step, r.wall_time_s, r.metric_values FROM {live('metrics')} AND r.stage = ? "
            "AND r.step > ? ORDER BY r.step, r.time, r.segment, r.number",
            (stage, -(2**62) if after_step is None else after_step),
        )
        merged: dict[int, tuple[dict[str, float], float]] = {}
        for step, wall_time_s, text in found:
            values, longest = merged.get(step, ({}, 0.0))
            values.update({k: float(v) for k, v in json.loads(text).items()})
            merged[step] = (values, max(longest, wall_time_s))
        return [MetricRow(stage, s, values, wall) for s, (values, wall) in merged.items()]

    def times(self, stage: str) -> dict[int, float]:
        """Return when each step of a stage was recorded (its last row), seconds since the epoch."""
        self._index.refresh()
        found = self._index.query(
            f"SELECT r.step, max(r.time) FROM {live('metrics')} AND r.stage = ? GROUP BY r.step",
            (stage,),
        )
        return dict(found)

    def series(self, name: str, stage: str = "") -> list[tuple[int, float]]:
        """Return (step, value) of one metric, over the stages in order."""
        rows = self.metrics(stage)
        return [(row.step, row.values[name]) for row in rows if name in row.values]

    def samples(self, wanted: SampleFilter | None = None) -> Iterator[StoredSample]:
        """Yield samples in step order (bodies are read one at a time)."""
        wanted = wanted or SampleFilter()
        self._index.refresh()
        where, parameters = _sample_conditions(wanted)
        direction = "DESC" if wanted.newest_first else "ASC"
        source = live("samples", "JOIN segments s ON s.id = r.segment")
        stage_order = "(SELECT min(g.first_time) FROM stages g WHERE g.stage = r.stage)"
        limit = -1 if wanted.limit is None else max(0, wanted.limit)
        found = self._index.query(
            f"SELECT r.stage, r.step, r.attempt, s.name, r.begin, r.finish FROM {source}"
            f"{where} ORDER BY {stage_order} {direction}, r.step {direction}, r.time, r.number "
            f"LIMIT {limit}",
            parameters,
        )
        for stage, step, attempt, segment, begin, finish in found:
            record = read_record_at(self.folder / SEGMENT_FOLDER / segment, begin, finish)
            if record is not None:
                yield StoredSample(stage, step, attempt, record["sample"])

    def events(self, kind: str = "") -> list[StoredEvent]:
        """Return events in the order of time, those of abandoned steps included."""
        self._index.refresh()
        found = self._index.query(
            "SELECT kind, payload, attempt, time FROM events WHERE kind = ? OR ? = '' "
            "ORDER BY attempt, time, segment, number",
            (kind, kind),
        )
        return [StoredEvent(k, json.loads(p), a, t) for k, p, a, t in found]

    def sample_domains(self) -> list[str]:
        """Return the domains that have samples, sorted."""
        self._index.refresh()
        found = self._index.query("SELECT DISTINCT domain FROM samples ORDER BY domain")
        return [domain for (domain,) in found]

    def counts(self) -> dict[str, int]:
        """Return how many records were ever written, abandoned ones included, and damaged lines."""
        self._index.refresh()
        tables = {"metrics": "metrics", "samples": "samples", "events": "events"}
        counts = {
            k: int(self._index.query(f"SELECT count(*) FROM {t}")[0][0]) for k, t in tables.items()
        }
        damaged = self._index.query("SELECT coalesce(sum(damaged), 0) FROM segments")
        return {**counts, "damaged": int(damaged[0][0])}


def _read_description(folder: Path) -> dict[str, JSON]:
    path = folder / RUN_FILE
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RecipeError(f"{folder} holds no run: {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"cannot read {path}: {error}") from error
    version = description.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise InfrastructureError(
            f"{path} has schema version {version}; this educe reads up to {SCHEMA_VERSION}. "
            f"Look at the run with the educe that wrote it, or a newer one"
        )
    return dict(description)


def _sample_conditions(wanted: SampleFilter) -> tuple[str, list[Any]]:
    conditions: list[str] = []
    parameters: list[Any] = []
    if wanted.domain:
        conditions.append(" AND (r.domain = ? OR r.domain GLOB ?)")
        parameters += [wanted.domain, wanted.domain]
    for clause, value in (
        ("r.verdict = ?", wanted.verdict or None),
        ("r.split = ?", wanted.split or None),
        ("r.stage = ?", wanted.stage or None),
        ("r.step = ?", wanted.step),
        ("r.reward >= ?", wanted.min_reward),
        ("r.reward <= ?", wanted.max_reward),
    ):
        if value is not None:
            conditions.append(f" AND {clause}")
            parameters.append(value)
    return "".join(conditions), parameters
