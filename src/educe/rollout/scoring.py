"""Killable reward workers: every score and every tool reply runs where it can be killed.

A checker that hangs costs its worker for the limit, never the run and never a false 0. The clock
starts when a worker starts the job, not when it is queued. A worker that dies under a job gives the
job one more try in a fresh worker; after that the sample is unscored. Domains share the workers'
time (see ``job_queue``), and one spare worker serves who waits behind long jobs.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from educe.config.settings import DomainSettings
from educe.core.errors import InfrastructureError
from educe.core.types import JSON, Fault, Message, Task
from educe.rollout.executor import Job
from educe.rollout.framing import encode_frame
from educe.rollout.inline_scoring import require_domain
from educe.rollout.job_queue import JobQueue
from educe.rollout.outcomes import Operation, Outcome, failed, outcome_from_json
from educe.rollout.processes import WorkerProcess
from educe.rollout.supervisor import Supervisor
from educe.scheduling.resources import LONG_S, RunningJob

if TYPE_CHECKING:
    from educe.sandbox import Sandbox

_WORKER_MODULE = "educe.rollout.score_worker"
_MAX_ATTEMPTS = 2
_MAX_FAILED_STARTS = 3
_IDLE_S = 3600.0


class Scoring(Protocol):
    """Asynchronous scoring by key; keys are the caller's, unique among pending ones."""

    def submit_score(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None: ...

    def submit_respond(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None: ...

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Outcome]]:
        """Return what is finished, in order of completion; wait up to ``timeout_s`` for one."""
        ...

    def cancel(self, key: Hashable) -> None:
        """Forget a job: ``poll`` will not return it. Unknown keys are ignored."""
        ...

    @property
    def num_pending(self) -> int:
        """Jobs submitted and neither returned by ``poll`` nor cancelled."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Order:
    """A job on its way through the pool."""

    key: Hashable
    operation: Operation
    domain: str
    frame: bytes
    num_attempts: int = 0


class _Phase(Enum):
    STARTING = auto()
    IDLE = auto()
    LOADING = auto()
    RUNNING = auto()


@dataclass(slots=True)
class _Slot:
    """What one worker is doing, since when and until when at most, on the monotonic clock."""

    worker: WorkerProcess
    phase: _Phase
    deadline: float
    order: _Order | None = None
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class _PoolSettings:
    setup_frame: bytes
    num_workers: int
    timeout_s: float
    load_timeout_s: float
    log_path: Path | None
    sandbox: Sandbox | None


class _PoolRoom:
    """The live part of a pool: queue, slots, results. All of it guarded by the condition."""

    def __init__(self, settings: _PoolSettings) -> None:
        self._settings = settings
        self._queue: JobQueue[_Order] = JobQueue()
        self._slots: dict[int, _Slot] = {}
        self._num_failed_starts = 0
        self._num_wanted = 0
        self.pid = os.getpid()
        self.pending: dict[Hashable, _Order] = {}
        self.results: dict[Hashable, Outcome] = {}  # in order of completion
        self.broken: InfrastructureError | None = None
        self.supervisor = Supervisor(self, name="scoring-pool")
        self.supervisor.start()

    def submit(self, order: _Order) -> None:
        with self.supervisor.condition:
            if self.broken is not None:
                raise self.broken
            if order.key in self.pending:
                raise ValueError(f"a job with the key {order.key!r} is pending already")
            self.pending[order.key] = order
            self._queue.add(order)
        self.supervisor.wake()

    def poll(self, timeout_s: float) -> list[tuple[Hashable, Outcome]]:
        condition = self.supervisor.condition
        with condition:
            condition.wait_for(
                lambda: self.results or self.broken or not self.pending, timeout=timeout_s
            )
            found = list(self.results.items())
            self.results.clear()
            for key, _ in found:
                del self.pending[key]
            if not found and self.broken is not None:
                raise self.broken
            return found

    def cancel(self, key: Hashable) -> None:
        """A running job goes on to its end or limit; its outcome is not delivered."""
        with self.supervisor.condition:
            order = self.pending.pop(key, None)
            self.results.pop(key, None)
            if order is not None:
                self._queue.discard(order)
            self.supervisor.condition.notify_all()

    def end(self) -> None:
        """Stop the workers; in a fork they are the parent's, and nothing is done."""
        if self.pid == os.getpid():
            self.supervisor.close()

    def seconds_a_job(self) -> dict[str, float]:
        with self.supervisor.condition:
            return dict(self._queue.fair.seconds_a_job)

    def worker_pids(self) -> list[int]:
        with self.supervisor.condition:
            return [w.pid for w in self.supervisor.workers]

    # The supervisor's calls

    def on_message(self, worker: WorkerProcess, message: dict[str, JSON]) -> None:
        slot = self._slots[worker.pid]
        try:
            self._take_message(slot, message)
        except (KeyError, TypeError, ValueError) as error:
            # Only foreign code that got hold of the channel writes such a thing.
            self._discard(slot)
            reason = f"the worker sent no valid answer: {type(error).__name__}: {error}"
            self._try_again(slot, Fault.INFRASTRUCTURE, reason)

    def _take_message(self, slot: _Slot, message: dict[str, JSON]) -> None:
        match message["type"]:
            case "ready":
                self._num_failed_starts = 0
                slot.phase = _Phase.IDLE
            case "started":
                slot.phase, slot.since = _Phase.RUNNING, time.monotonic()
                slot.deadline = slot.since + self._settings.timeout_s
            case "done":
                self._finish(slot, outcome_from_json(message["outcome"]))
            case "retry":
                # The worker is spent (memory) or its surroundings are broken: take a fresh one.
                if self._settings.sandbox is not None:
                    self._settings.sandbox.ensure_alive()
                self._discard(slot)
                self._try_again(slot, Fault(message["fault"]), message["reason"])
            case other:
                raise ValueError(f"unknown message type {other!r}")

    def on_death(self, worker: WorkerProcess, how: str) -> None:
        slot = self._slots.pop(worker.pid)
        if slot.phase is _Phase.STARTING:
            self._failed_start(how)
        elif slot.order is None:
            self._num_wanted -= 1  # died for no reason of ours: not replaced before there is work
        else:
            doing = "loading the domain" if slot.phase is _Phase.LOADING else "running the job"
            reason = f"{slot.order.domain}: the reward worker died while {doing}: {how}"
            self._try_again(slot, Fault.INFRASTRUCTURE, reason)

    def on_tick(self, now: float) -> float:
        for slot in list(self._slots.values()):
            if slot.phase is not _Phase.IDLE and now >= slot.deadline:
                self._expire(slot)
        for slot in self._slots.values():
            if slot.phase is _Phase.IDLE and self._queue:
                order = self._next_order(now)
                if order is not None:
                    self._assign(slot, order, now)
        self._replenish(now)
        busy = [s for s in self._slots.values() if s.phase is not _Phase.IDLE]
        ticks = [s.deadline for s in busy]
        if self._queue:  # when a running job becomes a long one, a spare worker may be due
            ticks += [s.since + LONG_S for s in busy if s.since + LONG_S > now]
        return max(0.0, min(ticks) - time.monotonic()) if ticks else _IDLE_S

    def on_crash(self, error: BaseException) -> None:
        self.broken = InfrastructureError(
            f"the thread that supervises the reward workers failed: {type(error).__name__}: {error}"
        )

    # What follows from them

    def _running(self, now: float) -> list[RunningJob]:
        return [
            RunningJob(slot.order.domain, now - slot.since)
            for slot in self._slots.values()
            if slot.order is not None
        ]

    def _next_order(self, now: float) -> _Order | None:
        """Return the job for an idle worker; the worker beyond ``num_workers`` is the spare one."""
        running = self._running(now)
        if len(running) < self._settings.num_workers:
            return self._queue.take(running)
        return self._queue.take_spared(running)

    def _replenish(self, now: float) -> None:
        """Start workers: as many as the demand ever asked for, so a killed one is replaced."""
        num_starting = sum(s.phase is _Phase.STARTING for s in self._slots.values())
        demand = len(self._slots) + len(self._queue) - num_starting
        running = self._running(now)
        limit = self._settings.num_workers
        limit += len(running) >= limit and bool(self._queue.spared(running))
        self._num_wanted = max(self._num_wanted, min(limit, demand))
        while self.broken is None and len(self._slots) < self._num_wanted:
            worker = self.supervisor.spawn(_WORKER_MODULE, log_path=self._settings.log_path)
            deadline = now + self._settings.load_timeout_s
            self._slots[worker.pid] = _Slot(worker, _Phase.STARTING, deadline)
            self.supervisor.send(worker, self._settings.setup_frame)

    def _assign(self, slot: _Slot, order: _Order, now: float) -> None:
        order.num_attempts += 1
        slot.order, slot.phase, slot.since = order, _Phase.LOADING, now
        slot.deadline = now + self._settings.load_timeout_s
        self.supervisor.send(slot.worker, order.frame)

    def _finish(self, slot: _Slot, outcome: Outcome) -> None:
        order, slot.order, slot.phase = slot.order, None, _Phase.IDLE
        if order is not None:
            self._release(slot, order)
            self._deliver(order, outcome)

    def _release(self, slot: _Slot, order: _Order) -> None:
        """Charge the worker's time to the job's domain."""
        self._queue.done(order.domain, time.monotonic() - slot.since)

    def _deliver(self, order: _Order, outcome: Outcome) -> None:
        if self.pending.get(order.key) is order:  # else it was cancelled meanwhile
            self.results[order.key] = outcome
        self.supervisor.condition.notify_all()

    def _discard(self, slot: _Slot) -> None:
        del self._slots[slot.worker.pid]
        self.supervisor.kill(slot.worker)

    def _try_again(self, slot: _Slot, fault: Fault, reason: str) -> None:
        order, slot.order = slot.order, None
        if order is None:
            return
        self._release(slot, order)
        if self.pending.get(order.key) is not order:
            return
        if order.num_attempts < _MAX_ATTEMPTS:
            self._queue.add(order, is_again=True)
        else:
            reason = f"{reason} (tried {order.num_attempts} times)"
            self._deliver(order, failed(order.operation, fault, reason))

    def _expire(self, slot: _Slot) -> None:
        self._discard(slot)
        order, slot.order = slot.order, None
        if order is None:
            self._failed_start(f"not ready after {self._settings.load_timeout_s:g} s")
            return
        self._release(slot, order)
        if slot.phase is _Phase.LOADING:
            what = f"the domain did not load within {self._settings.load_timeout_s:g} s"
        else:
            what = f"{order.operation} did not finish within its limit of "
            what += f"{self._settings.timeout_s:g} s"
        reason = f"{order.domain}: {what}; its worker was killed"
        self._deliver(order, failed(order.operation, Fault.GRADER, reason))

    def _failed_start(self, how: str) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            where = self._settings.log_path or "the standard error above"
            self.broken = InfrastructureError(
                f"reward workers do not start ({self._num_failed_starts} in a row, last: {how}); "
                f"their own message is in {where}"
            )
            self.supervisor.condition.notify_all()


