"""The index: one SQLite file beside the segments, brought up to date by whoever reads.

It holds nothing of its own: it is derived from the segments and may be deleted at any time. Where
its file cannot be written (read-only folder, full disk, a lock that is never let go), the index
lives in memory instead, so looking at a run never fails because of it.

What counts after a resume (``live``): an attempt that starts stage S at step s abandons everything
that earlier attempts recorded in S from s on; where two attempts still share a step, the newer one
wins. Nothing is deleted: ``counts`` sees every record.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from educe.core.types import JSON
from educe.observability.attempts import declared_starts
from educe.observability.segments import attempt_of, read_lines, segment_paths

INDEX_FILE = "index.sqlite"
_INDEX_VERSION = 1
_BATCH = 2000
_DAMAGED = ("malformed", "not a database", "encrypted")

_SCHEMA = """
CREATE TABLE segments(id INTEGER PRIMARY KEY, name TEXT UNIQUE, attempt INT, offset INT,
                      damaged INT DEFAULT 0);
CREATE TABLE metrics(attempt INT, stage TEXT, step INT, time REAL, segment INT, number INT,
                     wall_time_s REAL, metric_values TEXT);
CREATE INDEX metrics_by_step ON metrics(stage, step, attempt);
CREATE TABLE samples(attempt INT, stage TEXT, step INT, time REAL, segment INT, number INT,
                     begin INT, finish INT, domain TEXT, split TEXT, verdict TEXT, reward REAL);
CREATE INDEX samples_by_step ON samples(stage, step, attempt);
CREATE INDEX samples_by_domain ON samples(domain);
CREATE TABLE events(attempt INT, kind TEXT, time REAL, segment INT, number INT, payload TEXT);
CREATE INDEX events_by_kind ON events(kind);
CREATE TABLE stages(attempt INT, stage TEXT, first_step INT, first_time REAL,
                    PRIMARY KEY(attempt, stage));
CREATE TABLE declared(attempt INT, stage TEXT, step INT, PRIMARY KEY(attempt, stage));
CREATE TABLE limits(attempt INT, stage TEXT, step_limit INT, PRIMARY KEY(attempt, stage));
"""

_INSERT_METRICS = "INSERT INTO metrics VALUES (?,?,?,?,?,?,?,?)"
_INSERT_SAMPLE = "INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
_INSERT_EVENT = "INSERT INTO events VALUES (?,?,?,?,?,?)"
_TOUCH_STAGE = """
INSERT INTO stages VALUES (?,?,?,?) ON CONFLICT(attempt, stage) DO UPDATE SET
  first_step = min(first_step, excluded.first_step),
  first_time = min(first_time, excluded.first_time)
"""
_FILL_LIMITS = """
INSERT INTO limits SELECT s.attempt, s.stage, (
  SELECT min(f.step) FROM (
    SELECT attempt, stage, step FROM declared
    UNION ALL
    SELECT attempt, stage, first_step FROM stages t WHERE NOT EXISTS (
      SELECT 1 FROM declared d WHERE d.attempt = t.attempt AND d.stage = t.stage)
  ) f WHERE f.stage = s.stage AND f.attempt > s.attempt)
