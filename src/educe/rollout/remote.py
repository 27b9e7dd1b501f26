"""Rollout workers in other processes: orders out, groups back, and no order lost with a worker.

The parent supervises: a worker that ends, falls silent or stops making progress is killed, and
what it had not delivered is given to others. The ledger learns of it in ``poll``, in the caller's
thread. A killed worker cannot deliver late, so no order comes back twice; the buffer would notice.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from educe.core.errors import InfrastructureError
from educe.core.types import JSON, Group, TaskRequest
from educe.rollout.framing import encode_frame
from educe.rollout.ledger import Ledger
from educe.rollout.processes import WorkerProcess
from educe.rollout.supervisor import Supervisor

_WORKER_MODULE = "educe.rollout.remote_worker"
_IDLE_S = 3600.0
# Deaths in a row without one finished group: it is not bad luck, and trying on would hide it.
_MAX_DEATHS_IN_VAIN = 3


@dataclass(slots=True)
class _Slot:
    """What the parent knows of one worker; times are on the monotonic clock."""

    worker: WorkerProcess
    started: float
    heard: float
    progressed: float
    is_ready: bool = False
    num_steps: int = -1
    version: int | None = None
    last_words: str = ""
    orders: dict[int, TaskRequest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Running:
    request_id: int


@dataclass(frozen=True, slots=True)
class _Lost:
    request_id: int


@dataclass(frozen=True, slots=True)
class _Finished:
    group: Group


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Limits of a fleet of rollout workers.

    Attributes:
        num_workers: processes.
        max_in_flight: orders that one worker holds at once.
        heartbeat_s: seconds between a worker's heartbeats.
        silence_limit_s: a worker not heard of for so long is killed.
        stall_limit_s: a worker with orders whose engine makes no step for so long is killed.
        start_limit_s: time to build the engine (load a model).
        log_path: file for what workers print; None is our standard error.
    """

    num_workers: int = 1
    max_in_flight: int = 8
    heartbeat_s: float = 1.0
    silence_limit_s: float = 30.0
    stall_limit_s: float = 600.0
    start_limit_s: float = 600.0
    log_path: Path | None = None


class _Fleet:
    """The live part: slots, queue and events, all guarded by the supervisor's condition."""

    def __init__(self, serve: str, options: JSON, settings: FleetSettings) -> None:
        self._settings = settings
        self._setup_frame = encode_frame(
            {"serve": serve, "options": options, "heartbeat_s": settings.heartbeat_s}
        )
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[TaskRequest] = deque()
        self._num_deaths_in_vain = 0
        self._publish_frame: bytes | None = None
        self.events: deque[_Running | _Lost | _Finished] = deque()
        self.broken: InfrastructureError | None = None
        self.outstanding: set[int] = set()
        self.supervisor = Supervisor(self, name="rollout-fleet")
        self.supervisor.start()

    def submit(self, request: TaskRequest) -> None:
        with self.supervisor.condition:
            if self.broken is not None:
                raise self.broken
            if request.request_id in self.outstanding:
                raise ValueError(f"order {request.request_id} is with the workers already")
            self.outstanding.add(request.request_id)
            self._queue.append(request)
        self.supervisor.wake()

    def publish(self, version: int, weights: JSON) -> None:
        frame = encode_frame({"type": "publish", "version": version, "weights": weights})
        with self.supervisor.condition:
            self._publish_frame = frame
            for slot in self._slots.values():
                if slot.is_ready:
                    self.supervisor.send(slot.worker, frame)
        self.supervisor.wake()

    def take_events(self, timeout_s: float) -> list[_Running | _Lost | _Finished]:
        """Return all events; wait for a finished group, a failure or the time-out."""

        def is_worth_waking() -> bool:
            if self.broken is not None or not self.outstanding:
                return True
            return any(isinstance(e, _Finished) for e in self.events)

        with self.supervisor.condition:
            self.supervisor.condition.wait_for(is_worth_waking, timeout=timeout_s)
            events = list(self.events)
            self.events.clear()
            return events

    def worker_versions(self) -> dict[int, int | None]:
        with self.supervisor.condition:
            return {pid: slot.version for pid, slot in self._slots.items()}

    # The supervisor's calls

    def on_message(self, worker: WorkerProcess, message: dict[str, JSON]) -> None:
        slot = self._slots[worker.pid]
        slot.heard = time.monotonic()
        try:
            self._take_message(slot, message)
        except (KeyError, TypeError, ValueError) as error:
            self._bury(slot, f"sent no valid message: {type(error).__name__}: {error}")

    def _take_message(self, slot: _Slot, message: dict[str, JSON]) -> None:
        match message["type"]:
            case "beat":
                if message["num_steps"] != slot.num_steps or not slot.orders:
                    slot.num_steps, slot.progressed = message["num_steps"], slot.heard
            case "ready":
                slot.is_ready, slot.progressed = True, slot.heard
                if self._publish_frame is not None:
                    self.supervisor.send(slot.worker, self._publish_frame)
            case "published":
                slot.version = message["version"]
            case "group":
                self._take_group(slot, Group.from_json(message["group"]))
            case "error":
                slot.last_words = message["reason"]
            case other:
                raise ValueError(f"unknown message type {other!r}")

    def _take_group(self, slot: _Slot, group: Group) -> None:
        request_id = group.request.request_id
        if slot.orders.get(request_id) != group.request:
            raise ValueError(f"a group for order {request_id}, which it does not have")
        del slot.orders[request_id]
        self.outstanding.discard(request_id)
        self._num_deaths_in_vain = 0
        self.events.append(_Finished(group))
        self.supervisor.condition.notify_all()

    def on_death(self, worker: WorkerProcess, how: str) -> None:
        slot = self._slots[worker.pid]
        self._lose(slot, slot.last_words or how)

    def on_tick(self, now: float) -> float:
        for slot in list(self._slots.values()):
            why = self._overdue(slot, now)
            if why:
                self._bury(slot, why)
        while self.broken is None and len(self._slots) < self._settings.num_workers:
            self._add_worker(now)
        self._dispatch(now)
        return self._settings.heartbeat_s if self._slots else _IDLE_S

    def on_crash(self, error: BaseException) -> None:
        self.broken = InfrastructureError(
            f"the thread that supervises the rollout workers failed: "
            f"{type(error).__name__}: {error}"
        )

    # What follows from them

    def _overdue(self, slot: _Slot, now: float) -> str:
        limits = self._settings
        if now - slot.heard > limits.silence_limit_s:
            return f"was silent for {limits.silence_limit_s:g} s"
        if not slot.is_ready and now - slot.started > limits.start_limit_s:
            return f"was not ready after {limits.start_limit_s:g} s"
        if slot.orders and now - slot.progressed > limits.stall_limit_s:
            return f"made no step for {limits.stall_limit_s:g} s"
        return ""

    def _add_worker(self, now: float) -> None:
        worker = self.supervisor.spawn(
            _WORKER_MODULE, log_path=self._settings.log_path, single_threaded=False
        )
        self._slots[worker.pid] = _Slot(worker, started=now, heard=now, progressed=now)
        self.supervisor.send(worker, self._setup_frame)

    def _dispatch(self, now: float) -> None:
        """Give the oldest orders to the workers that have the fewest."""
        while self._queue:
            free = [s for s in self._slots.values() if s.is_ready]
            slot = min(free, key=lambda s: len(s.orders), default=None)
            if slot is None or len(slot.orders) >= self._settings.max_in_flight:
                return
            request = self._queue.popleft()
            if not slot.orders:
                slot.progressed = now
            slot.orders[request.request_id] = request
            self.events.append(_Running(request.request_id))
            frame = encode_frame({"type": "request", "request": request.to_json()})
            self.supervisor.send(slot.worker, frame)

    def _bury(self, slot: _Slot, why: str) -> None:
        self.supervisor.kill(slot.worker)
        self._lose(slot, why)

    def _lose(self, slot: _Slot, why: str) -> None:
        del self._slots[slot.worker.pid]
        for request in reversed(slot.orders.values()):  # back to the front, in their old order
            self._queue.appendleft(request)
        self.events.extend(_Lost(request_id) for request_id in slot.orders)
        self._num_deaths_in_vain += 1
        if self._num_deaths_in_vain >= _MAX_DEATHS_IN_VAIN * self._settings.num_workers:
            where = self._settings.log_path or "the standard error above"
            self.broken = InfrastructureError(
                f"{self._num_deaths_in_vain} rollout workers in a row ended without finishing one "
                f"group; the last one: {why}. Their own messages are in {where}"
            )
            self.supervisor.condition.notify_all()


