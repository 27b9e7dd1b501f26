"""Seconds by domain: shared by what is pending, coarse, and the same again after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from educe.core.types import Score, Split, Task, user
from educe.rollout.journal import Journal
from educe.rollout.metering import BatchCosts, MeteredScoring, split_seconds
from educe.scheduling.results import GroupResult


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """A scoring that finishes what the test says."""

    def __init__(self) -> None:
        self.pending: set[str] = set()
        self.done: list[str] = []

    def submit_score(self, key, task, state, transcript):
        self.pending.add(key)

    submit_respond = submit_score

    def poll(self, timeout_s=0.0):
        found = [(key, Score.right()) for key in self.done]
        self.pending -= set(self.done)
        self.done = []
        return found

    def cancel(self, key):
        self.pending.discard(key)

    @property
    def num_pending(self):
        return len(self.pending)

    def close(self):
        pass


def task(domain: str) -> Task:
    return Task(domain, Split.TRAIN, 0, (user("?"),))


def results() -> list[GroupResult]:
    return [GroupResult(1, "slow", 0, (1.0,), 300), GroupResult(0, "fast", 0, (1.0,), 100)]


def test_pending_jobs_share_the_clock():
    inner, clock = Slow(), Clock()
    meter = MeteredScoring(inner, clock)
    meter.submit_score("a", task("fast"), None, ())
    meter.submit_respond("b", task("slow"), None, ())
    clock.now = 2.0
    inner.done = ["a"]
    assert [key for key, _ in meter.poll()] == ["a"]
    clock.now = 10.0
    assert meter.num_pending == 1
    assert meter.drain() == {"fast": 1.0, "slow": 9.0}
    meter.cancel("b")
    clock.now = 50.0
    assert sum(meter.drain().values()) == 0.0


def test_wall_time_goes_by_tokens_and_scoring_by_domain():
    assert split_seconds(results(), 4.0, {"slow": 1.0}) == {"fast": 1.0, "slow": 4.0}
    assert split_seconds(list(reversed(results())), 4.0, {}) == split_seconds(results(), 4.0, {})


def test_a_resumed_run_is_told_what_was_measured_first(tmp_path: Path):
    with Journal(tmp_path / "j.jsonl") as journal:
        costs = BatchCosts(journal, None, lambda step: step)
        first = costs(3, results(), 4.0)
    with Journal(tmp_path / "j.jsonl") as journal:
        again = BatchCosts(journal, None, lambda step: step)
        assert (
            again(3, results(), 400.0)
            == first
            == {"fast": 1.0, "slow": pytest.approx(2.83, abs=0.01)}
        )
        assert again(4, results(), 400.0) != first
