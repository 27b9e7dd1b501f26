"""Everything that records a run, put together: the store, the live view, the sinks, the alarms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TextIO

from educe.observability.alarms import AlarmLimits, AlarmWatch
from educe.observability.live import LiveView
from educe.observability.run_store import RunStore
from educe.observability.sinks import open_sinks
from educe.observability.tee import TeeRecorder


@contextmanager
def recording(
    store: RunStore,
    *,
    sinks: Sequence[str] = (),
    stream: TextIO | None = None,
    is_quiet: bool = False,
    limits: AlarmLimits | None = None,
) -> Iterator[TeeRecorder]:
    """Yield the recorder of a run; at the end close all of it, the store with the outcome.

        with recording(RunStore.create(folder, recipe), sinks=recipe.run.sinks) as recorder:
            ...

    Args:
        sinks: names of ``run.sinks``.
        stream: where the live view writes; stdout by default.
        is_quiet: no live view.
        limits: thresholds of the alarms.

    Raises what ``open_sinks`` raises; then nothing was started.
    """
    with ExitStack() as stack:
        stack.enter_context(store)
        guests = open_sinks(sinks, store)
        if not is_quiet:
            guests.append(LiveView(stream))
        tee = TeeRecorder(store, *guests, watch=AlarmWatch(limits))
        stack.callback(tee.close)
        yield tee
