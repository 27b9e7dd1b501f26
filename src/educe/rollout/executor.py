"""Calls a domain's ``score`` and ``respond`` and turns whatever happens into an outcome.

Runs inside a killable worker, or inline for tests and debugging. It cannot stop code that hangs;
that is the pool's part.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from educe.config.settings import DomainSettings
from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Fault, Message, Reply, Score, Task
from educe.rollout.framing import FrameError, to_text
from educe.rollout.outcomes import (
    MAX_REASON,
    Operation,
    Outcome,
    describe,
    failed,
    outcome_to_json,
)

_MAX_OUTCOME_BYTES = 64 * 2**20


class RetryableError(Exception):
    """Our side failed while a job ran; it deserves one more try in a fresh worker."""

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Job:
    """One call of a domain: everything that its answer may depend on."""

    operation: Operation
    task: Task
    state: JSON
    transcript: tuple[Message, ...]

    def to_json(self) -> dict[str, JSON]:
        return {
            "operation": str(self.operation),
            "task": self.task.to_json(),
            "state": self.state,
            "transcript": [m.to_json() for m in self.transcript],
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Job:
        return Job(
            Operation(raw["operation"]),
            Task.from_json(raw["task"]),
            raw["state"],
            tuple(Message.from_json(m) for m in raw["transcript"]),
        )


class LazySandbox:
    """Opens the sandbox when a scorer first touches it; forwards everything to it.

    Args:
        minimum: least level accepted (see ``educe.sandbox.open_sandbox``).
        address: JSON of a running sandbox to share; None opens one of this process.
    """

    def __init__(self, minimum: str, address: Mapping[str, JSON] | None = None) -> None:
        self._minimum, self._address = minimum, address
        self._opened: Any = None

    def open(self) -> Any:
        """Return the open sandbox.

        Raises:
            RetryableError: it cannot be opened here.
        """
        if self._opened is None:
            from educe.sandbox import open_sandbox
            from educe.sandbox.connection import Address

            try:
                shared = None if self._address is None else Address.from_json(self._address)
                self._opened = open_sandbox(minimum=self._minimum, address=shared)
            except Exception as error:
                reason = f"the sandbox did not open: {describe(error)}"
                raise RetryableError(Fault.INFRASTRUCTURE, reason) from error
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.open(), name)


class DomainExecutor:
    """Holds loaded domains and the services they may use."""

    def __init__(
        self,
        domains: Mapping[str, DomainSettings],
        *,
        sandbox_minimum: str = "namespaces",
        sandbox_address: Mapping[str, JSON] | None = None,
    ) -> None:
        self._settings = dict(domains)
        self._domains: dict[str, Domain] = {}
        self._sandbox = LazySandbox(sandbox_minimum, sandbox_address)
        self._services = Services(sandbox=self._sandbox)

    def prepare(self, name: str) -> None:
        """Load a domain, and the sandbox where it needs one; not part of a job's time.

        Raises:
            DomainError: the domain does not load.
            RetryableError: the sandbox does not open.
        """
        if name not in self._domains:
            from educe.domains.registry import load_domain

            self._domains[name] = load_domain(name, self._settings[name])
        if self._domains[name].spec.executes_code:
            self._sandbox.open()

    def execute(self, job: Job) -> Outcome:
        """Call the domain.

        Returns:
            Its score or reply, JSON-able; a failure when it raised or returned something else.

        Raises:
            RetryableError: the infrastructure failed, not the domain.
            MemoryError: for the worker to decide (it may have been used up by earlier jobs).
        """
        name = job.task.domain
        try:
            self.prepare(name)
            return self._checked(job, self._call(self._domains[name], job))
        except (RetryableError, MemoryError):
            raise
        except InfrastructureError as error:
            raise RetryableError(Fault.INFRASTRUCTURE, f"{name}: {error}") from error
        except UnscoredError as error:
            return failed(job.operation, Fault.GRADER, f"{name}: {error}"[:MAX_REASON])
        except BaseException as error:  # user code may call sys.exit() too
            return failed(job.operation, Fault.GRADER, f"{name}: {describe(error)}")

    def close(self) -> None:
        self._sandbox.close()

    def _call(self, domain: Domain, job: Job) -> Any:
        method = domain.score if job.operation is Operation.SCORE else domain.respond
        result: Any = method(job.task, job.state, job.transcript, self._services)
        return run_awaitable(result) if inspect.isawaitable(result) else result

    def _checked(self, job: Job, result: Any) -> Outcome:
        wanted = Score if job.operation is Operation.SCORE else Reply
        if not isinstance(result, wanted):
            reason = (
                f"{job.task.domain}: {job.operation} must return a {wanted.__name__}, "
                f"it returned {result!r:.200} ({type(result).__name__})"
            )
            return failed(job.operation, Fault.GRADER, reason)
        try:
            length = len(to_text(outcome_to_json(result)))
        except FrameError as error:
            reason = f"{job.task.domain}: the {wanted.__name__} cannot be kept: {error}"
            return failed(job.operation, Fault.GRADER, reason)
        if length > _MAX_OUTCOME_BYTES:
            reason = (
                f"{job.task.domain}: the {wanted.__name__} has {length} bytes, over the limit of "
                f"{_MAX_OUTCOME_BYTES}"
            )
            return failed(job.operation, Fault.GRADER, reason)
        return result


def run_awaitable(awaitable: Awaitable[Any]) -> Any:
    """Run an async reward to its end, also from inside a running event loop (a notebook)."""
    import asyncio  # brings in ssl and more; most workers never need it

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    box: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            box.append(asyncio.run(wait()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="async-reward", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return box[0]
