"""One sandbox for all reward workers, and scores that train only by opting in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_domains import task_that

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError
from educe.core.types import Group, Score, Split, TaskRequest, Trajectory
from educe.rollout.integrity import check_integrity
from educe.rollout.scoring import ScoringPool
from educe.sandbox import Sandbox, SandboxError, open_sandbox
from educe.sandbox.connection import Address

DOMAINS = {"hostile": DomainSettings(function="hostile_domains:make_executing")}


@pytest.fixture
def shared() -> Iterator[Sandbox]:
    try:
        opened = open_sandbox(minimum="confined", num_parallel=2)
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def scores(pool: ScoringPool, count: int) -> list[Score]:
    for index in range(count):
        task = task_that("judge", index)
        pool.submit_score(index, task, None, task.messages)
    found: list[Score] = []
    while len(found) < count:
        found += [score for _, score in pool.poll(60.0) if isinstance(score, Score)]
    return found


def test_all_workers_share_the_sandbox_they_are_given(shared: Sandbox) -> None:
    own = shared.stats()["pid"]
    with ScoringPool(
        DOMAINS, num_workers=2, sandbox=shared, sandbox_minimum="confined", timeout_s=120
    ) as pool:
        reasons = {score.reason for score in scores(pool, 4)}
        assert reasons == {f"level {int(shared.level)} of {own}"}
        assert len(pool.worker_pids()) == 2


def test_workers_without_one_open_their_own() -> None:
    with ScoringPool(DOMAINS, sandbox_minimum="plain", timeout_s=120) as pool:
        (score,) = scores(pool, 1)
        assert score.reason.startswith("level ")


def test_a_shared_sandbox_that_died_is_started_anew_for_its_workers(shared: Sandbox) -> None:
    with ScoringPool(DOMAINS, sandbox=shared, sandbox_minimum="confined", timeout_s=120) as pool:
        (before,) = scores(pool, 1)
        died = shared.stats()["pid"]
        os.kill(died, signal.SIGKILL)
        while Path(f"/proc/{died}/stat").exists() and not _is_zombie(died):
            time.sleep(0.01)
        (after,) = scores(pool, 1)
        assert after.value == 1.0 and after.reason != before.reason
        assert after.reason.endswith(str(shared.stats()["pid"]))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:  # it went while we looked
        return True


def test_a_sandbox_below_the_minimum_is_not_shared(shared: Sandbox) -> None:
    address = shared.address
    assert address is not None and Address.from_json(address.to_json()) == address
    weak = Address.from_json({**address.to_json(), "level": "confined"})
    with pytest.raises(SandboxError, match="level confined"):
        open_sandbox(minimum="namespaces", address=weak)


def group_with(integrity: str, split: Split) -> Group:
    task = task_that("judge")
    request = TaskRequest(0, "hostile", split, 0, 1, 1.0, 8, 1)
    score = Score(1.0, proof={"integrity": integrity})
    return Group(request, task, (Trajectory(0, 0, (), (), score),))


@pytest.mark.parametrize(
    ("integrity", "split", "opted_in", "refused"),
    [
        ("in_process", Split.TRAIN, False, True),
        ("in_process", Split.TRAIN, True, False),
        ("in_process", Split.EVAL, False, False),
        ("outside", Split.TRAIN, False, False),
    ],
)
def test_in_process_tests_train_only_by_opting_in(
    integrity: str, split: Split, opted_in: bool, refused: bool
) -> None:
    group = group_with(integrity, split)
    if not refused:
        assert check_integrity(group, in_process_tests=opted_in) is group
        return
    with pytest.raises(DomainError, match=r"sandbox\.in_process_tests = true"):
        check_integrity(group, in_process_tests=opted_in)
