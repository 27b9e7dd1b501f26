"""One daemon thread that watches worker processes: messages, deaths, time.

It exists so that a hung worker is killed, and the next job handed out, while the trainer computes
or sleeps and nobody polls. It sets no signal handlers and forks nothing, so it works from any
thread, in notebooks and beside an asyncio loop. What to do about events is the handler's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from pathlib import Path
from typing import Protocol

from educe.core.types import JSON
from educe.rollout.processes import WorkerProcess

# A worker's death normally shows as a closed channel at once. Only if a stray grandchild holds the
# channel open does it take this long to be noticed.
_LIVENESS_S = 1.0
_GRACE_S = 0.3


class WorkerHandler(Protocol):
    """Called in the supervisor's thread, with its condition held; must not block."""

    def on_message(self, worker: WorkerProcess, message: dict[str, JSON]) -> None: ...

    def on_death(self, worker: WorkerProcess, how: str) -> None:
        """The worker ended by itself (or was killed by others); it is reaped already."""
        ...

    def on_tick(self, now: float) -> float:
        """Enforce deadlines and hand out work; return seconds until it wants the next tick."""
        ...

    def on_crash(self, error: BaseException) -> None:
        """The supervisor itself failed; no more calls will come."""
        ...


class Supervisor:
    """Owns worker processes and the thread that serves them.

    ``condition`` guards all state that handler and callers share; the handler notifies it.
    """

    def __init__(self, handler: WorkerHandler, *, name: str) -> None:
        self.condition = threading.Condition()
        self._handler = handler
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._workers: list[WorkerProcess] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        return tuple(self._workers)

    def spawn(
        self, module: str, *, log_path: Path | None = None, single_threaded: bool = True
    ) -> WorkerProcess:
        """Start a worker; call with the condition held."""
        worker = WorkerProcess(module, log_path=log_path, single_threaded=single_threaded)
        self._workers.append(worker)
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        return worker

    def send(self, worker: WorkerProcess, frame: bytes) -> None:
        """Send an encoded message without blocking; call with the condition held."""
        worker.send(frame)
        self._watch_writes(worker)

    def kill(self, worker: WorkerProcess) -> str:
        """Kill a worker at once and forget it; call with the condition held."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        return worker.kill()

    def wake(self) -> None:
        """Make the thread tick soon; may be called from anywhere."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b".")

    def close(self) -> None:
        """End the thread, which ends all workers. May be called twice, and from any thread."""
        with self.condition:
            self._is_closing = True
        self.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _release(self) -> None:
        """Let idle workers end by themselves for a moment (their sandboxes tidy up), then kill."""
        with self.condition:
            for worker in self._workers:
                worker.hang_up()
            until = time.monotonic() + _GRACE_S
            while time.monotonic() < until and not all(w.has_exited() for w in self._workers):
                time.sleep(0.01)
            for worker in list(self._workers):
                self.kill(worker)
            self._selector.close()
            wake_write, self._wake_write = self._wake_write, -1  # first, for a late wake()
            os.close(wake_write)
            os.close(self._wake_read)

    def _watch_writes(self, worker: WorkerProcess) -> None:
        events = selectors.EVENT_READ
        if worker.has_outgoing:
            events |= selectors.EVENT_WRITE
        self._selector.modify(worker.channel, events, worker)

    def _run(self) -> None:
        try:
            wait_s = 0.0
            while True:
                ready = self._selector.select(wait_s)
                with self.condition:
                    if self._is_closing:
                        return
                    for key, events in ready:
                        self._serve(key.data, events)
                    self._find_silent_deaths()
                    wait_s = self._handler.on_tick(time.monotonic())
                    if self._workers:
                        wait_s = min(wait_s, _LIVENESS_S)
        except BaseException as error:
            with self.condition:
                self._handler.on_crash(error)
                self.condition.notify_all()
        finally:
            self._release()

    def _serve(self, worker: WorkerProcess | None, events: int) -> None:
        if worker is None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            return
        if worker not in self._workers:
            return
        if events & selectors.EVENT_WRITE:
            worker.flush()
            self._watch_writes(worker)
        if events & selectors.EVENT_READ:
            self._read(worker)

    def _read(self, worker: WorkerProcess) -> bool:
        messages, is_connected = worker.receive()
        for message in messages:
            if worker in self._workers:
                self._handler.on_message(worker, message)
        if not is_connected and worker in self._workers:
            self._handler.on_death(worker, self.kill(worker))
        return is_connected

    def _find_silent_deaths(self) -> None:
        for worker in list(self._workers):
            # What it sent before it died still counts, so read before declaring it dead.
            if worker.has_exited() and self._read(worker) and worker in self._workers:
                self._handler.on_death(worker, self.kill(worker))
