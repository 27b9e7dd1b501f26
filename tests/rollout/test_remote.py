"""Rollout workers may die at any moment: their orders are run by others, each trained once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from orders import request

from educe.core.errors import InfrastructureError
from educe.core.types import JSON, Group
from educe.rollout.buffer import GroupBuffer
from educe.rollout.ledger import Ledger, Standing
from educe.rollout.remote import FleetSettings, RemoteRollout
from educe.rollout.remote_worker import build_server

LIMIT_S = 60.0
SLOW = pytest.mark.slow


class Run:
    """A trainer in miniature: issues orders, trains batches of four in order of issue."""

    def __init__(
        self, serve: str, options: JSON, tmp_path: Path, *, fleet: FleetSettings | None = None
    ) -> None:
        self.ledger = Ledger()
        self.buffer = GroupBuffer(self.ledger, batch_size=4, max_staleness=1000)
        self.trained: list[Group] = []
        limits = fleet or FleetSettings()
        limits = FleetSettings(
            num_workers=limits.num_workers,
            max_in_flight=limits.max_in_flight,
            heartbeat_s=0.1,
            silence_limit_s=limits.silence_limit_s,
            stall_limit_s=limits.stall_limit_s,
            log_path=tmp_path / "workers.log",
        )
        self.remote = RemoteRollout(
            f"scripted_servers:{serve}", options, ledger=self.ledger, settings=limits
        )

    def issue(self, count: int) -> None:
        for _ in range(count):
            order = request(self.ledger.next_request_id)
            self.ledger.issue(order)
            self.remote.submit(order)

    def turn(self) -> None:
        for group in self.remote.poll(0.05):
            assert self.buffer.add(group), "no second copies"
        while (batch := self.buffer.next_batch(0)) is not None:
            self.buffer.mark_trained(batch, step=len(self.trained))
            self.trained += batch

    def until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until, self.ledger.counters()
            self.turn()

    def finish(self) -> None:
        self.until(lambda: not self.remote.num_outstanding and not self.ledger.open_requests())
        self.ledger.check()
        ids = [g.request.request_id for g in self.trained]
        assert ids == list(range(self.ledger.next_request_id)), "in order, none lost, none twice"
        self.remote.close()

    @property
    def pids(self) -> list[int]:
        return list(self.remote.worker_versions())


def test_orders_are_served_by_several_workers(tmp_path: Path) -> None:
    run = Run("continuous", {}, tmp_path, fleet=FleetSettings(num_workers=2, max_in_flight=3))
    run.issue(24)
    run.finish()
    assert run.ledger.num_reissued == 0


def test_a_worker_killed_with_9_loses_no_order(tmp_path: Path) -> None:
    run = Run("one_by_one", {"seconds": 0.02}, tmp_path, fleet=FleetSettings(max_in_flight=4))
    run.issue(20)
    run.until(lambda: len(run.trained) >= 4 and run.ledger.count(Standing.RUNNING) >= 2)
    (victim,) = run.pids
    os.kill(victim, signal.SIGKILL)
    run.finish()
    assert run.ledger.num_reissued >= 1
    assert victim not in run.pids


@SLOW
def test_a_frozen_worker_is_found_by_its_silence(tmp_path: Path) -> None:
    limits = FleetSettings(silence_limit_s=1.5, max_in_flight=4)
    run = Run("one_by_one", {"seconds": 0.02}, tmp_path, fleet=limits)
    run.issue(12)
    run.until(lambda: len(run.trained) >= 4)
    (victim,) = run.pids
    os.kill(victim, signal.SIGSTOP)
    run.finish()
    assert run.ledger.num_reissued >= 1


@SLOW
def test_a_stuck_engine_is_found_although_its_heart_beats(tmp_path: Path) -> None:
    limits = FleetSettings(stall_limit_s=0.5)
    run = Run("continuous", {"stuck": True}, tmp_path, fleet=limits)
    run.issue(2)
    with pytest.raises(InfrastructureError, match=r"3 rollout workers.*made no step for 0.5 s"):
        run.until(lambda: False)
    assert len(run.ledger.open_requests()) == 2, "the orders are still in the books"
    run.remote.close()


@SLOW
def test_weights_reach_running_and_later_workers(tmp_path: Path) -> None:
    run = Run("continuous", {}, tmp_path)
    run.issue(4)
    run.until(lambda: len(run.trained) == 4)
    run.remote.publish(5, {"folder": "weights-5"})
    run.issue(4)
    run.until(lambda: len(run.trained) == 8)
    assert list(run.remote.worker_versions().values()) == [5]
    os.kill(run.pids[0], signal.SIGKILL)
    run.issue(4)
    run.finish()
    versions = [g.trajectories[0].turns[0].policy_versions[0] for g in run.trained]
    assert versions == [0] * 4 + [5] * 8


@pytest.mark.parametrize(
    ("serve", "text"),
    [
        pytest.param(
            "one_by_one",
            r"the last one: ValueError: cannot run order 0 \(scripted_servers.py:",
            marks=SLOW,
        ),
        pytest.param("foreign", "a group for order 1, which it does not have", marks=SLOW),
        ("dying", "exit code 3"),
        pytest.param("no_such_factory", "no_such_factory", marks=SLOW),
    ],
)
def test_workers_that_only_die_stop_the_run_with_the_reason(
    serve: str, text: str, tmp_path: Path
) -> None:
    run = Run(serve, {"seconds": 0.0, "poison": [0]}, tmp_path)
    run.issue(1)
    with pytest.raises(InfrastructureError, match=text):
        run.until(lambda: False)
    with pytest.raises(InfrastructureError, match="in a row"):
        run.issue(1)
    run.remote.close()


def test_an_order_is_not_taken_twice(tmp_path: Path) -> None:
    run = Run("continuous", {}, tmp_path)
    run.issue(1)
    with pytest.raises(ValueError, match="order 0 is with the workers already"):
        run.remote.submit(request(0))
    run.remote.close()
    run.remote.close()


def test_a_factory_must_return_a_server() -> None:
    with pytest.raises(TypeError, match="returned a dict, expected a GroupServer or a function"):
        build_server("builtins:dict", {})


@SLOW
def test_random_kills_never_lose_or_double_an_order(tmp_path: Path) -> None:
    chance = random.Random(0)
    limits = FleetSettings(num_workers=2, max_in_flight=5)
    run = Run("continuous", {"pause_s": 0.01}, tmp_path, fleet=limits)
    for _ in range(8):
        run.issue(chance.randrange(4, 20))
        for _ in range(chance.randrange(1, 12)):
            run.turn()
        if run.pids:
            os.kill(chance.choice(run.pids), signal.SIGKILL)
    run.issue(-run.ledger.next_request_id % 4)
    run.finish()
    assert run.ledger.num_reissued > 0
