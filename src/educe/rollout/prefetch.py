"""Things made ahead of being asked for, in N processes; who asks decides the order.

An *order* is JSON, and what is made of it is a function of the order alone: so nothing that is
taken depends on how many processes there are, which of them made it, or what was ordered in vain.
A process that dies takes things of unknown state with it: the next ``take`` says so and ends.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from educe.core.errors import DomainError, EduceError, InfrastructureError
from educe.core.types import JSON, Split, Task, TaskRequest
from educe.rollout.framing import encode_frame, to_text
from educe.rollout.processes import WorkerProcess
from educe.rollout.supervisor import Supervisor

_WORKER_MODULE = "educe.rollout.prefetch_worker"
# Orders that a worker has at once: the one it works on, and one that it need not wait for.
_IN_FLIGHT = 2
_IDLE_S = 3600.0
_WAIT_S = 1.0


@dataclass(slots=True)
class _Slot:
    worker: WorkerProcess
    is_ready: bool = False
    orders: list[str] = field(default_factory=list)
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a thing could not be made; raised where it is taken."""

    reason: str
    is_data: bool

    def error(self) -> EduceError:
        return DomainError(self.reason) if self.is_data else InfrastructureError(self.reason)


class _Room:
    """The live part: queue, slots, results. All of it guarded by the supervisor's condition."""

    def __init__(
        self, make: str, options: JSON, num_workers: int, limit: int, log_path: Path | None
    ) -> None:
        self._setup = encode_frame({"make": make, "options": options})
        self._num_workers = num_workers
        self._limit = limit
        self._log_path = log_path
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[str] = deque()
        # Made or being made; the longest unasked for leave when there are too many.
        self.known: OrderedDict[str, JSON | _Failure | None] = OrderedDict()
        self.broken: InfrastructureError | None = None
        self.supervisor = Supervisor(self, name="prefetch")
        self.supervisor.start()

    def expect(self, keys: Iterable[str]) -> None:
        with self.supervisor.condition:
            for key in keys:
                if key in self.known:
                    self.known.move_to_end(key)
                else:
                    self.known[key] = None
                    self._queue.append(key)
            while len(self.known) > self._limit:
                # What is made of it is dropped when it arrives.
                dropped, _ = self.known.popitem(last=False)
                if dropped in self._queue:
                    self._queue.remove(dropped)
        self.supervisor.wake()

    def take(self, key: str) -> JSON:
        condition = self.supervisor.condition
        with condition:
            if key not in self.known:
                self.known[key] = None
                self._queue.appendleft(key)
                self.supervisor.wake()
            while self.broken is None and self.known[key] is None:
                condition.wait(_WAIT_S)
            made = self.known.pop(key)
            if made is None:
                assert self.broken is not None
                raise self.broken
        if isinstance(made, _Failure):
            raise made.error()
        return made

    def pids(self) -> list[int]:
        with self.supervisor.condition:
            return list(self._slots)

    # The supervisor's calls

    def on_message(self, worker: WorkerProcess, message: dict[str, JSON]) -> None:
        slot = self._slots[worker.pid]
        match message["type"]:
            case "ready":
                slot.is_ready = True
            case "last_words":
                slot.last_words = str(message["reason"])
            case _:
                key = slot.orders.pop(0)
                if key in self.known:
                    is_made = message["type"] == "made"
                    self.known[key] = (
                        {"made": message["made"]}
                        if is_made
                        else _Failure(str(message["reason"]), bool(message["is_data"]))
                    )
                    self.supervisor.condition.notify_all()
        self._dispatch()

    def on_death(self, worker: WorkerProcess, how: str) -> None:
        slot = self._slots.pop(worker.pid)
        doing = f" while it made {slot.orders[0][:120]}" if slot.orders else ""
        where = self._log_path or "the standard error above"
        why = slot.last_words or f"{how}{doing}"
        self.broken = InfrastructureError(
            f"a process of [prefetch] (pid {worker.pid}) ended: {why}. Its own messages are in "
            f"{where}; continue the run with --resume, or set prefetch.workers = 0 to make tasks "
            f"in the trainer's process"
        )
        self.supervisor.condition.notify_all()

    def on_tick(self, now: float) -> float:
        while self.broken is None and len(self._slots) < self._num_workers:
            worker = self.supervisor.spawn(_WORKER_MODULE, log_path=self._log_path)
            self._slots[worker.pid] = _Slot(worker)
            self.supervisor.send(worker, self._setup)
        self._dispatch()
        return _IDLE_S

    def on_crash(self, error: BaseException) -> None:
        self.broken = InfrastructureError(
            f"the thread that watches the processes of [prefetch] failed: "
            f"{type(error).__name__}: {error}"
        )

    def _dispatch(self) -> None:
        while self._queue:
            free = [s for s in self._slots.values() if s.is_ready]
            slot = min(free, key=lambda s: len(s.orders), default=None)
            if slot is None or len(slot.orders) >= _IN_FLIGHT:
                return
            key = self._queue.popleft()
            slot.orders.append(key)
            self.supervisor.send(slot.worker, encode_frame({"order": key}))


