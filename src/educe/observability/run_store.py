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
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from educe.core.errors import InfrastructureError, RecipeError
from educe.core.protocols import MetricRow
from educe.core.types import JSON
from educe.observability.attempts import RUN_FILE, claim_attempt, read_attempts, write_once
from educe.observability.run_reader import (
    PROCESS_END,
    SCHEMA_VERSION,
    RunReader,
    read_description,
)
from educe.observability.segments import SegmentWriter, encode_record

_log = logging.getLogger("educe")


class RunStore(RunReader):
    """One run's records: a Recorder for the loops and the source for everything that looks at them.

    ``create`` starts a run, ``resume`` continues one as a new attempt, ``open`` joins the newest
    attempt (further processes) or just reads. The segment is opened at the first record. Safe to
    share between threads; after a fork or pickling, the other process gets a segment of its own.
    """

    def __init__(self, folder: Path, attempt: int) -> None:
        super().__init__(folder)
        self.attempt = attempt
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
        read_description(folder)
        starts = dict(next_step or {})
        attempt = claim_attempt(folder, next_step=starts, recipe=recipe_json)
        store = cls(folder, attempt)
        store.record_event("resume", {"attempt": attempt, "next_step": starts})
        return store

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
                self.record_event(PROCESS_END, {"process_id": os.getpid(), **end})
                writer.sync()
            except (InfrastructureError, OSError) as refusal:
                # The run is over; a missing end reads as "stopped", so say why it is missing.
                _log.warning(
                    "%s: the end of the run could not be recorded: %s", self.folder, refusal
                )
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
