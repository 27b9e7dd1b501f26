"""One killable reward worker: ``python -m educe.rollout.score_worker`` (started by ScoringPool).

Reads jobs from its channel, one at a time, and answers ``ready``, ``started`` (the deadline counts
from there: loading a domain is not the job's time) and ``done`` or ``retry``. Scorers run in the
main thread, so rewards that set alarms (math-verify) work as they do in a script.
"""

from __future__ import annotations

import socket
import sys

from educe.config.settings import DomainSettings
from educe.core.types import JSON, Fault
from educe.rollout.executor import DomainExecutor, Job, RetryableError
from educe.rollout.framing import encode_frame, read_frame
from educe.rollout.lifeline import WorkerArguments, become_worker, limit_memory
from educe.rollout.outcomes import describe, failed, outcome_to_json


def main() -> None:
    channel = become_worker(WorkerArguments.from_argv(sys.argv[1:]))
    setup = read_frame(channel)
    if setup is None:
        return
    limit_memory(setup["memory_mb"])
    executor = DomainExecutor(
        {name: DomainSettings(**raw) for name, raw in setup["domains"].items()},
        sandbox_minimum=setup["sandbox_minimum"],
        sandbox_address=setup["sandbox_address"],
    )
    channel.sendall(encode_frame({"type": "ready"}))
    try:
        while (message := read_frame(channel)) is not None:
            answer = _work(channel, executor, message)
            channel.sendall(encode_frame(answer))
    finally:
        executor.close()


def _work(
    channel: socket.socket, executor: DomainExecutor, message: dict[str, JSON]
) -> dict[str, JSON]:
    job = Job.from_json(message)
    name = job.task.domain
    try:
        executor.prepare(name)
    except RetryableError as error:
        return _retry(error.fault, error.reason)
    except MemoryError:
        return _retry(Fault.GRADER, f"{name}: memory limit reached while loading")
    except BaseException as error:
        reason = f"{name}: the domain does not load in a reward worker: {describe(error)}"
        outcome = failed(job.operation, Fault.GRADER, reason)
        return {"type": "done", "outcome": outcome_to_json(outcome)}
    channel.sendall(encode_frame({"type": "started"}))
    try:
        outcome = executor.execute(job)
    except RetryableError as error:
        return _retry(error.fault, error.reason)
    except MemoryError:
        return _retry(Fault.GRADER, f"{name}: {job.operation} reached the memory limit")
    return {"type": "done", "outcome": outcome_to_json(outcome)}


def _retry(fault: Fault, reason: str) -> dict[str, JSON]:
    return {"type": "retry", "fault": str(fault), "reason": reason}


if __name__ == "__main__":
    main()