class RemoteRollout:
    """Runs orders in worker processes that each have an engine of their own.

    Args:
        serve: ``module:function`` of a factory (see ``remote_worker.GroupServer``); it is given
            ``options`` in the worker.
        options: JSON for the factory, e.g. the model's folder.
        ledger: told which orders run and which were lost.
        settings: limits.
    """

    def __init__(
        self,
        serve: str,
        options: JSON,
        *,
        ledger: Ledger,
        settings: FleetSettings | None = None,
    ) -> None:
        self._ledger = ledger
        self._fleet = _Fleet(serve, options, settings or FleetSettings())
        self._close = weakref.finalize(self, self._fleet.supervisor.close)

    def submit(self, request: TaskRequest) -> None:
        """Queue an order that the ledger has issued.

        Raises:
            ValueError: it is with the workers already.
            InfrastructureError: workers keep dying.
        """
        self._fleet.submit(request)

    def publish(self, version: int, weights: JSON = None) -> None:
        """Tell all workers, and those still to come, of new weights.

        Each worker takes them up between two steps; ``worker_versions`` says which have.
        """
        self._fleet.publish(version, weights)

    def poll(self, timeout_s: float = 0.0) -> list[Group]:
        """Bring the ledger up to date and return finished groups, for ``GroupBuffer.add``.

        Waits up to ``timeout_s`` for the first; returns at once when nothing is outstanding.

        Raises:
            InfrastructureError: workers keep dying without finishing anything.
        """
        groups: list[Group] = []
        for event in self._fleet.take_events(timeout_s):
            match event:
                case _Running(request_id):
                    self._ledger.mark_running(request_id)
                case _Lost(request_id):
                    self._ledger.mark_lost(request_id)
                case _Finished(group):
                    groups.append(group)
        if not groups and self._fleet.broken is not None:
            raise self._fleet.broken
        return groups

    @property
    def num_outstanding(self) -> int:
        """Orders submitted and not yet finished."""
        return len(self._fleet.outstanding)

    def worker_versions(self) -> dict[int, int | None]:
        """Return the policy version that each worker (by process id) has taken up."""
        return self._fleet.worker_versions()

    def close(self) -> None:
        """End the workers; unfinished orders stay open in the ledger. May be called twice."""
        self._close()

    def __enter__(self) -> RemoteRollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
