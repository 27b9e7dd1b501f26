"""Scoring without processes, for tests and debugging."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, did_you_mean
from educe.core.types import JSON, Fault, Message, Task
from educe.rollout.executor import DomainExecutor, Job, RetryableError
from educe.rollout.framing import to_text
from educe.rollout.outcomes import Operation, Outcome, failed


class InlineScoring:
    """The same interface without processes, for tests and debugging: jobs run in ``poll``.

    Nothing can be killed here: a scorer that hangs hangs the caller.
    """

    def __init__(
        self, domains: Mapping[str, DomainSettings], *, sandbox_minimum: str = "namespaces"
    ) -> None:
        self._domains = dict(domains)
        self._executor = DomainExecutor(domains, sandbox_minimum=sandbox_minimum)
        self._queue: dict[Hashable, Job] = {}

    def submit_score(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        self._submit(key, Job(Operation.SCORE, task, state, tuple(transcript)))

    def submit_respond(
        self, key: Hashable, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        self._submit(key, Job(Operation.RESPOND, task, state, tuple(transcript)))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Outcome]]:
        """Run everything that was submitted, in that order."""
        queue, self._queue = self._queue, {}
        return [(key, self._run(job)) for key, job in queue.items()]

    def cancel(self, key: Hashable) -> None:
        self._queue.pop(key, None)

    @property
    def num_pending(self) -> int:
        return len(self._queue)

    def close(self) -> None:
        self._queue.clear()
        self._executor.close()

    def _submit(self, key: Hashable, job: Job) -> None:
        require_domain(job.task.domain, self._domains)
        if key in self._queue:
            raise ValueError(f"a job with the key {key!r} is pending already")
        # Through JSON text, so that what a worker would not see is not seen here either.
        self._queue[key] = Job.from_json(json.loads(to_text(job.to_json())))

    def _run(self, job: Job) -> Outcome:
        try:
            return self._executor.execute(job)
        except RetryableError as error:
            return failed(job.operation, error.fault, error.reason)
        except MemoryError:
            return failed(job.operation, Fault.GRADER, f"{job.task.domain}: out of memory")


def require_domain(name: str, known: Mapping[str, DomainSettings]) -> None:
    """Raise DomainError when a task's domain is not among those that a scoring was made for."""
    if name not in known:
        raise DomainError(
            f"the task belongs to the domain {name!r}, which this scoring was not set up for."
            + did_you_mean(name, known)
        )
