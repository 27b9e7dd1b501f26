"""The journal of everything that cannot be computed again: tool replies, scores, admissions, costs.

Each nondeterministic input is written here *before* it is used. A resumed run starts from its
checkpoint and finds the inputs of the steps after it here, so it takes the same path again. Lines
of JSON, appended with one write each; a killed process loses nothing that it had recorded, a power
cut at most what came after the last ``sync``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from educe.core.errors import EduceError
from educe.core.types import JSON, Message, Task
from educe.rollout.executor import Job
from educe.rollout.framing import to_text
from educe.rollout.outcomes import Operation, Outcome, outcome_from_json, outcome_to_json
from educe.rollout.scoring import Scoring


class JournalError(EduceError):
    """A journal that is damaged, in use by another process, or contradicted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded input. ``step`` is the rollout batch that it belongs to."""

    key: str
    value: JSON
    step: int


@dataclass(frozen=True, slots=True)
class _Kept:
    step: int
    text: str  # the value's JSON: compact, and equal texts are equal values, NaN included


class Journal:
    """Append-only record of nondeterministic inputs by key, on disk.

    A torn last line (power cut, full disk) is ignored and cut off. Only one process may hold a
    journal; the lock goes with the process, also when it is killed.

    Args:
        path: the file; made with its folder when missing.

    Raises:
        JournalError: damaged in the middle (named by line), or held by another process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(path)
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._entries, self._size = _read_entries(path, self._fd)
            os.ftruncate(self._fd, self._size)
        except BaseException:
            self.close()
            raise
        self.num_replayed = 0
        self.num_recorded = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def lookup(self, key: str) -> Entry | None:
        """Return what was recorded under the key (a fresh copy), None when nothing was."""
        kept = self._entries.get(key)
        if kept is None:
            return None
        self.num_replayed += 1
        return Entry(key, json.loads(kept.text), kept.step)

    def record(self, key: str, value: JSON, *, step: int) -> None:
        """Append a value; when this returns, it survives the death of the process.

        Recording the same value again is fine and writes nothing.

        Raises:
            JournalError: the key holds another value: the run has left its recorded path.
            FrameError: the value is not JSON.
            OSError: the disk is full or gone; the journal stays as it was.
        """
        text = to_text(value)
        kept = self._entries.get(key)
        if kept is not None:
            if kept.text != text:
                raise JournalError(
                    f"{self.path}: {key!r} was recorded as {kept.text:.200} at step {kept.step}, "
                    f"and is now {text:.200} at step {step}; the run no longer follows its "
                    f"journal. Resume in 'fast' mode, or drop what came after the checkpoint "
                    f"(truncate_after)"
                )
            return
        self._append(_line(key, text, step))
        self._entries[key] = _Kept(step, text)
        self.num_recorded += 1

    def once(self, key: str, compute: Callable[[], JSON], *, step: int) -> JSON:
        """Return the recorded value, or compute and record it first."""
        entry = self.lookup(key)
        if entry is None:
            self.record(key, compute(), step=step)
            entry = Entry(key, json.loads(self._entries[key].text), step)
        return entry.value

    def truncate_before(self, step: int) -> None:
        """Forget entries of steps below ``step``: compaction, once a checkpoint covers them.

        Keep those since the oldest checkpoint from which the run may still be resumed.
        """
        self._rewrite({k: e for k, e in self._entries.items() if e.step >= step})

    def truncate_after(self, step: int) -> None:
        """Forget entries of steps above ``step``: when a resumed run shall go its own way."""
        self._rewrite({k: e for k, e in self._entries.items() if e.step <= step})

    def sync(self) -> None:
        """Make all records survive a power cut; call it before a checkpoint counts as written."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Release the file and its lock. May be called twice."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        try:
            written = 0
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            # Half a line in the middle would damage what is appended later.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def _rewrite(self, entries: dict[str, _Kept]) -> None:
        """Write beside, sync, rename: at any moment the old or the new file is whole."""
        if len(entries) == len(self._entries):
            return
        beside = self.path.with_name(self.path.name + ".new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        fd = os.open(beside, flags, 0o644)
        size = 0
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                for key, kept in entries.items():
                    size += file.write(_line(key, kept.text, kept.step))
            os.fsync(fd)
            beside.replace(self.path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._size, self._entries = fd, size, entries
        sync_folder(self.path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames within a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _line(key: str, text: str, step: int) -> bytes:
    return f'{{"key":{json.dumps(key)},"step":{step},"value":{text}}}\n'.encode()


def _read_entries(path: Path, fd: int) -> tuple[dict[str, _Kept], int]:
    """Return the entries and the length of the part of the file that is whole."""
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        data = file.read()
    entries: dict[str, _Kept] = {}
    good = 0
    bad_line: int | None = None
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        raw = _parse(line)
        if raw is None:
            bad_line = bad_line or number
            continue
        if bad_line is not None:
            raise JournalError(
                f"{path}:{bad_line}: this line is damaged and good ones follow, so it was not "
                f"torn by a crash; restore the file or delete it and resume in 'fast' mode"
            )
        kept = _Kept(raw["step"], to_text(raw["value"]))
        previous = entries.setdefault(raw["key"], kept)
        if previous.text != kept.text:
            raise JournalError(f"{path}:{number}: {raw['key']!r} appears with two values")
        good += len(line) + 1
    return entries, good


def _parse(line: bytes) -> dict[str, JSON] | None:
    try:
        raw = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(raw, dict) and raw.keys() == {"key", "step", "value"}
    return raw if is_whole else None


def _take_lock(path: Path) -> int:
    """Lock a file beside the journal (which is replaced by compaction) until this process ends."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # A record lock, not flock: a forked child must not keep it after this process's death.
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise JournalError(
            f"{path} is in use by another process; end that run first (two runs cannot share a "
            f"run folder)"
        ) from error
    return fd


