"""Shared workers and open trajectories: a slow domain pays for itself, the others go on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from educe.rollout.job_queue import JobQueue
from educe.scheduling.resources import (
    LONG_S,
    Admission,
    FairShare,
    RunningJob,
    Standing,
    planned_workers,
    spared_domains,
)


@dataclass(frozen=True)
class Job:
    domain: str
    number: int = 0


def simulate(jobs: list[Job], seconds: dict[str, float], num_workers: int) -> dict[Job, float]:
    """Play a pool of workers and its spare one; return when each job ended."""
    queue: JobQueue[Job] = JobQueue()
    for job in jobs:
        queue.add(job)
    now, ended = 0.0, {}
    busy: list[tuple[float, float, Job]] = []  # end, begin, job
    while queue or busy:
        while queue:
            running = [RunningJob(job.domain, now - begin) for _, begin, job in busy]
            if len(busy) < num_workers:
                job = queue.take(running)
            elif len(busy) == num_workers and (spared := queue.take_spared(running)) is not None:
                job = spared
            else:
                break
            busy.append((now + seconds[job.domain], now, job))
        marks = [end for end, _, _ in busy]
        marks += [begin + LONG_S for _, begin, _ in busy if begin + LONG_S > now]
        now = min(marks)
        for entry in [b for b in busy if b[0] <= now]:
            busy.remove(entry)
            queue.done(entry[2].domain, now - entry[1])
            ended[entry[2]] = now
    return ended


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_slow_domain_that_came_first_does_not_starve_the_rest(num_workers):
    slow = [Job("judge", i) for i in range(20)]
    fast = [Job("sums", i) for i in range(50)]
    ended = simulate([*slow, *fast], {"judge": 20.0, "sums": 0.01}, num_workers)
    assert max(ended[j] for j in fast) < LONG_S + 50 * 0.01 + 0.1
    # Nothing is lost for the slow one but the time that the others took.
    assert max(ended[j] for j in slow) <= 20.0 * -(-20 // num_workers) + 1.0


def test_two_slow_domains_share_the_workers():
    jobs = [Job("judge", i) for i in range(8)] + [Job("sandbox", i) for i in range(8)]
    ended = simulate(jobs, {"judge": 5.0, "sandbox": 5.0}, 2)
    firsts = {d: min(t for j, t in ended.items() if j.domain == d) for d in ("judge", "sandbox")}
    assert firsts == {"judge": 5.0, "sandbox": pytest.approx(5.0 + LONG_S)}
    halves = sorted(ended.items(), key=lambda item: item[1])[:8]
    assert sum(job.domain == "judge" for job, _ in halves) in (3, 4, 5)


def test_jobs_of_a_domain_keep_their_order_and_a_retry_goes_first():
    queue: JobQueue[Job] = JobQueue()
    for number in range(3):
        queue.add(Job("a", number))
    first = queue.take([])
    assert first.number == 0
    queue.done("a", 1.0)
    queue.add(first, is_again=True)
    queue.discard(Job("a", 1))
    queue.discard(Job("gone", 1))
    assert [queue.take([]).number for _ in range(2)] == [0, 2]
    assert not queue


def test_who_comes_back_has_saved_no_time_up():
    fair = FairShare()
    fair.arrive("busy")
    for _ in range(100):
        assert fair.next(["busy"], {}) == "busy"
        fair.charge("busy", 1.0)
    fair.arrive("late")
    turns = []
    for _ in range(6):
        turns.append(fair.next(["busy", "late"], {}))
        fair.charge(turns[-1], 1.0)
    assert turns.count("late") in (3, 4)


def test_the_spare_worker_is_for_those_behind_long_jobs_only():
    long, short = RunningJob("judge", 2 * LONG_S), RunningJob("sums", 0.0)
    assert spared_domains([long, long], ["judge", "sums"]) == ["sums"]
    assert spared_domains([long, short], ["tools"]) == []
    assert spared_domains([], ["tools"]) == []


def test_planned_workers_follow_measured_rates():
    seconds = {"judge": 2.0, "python": 0.1, "sums": 0.001}
    asked = {"judge": 10.0, "python": 5.0, "sums": 100.0}
    planned = planned_workers(asked, seconds, 4)
    assert planned == pytest.approx({"sums": 0.1, "python": 0.5, "judge": 3.4})
    # Where all want more than there is, each has its equal part.
    assert planned_workers(
        dict.fromkeys("abcd", 9.0), dict.fromkeys("abcd", 1.0), 2
    ) == dict.fromkeys("abcd", 0.5)


def test_what_waits_for_a_judge_leaves_room_to_sample():
    admission = Admission(max_sampling=8, max_open=32)
    for _ in range(8):
        assert admission.has_room("judged", 1)
        admission.move("judged", Standing.OUT, Standing.SAMPLING)
    assert admission.is_full and not admission.has_room("sums", 1)
    for _ in range(8):
        admission.move("judged", Standing.SAMPLING, Standing.WAITING)
    assert not admission.is_full
    assert admission.has_room("sums", 4) and not admission.has_room("judged", 4)
    for _ in range(8):
        admission.move("judged", Standing.WAITING, Standing.OUT)
    assert admission.num_open == 0 and admission.has_room("judged", 100), "one group always may"