class ScoringPool:
    """Scores and environment replies in killable worker processes (see :class:`Scoring`).

    May be used from any thread, an asyncio loop (with ``timeout_s`` 0), a notebook or a forked
    process (which gets workers of its own). Workers start with the first job.

    Args:
        domains: settings of every domain by its full name (no globs).
        num_workers: processes; each runs one job at a time. One more is started when jobs of over
            half a second hold them all while other domains wait.
        timeout_s: wall-clock limit of one score or reply, from its start in the worker.
        sandbox: shared by all workers where it has an address; None lets each worker that runs
            code open its own.
        sandbox_minimum: least level of a sandbox that a worker opens or shares.
        memory_mb: address space of a worker; 0 is no limit.
        load_timeout_s: limit for starting a worker and for loading a domain in it.
        log_path: file for what workers print; None is our standard error.
    """

    def __init__(
        self,
        domains: Mapping[str, DomainSettings],
        *,
        num_workers: int = 1,
        timeout_s: float = 20.0,
        sandbox: Sandbox | None = None,
        sandbox_minimum: str = "namespaces",
        memory_mb: int = 4096,
        load_timeout_s: float = 120.0,
        log_path: Path | None = None,
    ) -> None:
        if num_workers < 1 or timeout_s <= 0 or load_timeout_s <= 0 or memory_mb < 0:
            raise ValueError(
                f"a scoring pool needs num_workers >= 1, positive limits and memory_mb >= 0, got "
                f"num_workers={num_workers}, timeout_s={timeout_s}, "
                f"load_timeout_s={load_timeout_s}, memory_mb={memory_mb}"
            )
        address = None if sandbox is None else sandbox.address
        setup = {
            "domains": {name: s.model_dump(mode="json") for name, s in domains.items()},
            "sandbox_minimum": sandbox_minimum,
            "sandbox_address": None if address is None else address.to_json(),
            "memory_mb": memory_mb,
        }
        self._domains = dict(domains)
        self._settings = _PoolSettings(
            encode_frame(setup), num_workers, timeout_s, load_timeout_s, log_path, sandbox
        )
        self._room: _PoolRoom | None = None
        self._is_closed = False

    def submit_score(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        """Queue ``domain.score``; ``poll`` will return ``(key, Score)``.

        Raises:
            DomainError: the pool does not know the task's domain.
            ValueError: a job with this key is pending.
            FrameError: the state or task holds something that is not JSON.
        """
        self._submit(key, Job(Operation.SCORE, task, state, tuple(transcript)))

    def submit_respond(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        """Queue ``domain.respond``; ``poll`` will return ``(key, Reply | ReplyFailure)``."""
        self._submit(key, Job(Operation.RESPOND, task, state, tuple(transcript)))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Outcome]]:
        """Return finished jobs in order of completion; wait up to ``timeout_s`` for the first.

        Raises:
            InfrastructureError: no worker can be started at all.
        """
        return [] if self._room is None else self._live().poll(timeout_s)

    def cancel(self, key: Hashable) -> None:
        """Forget a job: ``poll`` will not return it. Unknown keys are ignored."""
        if self._room is not None:
            self._live().cancel(key)

    @property
    def num_pending(self) -> int:
        return 0 if self._room is None else len(self._live().pending)

    def seconds_a_job(self) -> dict[str, float]:
        """Return the recent mean of what a score or reply of each domain took in a worker."""
        return {} if self._room is None else self._room.seconds_a_job()

    def worker_pids(self) -> list[int]:
        """Return the process ids of the current workers."""
        return [] if self._room is None else self._live().worker_pids()

    def close(self) -> None:
        """Kill the workers; pending jobs are dropped. May be called twice."""
        self._is_closed = True
        room, self._room = self._room, None
        if room is not None:
            room.end()

    def __enter__(self) -> ScoringPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, key: Hashable, job: Job) -> None:
        if self._is_closed:
            raise ValueError("this scoring pool is closed")
        require_domain(job.task.domain, self._domains)
        frame = encode_frame(job.to_json())
        self._live().submit(_Order(key, job.operation, job.task.domain, frame))

    def _live(self) -> _PoolRoom:
        """Return the room, a new one after a fork: workers and thread stayed with the parent."""
        if self._room is None or self._room.pid != os.getpid():
            self._room = _PoolRoom(self._settings)
            # Runs when the pool is forgotten and at exit, while threads can still be joined.
            weakref.finalize(self, self._room.end)
        return self._room
