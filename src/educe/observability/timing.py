"""Where time goes: named spans drained into metrics, and timelines of a profile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol


class Spans:
    """Adds up seconds by name; safe to use from several threads.

        spans = Spans()
        with spans.measure("rollout"):
            ...
        recorder.record_metrics(MetricRow("rl", step, {**metrics, **spans.drain()}))

    A span inside another one is also part of the outer one's seconds; give it a name like
    ``rollout/score`` so that this can be seen.

    Args:
        clock: returns seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._depth = threading.local()
        self._owner = threading.get_ident()
        self._covered = 0.0
        self._drained_at = clock()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds spent in the block to ``name``, also when it raises."""
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        begin = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - begin
            self._depth.value = depth
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds
                if depth == 0 and threading.get_ident() == self._owner:
                    self._covered += seconds

    def add(self, name: str, seconds: float) -> None:
        """Add seconds measured elsewhere (another process)."""
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def drain(self) -> dict[str, float]:
        """Return and forget the seconds since the last call.

        Names are ``time/NAME_s``; ``time/step_s`` is the wall time between the two calls and
        ``time/other_s`` the part of it that no outermost span of the creating thread covered.
        """
        now = self._clock()
        with self._lock:
            total = now - self._drained_at
            drained = {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
            drained["time/step_s"] = total
            drained["time/other_s"] = max(0.0, total - self._covered)
            self._seconds, self._covered, self._drained_at = {}, 0.0, now
        return drained


class PhaseTimer(Protocol):
    """What the hot loops tell: which phase runs, and on how many rows or tokens."""

    def measure(self, name: str, size: int = 0) -> AbstractContextManager[None]: ...


class _Silent:
    """Measures nothing, at the price of a call."""

    def measure(self, name: str, size: int = 0) -> AbstractContextManager[None]:
        return _NOTHING


_NOTHING = nullcontext()
SILENT: PhaseTimer = _Silent()


class Phase(NamedTuple):
    """A stretch of time of one thread; seconds since the timeline's start."""

    name: str
    begin: float
    end: float
    size: int


class Timeline:
    """Keeps every phase in order. Phases do not nest; one thread writes."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self.phases: list[Phase] = []

    def now(self) -> float:
        """Return seconds since the start."""
        return self._clock() - self._start

    @contextmanager
    def measure(self, name: str, size: int = 0) -> Iterator[None]:
        begin = self.now()
        try:
            yield
        finally:
            self.phases.append(Phase(name, begin, self.now(), size))
