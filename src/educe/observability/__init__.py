"""What happened in a run: written once by the loops, read by everything else.

The run store (:mod:`.run_store`) is the record; the live view, the sinks and the exporters are
copies of it, and alarms are pure functions of its metrics. Nothing here imports torch.
"""

from educe.observability.alarms import Alarm, AlarmLimits, AlarmWatch
from educe.observability.run_store import RunInfo, RunStore, StoredEvent, StoredSample
from educe.observability.tee import TeeRecorder
from educe.observability.timing import Spans

__all__ = [
    "Alarm",
    "AlarmLimits",
    "AlarmWatch",
    "RunInfo",
    "RunStore",
    "Spans",
    "StoredEvent",
    "StoredSample",
    "TeeRecorder",
]
