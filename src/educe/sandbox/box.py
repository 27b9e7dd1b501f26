"""The one door: ``open_sandbox`` and the ``Sandbox`` that every level stands behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol

from educe.core.types import JSON
from educe.sandbox.connection import Address
from educe.sandbox.contract import Job, JobError, Level, Limits, Network, Result, SandboxError
from educe.sandbox.embedded import EmbeddedBackend, SharedBackend
from educe.sandbox.host import require_runtime
from educe.sandbox.plain import run_plain
from educe.sandbox.sessions import Session

_KEPT_KEYS = 1024


class Backend(Protocol):
    """What a level implements. Must be callable from any thread."""

    level: Level

    def run_batch(self, jobs: Sequence[Job]) -> list[Result]: ...

    async def run_batch_async(self, jobs: Sequence[Job]) -> list[Result]: ...

    def stats(self) -> dict[str, JSON]: ...

    def close(self) -> None: ...


class PlainBackend:
    """Child processes with rlimits, two at a time."""

    level = Level.PLAIN

    def __init__(self, num_parallel: int = 2) -> None:
        self._pool = ThreadPoolExecutor(num_parallel, thread_name_prefix="educe-plain")
        self._lock = threading.Lock()
        self._by_key: OrderedDict[str, Future[Result]] = OrderedDict()

    def run_batch(self, jobs: Sequence[Job]) -> list[Result]:
        if len(jobs) == 1 and not jobs[0].idempotency_key:
            return [run_plain(jobs[0])]
        return [future.result() for future in [self._submit(job) for job in jobs]]

    def _submit(self, job: Job) -> Future[Result]:
        """Return the job's result to be; for a known key that of the first job with it."""
        if not job.idempotency_key:
            return self._pool.submit(run_plain, job)
        with self._lock:
            found = self._by_key.get(job.idempotency_key)
            if found is None:
                found = self._by_key[job.idempotency_key] = self._pool.submit(run_plain, job)
                while len(self._by_key) > _KEPT_KEYS:
                    self._by_key.popitem(last=False)
            return found

    async def run_batch_async(self, jobs: Sequence[Job]) -> list[Result]:
        return await asyncio.to_thread(self.run_batch, jobs)

    def stats(self) -> dict[str, JSON]:
        return {"pid": os.getpid(), "zygotes": [], "running": 0, "queued": 0, "ready": 0}

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class Sandbox:
    """Runs model-written programs in isolation. Close it, or use it as a context manager.

    Safe to use from several threads, from an asyncio loop and from processes forked later; a
    spawned worker opens its own or shares this one by its ``address``.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = False

    @property
    def level(self) -> Level:
        """What is enforced for every job of this sandbox."""
        return self._backend.level

    @property
    def facts(self) -> dict[str, JSON]:
        """How the level was reached: mode (root, user, confined), Landlock and cgroup versions."""
        return self._backend.facts if isinstance(self._backend, EmbeddedBackend) else {}

    @property
    def address(self) -> Address | None:
        """What a worker process needs to share this sandbox; None at the plain level."""
        return self._backend.address if isinstance(self._backend, EmbeddedBackend) else None

    def run(self, job: Job) -> Result:
        """Run one job to its end; never raises for anything the program does.

        Raises:
            JobError: when an argument of a call is not a builtin value.
            SandboxError: when the sandbox is closed, or this host lacks the job's runtime (a
                missing compiler is not the program's fault).
        """
        return self.run_batch([job])[0]

    def run_batch(self, jobs: Sequence[Job]) -> list[Result]:
        """Run jobs side by side; results come in the order of the jobs."""
        self._check(jobs)
        return self._backend.run_batch(jobs) if jobs else []

    def _check(self, jobs: Sequence[Job]) -> None:
        if self._closed:
            raise SandboxError("this sandbox is closed")
        for job in jobs:
            if not isinstance(job, Job):
                raise JobError(f"expected a Job, got {type(job).__name__}")
            require_runtime(job.runtime)

    async def run_async(self, job: Job) -> Result:
        """Like :meth:`run`, without blocking the event loop."""
        return (await self.run_batch_async([job]))[0]

    async def run_batch_async(self, jobs: Sequence[Job]) -> list[Result]:
        """Like :meth:`run_batch`, without blocking the event loop."""
        self._check(jobs)
        return await self._backend.run_batch_async(jobs) if jobs else []

    def open_session(
        self,
        *,
        runtime: str = "python",
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        network: Network = "none",
    ) -> Session:
        """Open a box that stays, with a Python and a shell.

        Args:
            limits: memory, disk and processes of the whole session; processor and wall seconds and
                output bytes of each turn.
            files: relative path to content, put there at the start.

        Raises:
            JobError: for files, limits or a runtime that no session can have.
            SandboxError: at the plain level, or when no box can be had.
        """
        self._check(())
        if not isinstance(self._backend, EmbeddedBackend):
            raise SandboxError("sessions need at least the level confined")
        job = Job(
            runtime=runtime,
            limits=limits or Limits(),
            files=files or {},
            env=env or {},
            network=network,
        )
        if not runtime.startswith("python"):
            raise JobError(
                f"a session is a Python with a shell beside it; its runtime must be python, "
                f"python-numpy or python-pytest, got {runtime!r}"
            )
        require_runtime(runtime)
        return Session(self._backend, job)

    async def open_session_async(self, **options: Any) -> Session:
        """Like :meth:`open_session`, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.open_session(**options))

    def stats(self) -> dict[str, JSON]:
        """Return counters: jobs running and queued, boxes ready, descriptors, memory."""
        return self._backend.stats()

    def ensure_alive(self) -> bool:
        """Start this sandbox's processes anew when they died, at the same address.

        The opener's own calls do this by themselves; this is for an opener whose sandbox others
        share. Returns whether it can take jobs; one who shares it can only look.
        """
        if self._closed:
            return False
        if isinstance(self._backend, EmbeddedBackend):
            return self._backend.ensure_alive()
        return True

    def close(self) -> None:
        """End all processes of this sandbox. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._backend.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_sandbox(
    level: Level | str | int | None = None,
    *,
    minimum: Level | str | int = Level.NAMESPACES,
    num_parallel: int = 0,
    address: Address | None = None,
) -> Sandbox:
    """Return a sandbox: the best this host can enforce, and never less than ``minimum``.

    Opening costs about a tenth of a second (a supervisor and a zygote are started); a worker
    process that is handed another sandbox's ``address`` shares its processes and pays nothing.

    Args:
        level: exactly this level; None takes the best.
        minimum: what must be enforced at least. Anything below ``namespaces`` keeps accidents in,
            not attackers, and must be asked for by name.
        num_parallel: jobs that run at once; 0 takes one per core.
        address: of a running sandbox of the same user (see ``Sandbox.address``).

    Raises:
        SandboxError: when this host cannot enforce the level.
        JobError: for an unknown level.
    """
    wanted = None if level is None else Level.parse(level)
    least = Level.parse(minimum)
    if address is not None:
        if address.level < (wanted or least):
            raise SandboxError(f"the shared sandbox has level {address.level.name.lower()}")
        return Sandbox(SharedBackend(address))
    if wanted is Level.PLAIN:
        return Sandbox(PlainBackend(num_parallel or 2))
    try:
        return Sandbox(EmbeddedBackend(level=wanted, minimum=least, num_parallel=num_parallel))
    except SandboxError:
        if wanted is None and least is Level.PLAIN:
            return Sandbox(PlainBackend(num_parallel or 2))
        raise