class Prefetch:
    """A pool of processes that make things of orders.

    Args:
        make: ``module:function`` of a factory; given ``options`` in each process, it returns a pure
            function from an order to what is made of it, both JSON.
        num_workers: processes.
        ahead: things that are made before they are asked for, at most.
        log_path: file that collects the processes' own output; None is our standard error.
    """

    def __init__(
        self,
        make: str,
        options: JSON,
        *,
        num_workers: int,
        ahead: int,
        log_path: Path | None = None,
    ) -> None:
        self.ahead = ahead
        # Room for what was expected in vain beside what is expected now.
        limit = 2 * ahead + 1
        self._room = _Room(make, options, num_workers, limit, log_path)
        self._close = weakref.finalize(self, self._room.supervisor.close)

    def expect(self, orders: Iterable[JSON]) -> None:
        """Say what will be asked for next, soonest first; the first ``ahead`` of it are made."""
        self._room.expect([to_text(o) for _, o in zip(range(self.ahead), orders, strict=False)])

    def take(self, order: JSON) -> JSON:
        """Return what is made of an order, waiting for it if need be.

        Raises:
            DomainError: the data of this order is wrong.
            InfrastructureError: a process died, or failed in another way.
        """
        made = self._room.take(to_text(order))
        return made["made"]

    def pids(self) -> list[int]:
        """Return the process ids of the workers that live."""
        return self._room.pids()

    def close(self) -> None:
        """End the processes. May be called twice."""
        self._close()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TaskMaker(Protocol):
    """Where a runner's tasks come from."""

    def expect(self, requests: Sequence[TaskRequest]) -> None:
        """Say which requests come next."""
        ...

    def take(self, request: TaskRequest) -> tuple[Task, tuple[int, ...]]:
        """Return a request's task and the tokens of its own messages."""
        ...

    def rest(self, requests: Sequence[TaskRequest]) -> None:
        """Say that these are done and others, not known yet, will follow."""
        ...


class PreparedTasks:
    """Tasks and the tokens of their prompts, made ahead.

    After a batch the tasks that follow it in each domain are made, while the trainer steps: which
    ones are wanted is not known before the next batch is issued, but most often it is these.
    """

    def __init__(self, prefetch: Prefetch) -> None:
        self._prefetch = prefetch
        self._coming: deque[JSON] = deque()

    def expect(self, requests: Sequence[TaskRequest]) -> None:
        self._coming = deque(_order(r.domain, r.split, r.index) for r in requests)
        self._prefetch.expect(self._coming)

    def take(self, request: TaskRequest) -> tuple[Task, tuple[int, ...]]:
        order = _order(request.domain, request.split, request.index)
        with contextlib.suppress(ValueError):  # one that was submitted without notice
            self._coming.remove(order)
        # As one is taken, the next one behind the window is begun.
        self._prefetch.expect(itertools.chain([order], self._coming))
        made = self._prefetch.take(order)
        return Task.from_json(made["task"]), tuple(made["tokens"])

    def rest(self, requests: Sequence[TaskRequest]) -> None:
        last: dict[tuple[str, Split], list[int]] = {}
        for request in requests:
            last.setdefault((request.domain, request.split), []).append(request.index)
        self._prefetch.expect(
            _order(domain, split, max(indices) + 1 + place)
            for (domain, split), indices in last.items()
            if split is Split.TRAIN
            for place in range(len(indices))
        )


def _order(domain: str, split: Split, index: int) -> JSON:
    return {"task": [domain, str(split), index]}