FROM stages s
"""


def live(table: str, join: str = "") -> str:
    """Return the FROM and WHERE of the rows of ``metrics`` or ``samples`` (as r) that count.

    What an attempt records of a step before its first (a look that a stop had prevented) adds to
    what was recorded of it, and replaces nothing.
    """
    is_late = (
        "EXISTS (SELECT 1 FROM declared d WHERE d.attempt = {0}.attempt AND d.stage = {0}.stage "
        "AND d.step > {0}.step)"
    )
    return (
        f"{table} r JOIN limits l ON l.attempt = r.attempt AND l.stage = r.stage {join} "
        "WHERE (l.step_limit IS NULL OR r.step < l.step_limit) "
        f"AND ({is_late.format('r')} OR r.attempt = "
        f"(SELECT max(x.attempt) FROM {table} x WHERE x.stage = r.stage AND x.step = r.step "
        f"AND NOT {is_late.format('x')}))"
    )


class RunIndex:
    """Answers queries over a run's segments; safe to share between threads."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._path = run_folder / INDEX_FILE
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._is_in_memory = False

    def refresh(self) -> int:
        """Read what was appended since the last time; return the number of new records."""
        with self._lock:
            return int(self._repairing(self._refresh))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a SELECT."""
        with self._lock:
            return list(self._repairing(lambda: self._connect().execute(sql, parameters)))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _repairing(self, action: Any) -> Any:
        """Run an action; a damaged or unwritable index is replaced and the action run again."""
        try:
            return action()
        except sqlite3.DatabaseError as error:
            if self._is_in_memory:
                raise
            self.close()
            is_damaged = any(word in str(error) for word in _DAMAGED)
            if is_damaged:
                try:
                    self._path.unlink(missing_ok=True)
                except OSError:
                    self._is_in_memory = True
            else:
                self._is_in_memory = True
            self._refresh()
            return action()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            target = ":memory:" if self._is_in_memory else str(self._path)
            connection = sqlite3.connect(
                target, timeout=30.0, isolation_level=None, check_same_thread=False
            )
            self._connection = connection
            # The index can be rebuilt, so it need not survive a power cut.
            connection.execute("PRAGMA synchronous = OFF")
            if self._version() != _INDEX_VERSION:
                self._create(connection)
        return self._connection

    def _version(self) -> int:
        assert self._connection is not None
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _create(self, connection: sqlite3.Connection) -> None:
        """Make an empty index in one transaction, unless another reader was quicker."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            if self._version() != _INDEX_VERSION:
                names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                for (name,) in names.fetchall():
                    connection.execute(f"DROP TABLE {name}")
                for statement in _SCHEMA.split(";"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_INDEX_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _refresh(self) -> int:
        connection = self._connect()
        known = dict(connection.execute("SELECT name, offset FROM segments").fetchall())
        sizes = {path.name: path.stat().st_size for path in segment_paths(self._run_folder)}
        if known == sizes:
            return 0
        connection.execute("BEGIN IMMEDIATE")
        try:
            known = dict(connection.execute("SELECT name, offset FROM segments").fetchall())
            if any(offset > sizes.get(name, -1) for name, offset in known.items()):
                # A segment vanished or shrank: only a fresh start is right.
                for table in ("segments", "metrics", "samples", "events", "stages"):
                    connection.execute(f"DELETE FROM {table}")
            num_new = 0
            for path in segment_paths(self._run_folder):
                num_new += self._read_segment(connection, path)
            self._fill_limits(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        return num_new

    def _fill_limits(self, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM declared")
        connection.executemany(
            "INSERT INTO declared VALUES (?,?,?)", declared_starts(self._run_folder)
        )
        connection.execute("DELETE FROM limits")
        connection.execute(_FILL_LIMITS)

    def _read_segment(self, connection: sqlite3.Connection, path: Path) -> int:
        attempt = attempt_of(path)
        connection.execute(
            "INSERT OR IGNORE INTO segments(name, attempt, offset) VALUES (?,?,0)",
            (path.name, attempt),
        )
        row = connection.execute("SELECT id, offset FROM segments WHERE name = ?", (path.name,))
        segment, offset = row.fetchone()
        num_new = num_damaged = 0
        rows = _Rows(attempt, segment)
        for line in read_lines(path, offset):
            offset = line.end
            if line.record is None or not rows.take(line.record, line.offset, line.end):
                num_damaged += 1
                continue
            num_new += 1
            if num_new % _BATCH == 0:
                rows.insert(connection)
        rows.insert(connection)
        connection.execute(
            "UPDATE segments SET offset = ?, damaged = damaged + ? WHERE id = ?",
            (offset, num_damaged, segment),
        )
        return num_new


class _Rows:
    """Rows of one segment, waiting to be inserted together."""

    def __init__(self, attempt: int, segment: int) -> None:
        self._attempt, self._segment = attempt, segment
        self._metrics: list[tuple[Any, ...]] = []
        self._samples: list[tuple[Any, ...]] = []
        self._events: list[tuple[Any, ...]] = []
        self._stages: dict[str, tuple[int, float]] = {}

    def take(self, record: dict[str, JSON], begin: int, finish: int) -> bool:
        """Add a record; False when it is not one of the known shapes (damaged)."""
        try:
            kind, time, number = record["k"], float(record["t"]), int(record["n"])
            if kind == "event":
                payload = json.dumps(record["payload"])
                name = str(record["event"])
                self._events.append((self._attempt, name, time, self._segment, number, payload))
                return True
            stage, step = str(record["stage"]), int(record["step"])
            head = (self._attempt, stage, step, time, self._segment, number)
            if kind == "metrics":
                values = json.dumps(record["values"])
                self._metrics.append((*head, float(record["wall"]), values))
            elif kind == "sample":
                self._samples.append((*head, begin, finish, *_sample_columns(record["sample"])))
            else:
                return False
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        first_step, first_time = self._stages.get(stage, (step, time))
        self._stages[stage] = (min(first_step, step), min(first_time, time))
        return True

    def insert(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_INSERT_METRICS, self._metrics)
        connection.executemany(_INSERT_SAMPLE, self._samples)
        connection.executemany(_INSERT_EVENT, self._events)
        touched = [(self._attempt, stage, *first) for stage, first in self._stages.items()]
        connection.executemany(_TOUCH_STAGE, touched)
        self._metrics, self._samples, self._events, self._stages = [], [], [], {}


def _sample_columns(sample: dict[str, JSON]) -> tuple[Any, ...]:
    score = sample.get("score") or {}
    is_unscored = score.get("value") is None
    verdict = "unscored" if is_unscored else score.get("verdict") or ""
    reward = sample.get("reward")
    return (
        str(sample.get("domain", "")),
        str(sample.get("split", "")),
        verdict,
        None if reward is None else float(reward),
    )
