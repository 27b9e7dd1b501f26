"""One recorder in front of several: the run store first, everything else as a guest.

The store's errors reach the loop (a full disk must stop the run). A guest (live view, W&B, …) that
fails is dropped for the rest of the run, which is recorded as an event: watching a run must never
be able to end it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from educe.core.protocols import MetricRow, Recorder
from educe.core.types import JSON
from educe.observability.alarms import AlarmWatch
from educe.observability.event_metrics import goal_row

_log = logging.getLogger("educe")


class TeeRecorder:
    """Passes each record to the store, then to the guests.

    Args:
        primary: the recorder that keeps things (the run store).
        guests: further recorders; closed by ``close`` when they can be.
        watch: looks at each metric row; what it raises is recorded as ``alarm`` events.
    """

    def __init__(self, primary: Recorder, *guests: Recorder, watch: AlarmWatch | None = None):
        self._primary = primary
        self._guests = list(guests)
        self._watch = watch

    def record_metrics(self, row: MetricRow) -> None:
        self._primary.record_metrics(row)
        self._tell_guests(lambda guest: guest.record_metrics(row))
        for alarm in self._watch.observe(row) if self._watch is not None else ():
            self.record_event("alarm", alarm.to_json())

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        self._primary.record_sample(stage, step, sample)
        self._tell_guests(lambda guest: guest.record_sample(stage, step, sample))

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        self._primary.record_event(kind, payload)
        self._tell_guests(lambda guest: guest.record_event(kind, payload))
        looked = goal_row(payload) if kind == "goal" else None
        if looked is not None:  # so that screen scores can be drawn and watched
            self.record_metrics(looked)

    def close(self) -> None:
        """Close the guests, not the store (its owner does, with the run's outcome)."""
        self._tell_guests(_close)
        self._guests = []

    def _tell_guests(self, tell: Callable[[Recorder], Any]) -> None:
        for guest in tuple(self._guests):
            try:
                tell(guest)
            except Exception as error:
                self._guests.remove(guest)
                self._report(guest, error)

    def _report(self, guest: Recorder, error: Exception) -> None:
        name = type(guest).__name__
        _log.warning("%s failed and is off for the rest of the run: %s", name, error)
        payload = {"sink": name, "error": f"{type(error).__name__}: {error}"}
        self._primary.record_event("sink_failed", payload)


def _close(guest: Recorder) -> None:
    close = getattr(guest, "close", None)
    if close is not None:
        close()
