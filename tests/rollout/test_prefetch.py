"""Things made ahead: the asker's order at any number of processes, and clear errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from educe.core.errors import DomainError, InfrastructureError
from educe.core.types import Split, Task, TaskRequest, user
from educe.rollout.prefetch import Prefetch, PreparedTasks

SQUARES = f"{Path(__file__).with_name('made_things.py')}:squares"


def pool(tmp_path: Path, workers: int = 2, ahead: int = 8, make: str = SQUARES, **options: Any):
    log = tmp_path / "prefetch.log"
    return Prefetch(make, options, num_workers=workers, ahead=ahead, log_path=log)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_order_is_the_askers(tmp_path: Path, workers: int) -> None:
    with pool(tmp_path, workers) as prefetch:
        prefetch.expect(range(30))
        taken = [prefetch.take(n) for n in range(30)]
        assert [t["square"] for t in taken] == [n * n for n in range(30)]
        assert len({t["pid"] for t in taken}) <= workers
        assert os.getpid() not in {t["pid"] for t in taken}
        # Things never expected, expected in vain, and asked for twice are the same things.
        prefetch.expect(range(100, 140))
        assert [prefetch.take(n)["square"] for n in (7, 7, 139, 101)] == [49, 49, 139**2, 101**2]


def test_no_more_is_made_than_what_is_ahead(tmp_path: Path) -> None:
    with pool(tmp_path, workers=1, ahead=4) as prefetch:
        for first in range(0, 400, 4):
            prefetch.expect(range(first, first + 100))
            assert len(prefetch._room.known) <= 9
        assert prefetch.take(399)["square"] == 399**2


def test_bad_data_is_told_where_it_is_taken(tmp_path: Path) -> None:
    with pool(tmp_path, bad=2, broken=4) as prefetch:
        prefetch.expect(range(6))
        assert [prefetch.take(n)["square"] for n in (0, 1)] == [0, 1]
        with pytest.raises(DomainError, match=r"rows\.jsonl:2: no such column"):
            prefetch.take(2)
        assert prefetch.take(3)["square"] == 9
        with pytest.raises(InfrastructureError, match=r"4: ValueError: not the data's fault"):
            prefetch.take(4)
        assert prefetch.take(5)["square"] == 25


def test_a_killed_process_is_a_clear_error(tmp_path: Path) -> None:
    with pool(tmp_path, deadly=3) as prefetch:
        prefetch.expect(range(3))
        assert prefetch.take(2)["square"] == 4
        with pytest.raises(InfrastructureError) as raised:
            prefetch.take(3)
        told = str(raised.value)
        assert "killed by SIGKILL" in told and "while it made 3" in told
        assert "prefetch.workers = 0" in told and "prefetch.log" in told
        # It stays broken: what others would make must not hide it.
        with pytest.raises(InfrastructureError, match="SIGKILL"):
            prefetch.take(1000)


def test_one_that_is_killed_at_rest_is_told_at_the_next_take(tmp_path: Path) -> None:
    with pool(tmp_path) as prefetch:
        prefetch.take(1)
        victim = prefetch.pids()[0]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match=rf"pid {victim}\) ended: killed by SIGKILL"):
            for number in range(10_000):
                prefetch.take(number)


def test_a_factory_that_fails_says_why(tmp_path: Path) -> None:
    make = SQUARES.replace(":squares", ":refuses")
    with (
        pool(tmp_path, make=make) as prefetch,
        pytest.raises(InfrastructureError, match="no file or folder /nowhere"),
    ):
        prefetch.take(1)


def test_processes_end_with_the_pool(tmp_path: Path) -> None:
    prefetch = pool(tmp_path)
    prefetch.take(1)
    pids = prefetch.pids()
    prefetch.close()
    prefetch.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class _Noted:
    """Makes tasks at once and notes what is expected."""

    ahead = 3

    def __init__(self) -> None:
        self.expected: list[list[int]] = []

    def expect(self, orders: Any) -> None:
        found = [order["task"][2] for _, order in zip(range(self.ahead), orders, strict=False)]
        self.expected.append(found)

    def take(self, order: Any) -> Any:
        name, split, index = order["task"]
        task = Task(name, Split(split), index, (user(f"task {index}"),), "")
        return {"task": task.to_json(), "tokens": [index, 7]}


def test_the_window_moves_on_with_every_task_that_is_taken() -> None:
    noted = _Noted()
    tasks = PreparedTasks(noted)  # type: ignore[arg-type]
    requests = [
        TaskRequest(n, "d", Split.TRAIN, n, 4, temperature=1.0, max_completion_tokens=8)
        for n in range(5)
    ]
    tasks.expect(requests)
    for request in requests:
        task, tokens = tasks.take(request)
        assert task.index == request.index and tokens == (request.index, 7)
    tasks.rest(requests)
    windows = [[0, 1, 2], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4], [4]]
    # Afterwards as many tasks of the domain as there were, beginning with the next one.
    assert noted.expected == [*windows, [5, 6, 7]]
