"""What happened in a run: written once by the loops, read by everything else.

The run store (:mod:`.run_store`) is the record; the live view, the sinks and the exporters are
copies of it, and alarms are pure functions of its metrics. Nothing here imports torch.
"""

from educe.observability.alarms import Alarm, AlarmLimits, AlarmWatch
from educe.observability.run_reader import (
    RunInfo,
    RunReader,
    SampleFilter,
    StoredEvent,
    StoredSample,
)
from educe.observability.run_store import RunStore
from educe.observability.tee import TeeRecorder
from educe.observability.timing import Spans

__all__ = [
    "Alarm",
    "AlarmLimits",
    "AlarmWatch",
    "RunInfo",
    "RunReader",
    "RunStore",
    "SampleFilter",
    "Spans",
    "StoredEvent",
    "StoredSample",
    "TeeRecorder",
]
