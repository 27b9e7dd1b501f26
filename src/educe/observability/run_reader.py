"""Reading a run: metrics, samples and events as they count after resumes, filtered and ordered.

Any number of readers may look at a run while it is being written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from educe.core.errors import InfrastructureError, RecipeError
from educe.core.protocols import MetricRow
from educe.core.types import JSON
from educe.observability.attempts import RUN_FILE, read_attempts
from educe.observability.index import RunIndex, live
from educe.observability.segments import (
    SEGMENT_FOLDER,
    attempt_of,
    is_being_written,
    read_record_at,
    segment_paths,
)

SCHEMA_VERSION = 1
PROCESS_END = "process_end"  # the event that a process records last
STOPPED = "stopped"  # the event of a run that was asked to stop and can go on

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
    failed (the process that began it said so at its end), or stopped (asked to, as by Ctrl-C, or
    without a word: killed, power cut).
    """

    name: str
    run_id: str
    folder: Path
    created: float
    educe_version: str
    num_attempts: int
    status: RunStatus
    last_steps: Mapping[str, int] = field(default_factory=dict)


class RunReader:
    """What a run folder holds; safe to share between threads.

    Raises RecipeError when the folder holds no run, InfrastructureError when its format is newer
    than this educe.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.description: dict[str, JSON] = read_description(self.folder)
        self._index = RunIndex(self.folder)

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
            "SELECT payload FROM events WHERE kind = ? AND attempt = ?", (PROCESS_END, attempt)
        )
        ends = [json.loads(payload) for (payload,) in found]
        owner = attempts.get(attempt, {}).get("process_id")
        # Workers may be killed at the end of a good run; what counts is how their owner ended.
        ends = [end for end in ends if end["process_id"] == owner] or ends
        if not ends:
            return "stopped"
        if any(end["error"] for end in ends):
            return "failed"
        asked = self._index.query(
            "SELECT 1 FROM events WHERE kind = ? AND attempt = ? LIMIT 1", (STOPPED, attempt)
        )
        return "stopped" if asked else "finished"

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


def read_description(folder: Path) -> dict[str, JSON]:
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