class JournalledScoring:
    """A scoring that asks the journal first and records each outcome before handing it out.

    The journal's key is the caller's key and a digest of everything the outcome may depend on, so
    a resumed run that sampled another text is scored anew instead of getting a stranger's score.

    Args:
        scoring: does the work.
        journal: where outcomes are looked up and recorded.
        step: the rollout batch that new records belong to; set it as the run goes on.
    """

    def __init__(self, scoring: Scoring, journal: Journal, *, step: int = 0) -> None:
        self._scoring = scoring
        self._journal = journal
        self._ready: dict[Hashable, Outcome] = {}
        self._open: dict[Hashable, tuple[str, int]] = {}
        self.step = step

    @property
    def inner(self) -> Scoring:
        """The scoring that does the work."""
        return self._scoring

    def submit_score(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        if not self._replay(key, Job(Operation.SCORE, task, state, tuple(transcript))):
            self._scoring.submit_score(key, task, state, transcript)

    def submit_respond(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        if not self._replay(key, Job(Operation.RESPOND, task, state, tuple(transcript))):
            self._scoring.submit_respond(key, task, state, transcript)

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Outcome]]:
        """Return replayed outcomes at once, then what the inner scoring finished."""
        found = list(self._ready.items())
        self._ready.clear()
        for key, outcome in self._scoring.poll(0.0 if found else timeout_s):
            journal_key, step = self._open.pop(key)
            self._journal.record(journal_key, outcome_to_json(outcome), step=step)
            found.append((key, outcome))
        return found

    def cancel(self, key: Hashable) -> None:
        """Forget a job; its outcome, which nothing has used, is not recorded."""
        self._ready.pop(key, None)
        if self._open.pop(key, None) is not None:
            self._scoring.cancel(key)

    @property
    def num_pending(self) -> int:
        return len(self._ready) + self._scoring.num_pending

    def close(self) -> None:
        """Close the inner scoring; the journal stays its owner's."""
        self._scoring.close()

    def _replay(self, key: Hashable, job: Job) -> bool:
        if not isinstance(key, str):
            raise TypeError(f"a journalled job's key must be text, got {key!r}")
        if key in self._open or key in self._ready:
            raise ValueError(f"a job with the key {key!r} is pending already")
        digest = hashlib.blake2b(to_text(job.to_json()).encode(), digest_size=12).hexdigest()
        journal_key = f"{job.operation}/{key}#{digest}"
        entry = self._journal.lookup(journal_key)
        if entry is None:
            self._open[key] = (journal_key, self.step)
            return False
        self._ready[key] = outcome_from_json(entry.value)
        return True
