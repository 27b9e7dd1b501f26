"""Small requests and groups for tests of order and count."""

from __future__ import annotations

from educe.core.types import (
    Group,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
    assistant,
    user,
)


def request(request_id: int, domain: str = "d", num_samples: int = 2) -> TaskRequest:
    return TaskRequest(request_id, domain, Split.TRAIN, request_id, num_samples)


def group(order: TaskRequest, version: int = 0, values: tuple[float | None, ...] = ()) -> Group:
    task = Task(order.domain, order.split, order.index, (user(f"question {order.index}"),), "gold")
    scores = values or tuple(float(i % 2) for i in range(order.num_samples))
    trajectories = tuple(
        Trajectory(
            order.request_id,
            index,
            (*task.messages, assistant(f"completion {index}")),
            (Turn((1, 2), (3, 4), (-0.1, -0.2), (version, version), StopReason.END, 1.0),),
            Score(value),
        )
        for index, value in enumerate(scores)
    )
    return Group(order, task, trajectories)
