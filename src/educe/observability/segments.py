"""Segments: append-only JSON lines, one file for each writing process and attempt.

A record is handed to the kernel in one ``write``; so a killed process loses at most the line it was
writing, and readers need no lock. Nothing is ever rewritten: a torn last line stays where it is and
is skipped. Knows nothing of what the records mean.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from educe.core.errors import InfrastructureError
from educe.core.types import JSON

SEGMENT_FOLDER = "segments"


def _plain(value: Any) -> JSON:
    """Turn what json cannot write (numpy scalars and arrays, records, sets) into what it can."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a record may hold JSON values only, got {type(value).__name__}: {value!r}")


_strict = json.JSONEncoder(separators=(",", ":"), default=_plain, allow_nan=False).encode
_lenient = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def _spell_non_finite(value: JSON) -> JSON:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: _spell_non_finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_spell_non_finite(v) for v in value]
    return value


def encode_record(record: Mapping[str, JSON]) -> bytes:
    """Return the record as one line of valid JSON; NaN and infinities become strings.

    ``float("nan")`` reads them back. Raises TypeError for a value that is not JSON-able.
    """
    try:
        text = _strict(record)
    except ValueError:  # a non-finite float, or a circular reference (raised again below)
        text = _strict(_spell_non_finite(json.loads(_lenient(record))))
    return text.encode("ascii") + b"\n"


class SegmentWriter:
    """Appends lines to a new segment of its own; safe to share between threads.

    While it is open it holds a lock on the file, which the kernel drops at any death of the
    process: that is how readers know whether a run is alive (:func:`is_being_written`).
    """

    def __init__(self, run_folder: Path, attempt: int) -> None:
        folder = run_folder / SEGMENT_FOLDER
        name = f"{attempt:04d}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self.path = folder / name
        self.process_id = os.getpid()
        self.num_dropped = 0
        self._num_records = 0
        self._size = 0
        self._has_torn_tail = False
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise InfrastructureError(
                f"cannot open a segment of the run store in {folder}: {error.strerror}. Free disk "
                f"space or make the run folder writable, then resume the run"
            ) from error
        # On a file system without locks writing works, only "is it alive" cannot be told.
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def append(self, line: bytes) -> None:
        """Append one complete line.

        Raises InfrastructureError at the first line that the disk refuses; while it goes on
        refusing, further lines are counted in ``num_dropped`` without raising again. A line is in
        the file whole or not at all.
        """
        with self._lock:
            if self._descriptor is None:
                raise InfrastructureError(f"the run store's segment {self.path} is closed")
            try:
                self._write_whole(line)
            except OSError as error:
                self.num_dropped += 1
                if self.num_dropped == 1:
                    raise self._refused(error) from error
            else:
                self._num_records += 1

    def _write_whole(self, line: bytes) -> None:
        assert self._descriptor is not None
        data = b"\n" + line if self._has_torn_tail else line
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            if done:
                self._take_back()
            raise
        self._size += len(data)
        self._has_torn_tail = False

    def _take_back(self) -> None:
        """Cut a half-written line off; if even that fails, the next line starts after a break."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._has_torn_tail = True
            self._size = os.fstat(self._descriptor).st_size

    def _refused(self, error: OSError) -> InfrastructureError:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        cause = "the disk is full" if is_full else "the disk refused the write"
        return InfrastructureError(
            f"cannot write to the run store: {cause} ({error.strerror}) at {self.path}. The "
            f"{self._num_records} records before it are whole; later ones are dropped and counted. "
            f"Free space, then resume the run"
        )

    def sync(self) -> None:
        """Ask the kernel to put everything written so far on the disk."""
        with self._lock:
            if self._descriptor is not None:
                os.fsync(self._descriptor)

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.close()


def is_being_written(path: Path) -> bool:
    """Whether a living process holds the segment open for writing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def segment_paths(run_folder: Path) -> list[Path]:
    """Return all segments of a run, oldest attempt first."""
    return sorted((run_folder / SEGMENT_FOLDER).glob("*.jsonl"))


def attempt_of(path: Path) -> int:
    """Return the attempt that wrote a segment (from its name)."""
    return int(path.name.split("-", 1)[0])


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One complete line: ``record`` is None when it is not valid JSON (damaged)."""

    offset: int
    end: int
    record: dict[str, JSON] | None


def read_lines(path: Path, offset: int = 0) -> Iterator[Line]:
    """Yield the complete lines from a byte offset on; a last line without its end is left out."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for raw in stream:
            if not raw.endswith(b"\n"):
                return
            end = offset + len(raw)
            yield Line(offset, end, _decode(raw))
            offset = end


def read_record_at(path: Path, offset: int, end: int) -> dict[str, JSON] | None:
    """Return the record between two byte offsets (as found by :func:`read_lines`)."""
    with path.open("rb") as stream:
        stream.seek(offset)
        return _decode(stream.read(end - offset))


def _decode(raw: bytes) -> dict[str, JSON] | None:
    if not raw.strip():
        return None
    try:
        record = json.loads(raw)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
