"""Hung, dying and lying scorers cost a worker, never the run, a sibling or a false 0."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hostile_domains import task_that

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, InfrastructureError
from educe.core.types import Fault, Message, Reply, Score, Task, assistant
from educe.rollout.inline_scoring import InlineScoring
from educe.rollout.outcomes import Outcome, ReplyFailure
from educe.rollout.scoring import Scoring, ScoringPool

DOMAINS = {"hostile": DomainSettings(function="hostile_domains:make")}
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScoringPool]:
    log = tmp_path_factory.mktemp("pool") / "workers.log"
    with ScoringPool(DOMAINS, num_workers=1, timeout_s=LIMIT_S, log_path=log) as pool:
        yield pool


@pytest.fixture(params=["pool", "inline"])
def scoring(request: pytest.FixtureRequest) -> Iterator[Scoring]:
    if request.param == "pool":
        yield request.getfixturevalue("pool")
    else:
        inline = InlineScoring(DOMAINS)
        yield inline
        inline.close()


def collect(scoring: Scoring, limit_s: float = 60.0) -> dict[object, Outcome]:
    found: dict[object, Outcome] = {}
    until = time.monotonic() + limit_s
    while scoring.num_pending:
        assert time.monotonic() < until, f"still pending: {scoring.num_pending}"
        for key, outcome in scoring.poll(1.0):
            assert key not in found
            found[key] = outcome
    return found


def score(scoring: Scoring, task: Task, completion: str = "gold") -> Score:
    scoring.submit_score("only", task, None, (*task.messages, assistant(completion)))
    outcome = collect(scoring)["only"]
    assert isinstance(outcome, Score)
    return outcome


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


# What scorers may return or raise, alike in workers and inline


def test_scores_right_and_wrong(scoring: Scoring) -> None:
    assert score(scoring, task_that("judge")).value == 1.0
    assert score(scoring, task_that("judge"), "other").value == 0.0


def test_replies_carry_messages_and_state(scoring: Scoring) -> None:
    task = task_that("value", value=1.0)
    scoring.submit_respond("r", task, {"seen": ["a", None, 1.5, "\ud800"]}, task.messages)
    assert collect(scoring)["r"] == Reply(
        (Message("tool", "turn 1"),), False, {"n": {"seen": ["a", None, 1.5, "\ud800"]}}
    )


@pytest.mark.parametrize(
    ("do", "fault", "text"),
    [
        ("raise", Fault.GRADER, "ValueError: the checker is broken (hostile_domains.py:"),
        ("unscored", Fault.GRADER, "no gold to compare with"),
        ("infrastructure", Fault.INFRASTRUCTURE, "the judge is away"),
        ("exit", Fault.GRADER, "SystemExit"),
        ("float", Fault.GRADER, "must return a Score, it returned 0.5 (float)"),
        ("set", Fault.GRADER, "set is no JSON value"),
        ("fill memory", Fault.GRADER, "memory"),
    ],
)
def test_what_is_no_score_is_unscored(pool: ScoringPool, do: str, fault: Fault, text: str) -> None:
    found = score(pool, task_that(do))
    assert (found.value, found.verdict, found.fault) == (None, None, fault)
    assert "hostile" in found.reason
    assert text in found.reason


@pytest.mark.parametrize("do", ["raise", "infrastructure"])
def test_inline_gives_the_same_faults(pool: ScoringPool, do: str) -> None:
    inline = InlineScoring(DOMAINS)
    assert score(inline, task_that(do)).fault is score(pool, task_that(do)).fault


def test_a_failed_reply_is_typed_and_becomes_an_unscored_trajectory(scoring: Scoring) -> None:
    task = task_that("raise")
    scoring.submit_respond("r", task, None, task.messages)
    failure = collect(scoring)["r"]
    assert isinstance(failure, ReplyFailure)
    assert failure.as_score().fault is Fault.GRADER
    assert "the checker is broken" in failure.as_score().reason


def test_not_a_number_is_unscored_and_spares_its_siblings(scoring: Scoring) -> None:
    values = [1.0, float("nan"), 0.0, float("inf"), None]
    for index, value in enumerate(values):
        task = task_that("value", index, value=value)
        scoring.submit_score(index, task, None, task.messages)
    found = collect(scoring)
    assert [found[i].value for i in range(5)] == [1.0, None, 0.0, None, None]  # type: ignore[union-attr]
    assert found[1].fault is Fault.GRADER  # type: ignore[union-attr]


def test_async_rewards_and_numpy_values(scoring: Scoring) -> None:
    assert score(scoring, task_that("async")).reason == "awaited"
    assert score(scoring, task_that("numpy")).value == 1.0


def test_async_rewards_inline_inside_a_running_loop() -> None:
    async def notebook_cell() -> Score:
        return score(InlineScoring(DOMAINS), task_that("async"))

    assert asyncio.run(notebook_cell()).reason == "awaited"


def test_unknown_domain_and_repeated_key_are_refused_at_once(scoring: Scoring) -> None:
    task = task_that("judge")
    with pytest.raises(DomainError, match=r"'hostyle'.*Did you mean 'hostile'"):
        scoring.submit_score("k", Task("hostyle", task.split, 0, task.messages), None, ())
    scoring.submit_score("k", task, None, task.messages)
    with pytest.raises(ValueError, match="'k' is pending"):
        scoring.submit_score("k", task, None, task.messages)
    collect(scoring)


def test_a_state_that_is_not_json_fails_in_the_callers_face(scoring: Scoring) -> None:
    with pytest.raises(ValueError, match="object is no JSON value"):
        scoring.submit_score("k", task_that("judge"), object(), ())
    assert scoring.num_pending == 0


def test_each_side_opens_the_sandbox_that_a_domain_needs() -> None:
    domains = {"hostile": DomainSettings(function="hostile_domains:make_executing")}
    inline = InlineScoring(domains)
    assert score(inline, task_that("judge")).reason.startswith("level ")
    inline.close()
    inline.close()
    for broken in (
        InlineScoring(domains, sandbox_minimum="no such level"),
        ScoringPool(domains, sandbox_minimum="no such level"),
    ):
        found = score(broken, task_that("judge"))
        assert (found.value, found.fault) == (None, Fault.INFRASTRUCTURE)
        assert "the sandbox did not open" in found.reason
        assert "no such level" in found.reason
        broken.close()


def test_a_cancelled_job_is_never_returned(scoring: Scoring) -> None:
    for index in range(3):
        task = task_that("judge", index)
        scoring.submit_score(index, task, None, (assistant("gold"),))
    scoring.cancel(0)
    scoring.cancel(2)
    scoring.cancel("unknown")
    assert scoring.num_pending == 1
    assert list(collect(scoring)) == [1]
    # The key is free again, and what its first job still delivers is not taken for the second's.
    task = task_that("value", value=0.25)
    scoring.submit_score(0, task, None, task.messages)
    assert collect(scoring)[0].value == 0.25  # type: ignore[union-attr]


# What only a killable worker survives


def test_a_hung_checker_is_killed_and_named(pool: ScoringPool) -> None:
    before = pool.worker_pids()
    found = score(pool, task_that("hold the interpreter"))
    assert (found.value, found.fault) == (None, Fault.GRADER)
    assert found.reason == (
        "hostile: score did not finish within its limit of 1 s; its worker was killed"
    )
    assert score(pool, task_that("judge")).value == 1.0, "the slot is reclaimed"
    assert not set(before) & set(pool.worker_pids())


def test_the_clock_starts_with_execution_not_with_queueing(pool: ScoringPool) -> None:
    for index in range(3):  # 0.4 s each, one worker, limit 1 s: the last ends later than that
        task = task_that("sleep", index, seconds=0.4)
        pool.submit_score(index, task, None, task.messages)
    assert [s.value for s in collect(pool).values()] == [1.0] * 3  # type: ignore[union-attr]


def test_the_deadline_holds_while_nobody_polls(pool: ScoringPool) -> None:
    hung, good = task_that("loop"), task_that("judge", 1)
    pool.submit_score("hung", hung, None, hung.messages)
    pool.submit_score("good", good, None, (assistant("gold"),))
    wait_until(lambda: len(pool._live().results) == 2)
    assert [key for key, _ in pool.poll()] == ["hung", "good"]


def test_a_dying_worker_is_retried_once_then_infrastructure(pool: ScoringPool) -> None:
    found = score(pool, task_that("hard exit"))
    assert (found.value, found.fault) == (None, Fault.INFRASTRUCTURE)
    assert "the reward worker died while running the job" in found.reason
    assert "(tried 2 times)" in found.reason


def test_one_death_costs_nothing_but_time(pool: ScoringPool, tmp_path: Path) -> None:
    assert score(pool, task_that("die once", marker=str(tmp_path / "died"))).value == 1.0


@pytest.mark.slow
def test_a_worker_killed_from_outside_is_replaced(pool: ScoringPool) -> None:
    task = task_that("sleep", seconds=0.5)
    pool.submit_score("k", task, None, task.messages)
    wait_until(lambda: any(s.phase.name == "RUNNING" for s in pool._live()._slots.values()))
    os.kill(pool.worker_pids()[0], signal.SIGKILL)
    assert collect(pool)["k"].value == 1.0  # type: ignore[union-attr]


@pytest.mark.slow
def test_memory_used_up_by_a_leak_is_not_the_next_jobs_fault(tmp_path: Path) -> None:
    with ScoringPool(DOMAINS, memory_mb=1024) as pool:
        marker = str(tmp_path / "filled")
        assert score(pool, task_that("fill memory once", marker=marker)).value == 1.0


def test_printing_and_reading_do_not_touch_the_channel(pool: ScoringPool) -> None:
    assert score(pool, task_that("print")).reason == "''"
    assert score(pool, task_that("judge")).value == 1.0


@pytest.mark.slow
def test_garbage_in_the_channel_costs_the_worker_only(pool: ScoringPool) -> None:
    found = score(pool, task_that("write to all descriptors"))
    assert (found.value, found.fault) == (None, Fault.INFRASTRUCTURE)
    assert score(pool, task_that("judge")).value == 1.0


def test_children_of_a_killed_checker_are_killed_too(pool: ScoringPool) -> None:
    task = task_that("orphan")
    pool.submit_score("k", task, None, task.messages)
    children: list[psutil.Process] = []

    def has_child() -> bool:
        for pid in pool.worker_pids():
            children[:] = psutil.Process(pid).children()
        return bool(children)

    wait_until(has_child)
    found = collect(pool)["k"]
    assert isinstance(found, Score) and found.value is None, "the checker was killed, not done"
    assert children
    wait_until(lambda: not any(_is_alive(c.pid) for c in children))
    assert not any(_is_alive(c.pid) for c in children)


def test_scorers_run_in_a_main_thread_without_torch(pool: ScoringPool) -> None:
    assert score(pool, task_that("alarm")).reason == "MainThread"
    assert score(pool, task_that("torch")).reason == "False"


def test_one_hung_check_more_than_workers_delays_the_rest_by_the_limit_only() -> None:
    with ScoringPool(DOMAINS, num_workers=2, timeout_s=LIMIT_S) as pool:
        for index in range(3):
            task = task_that("loop", index)
            pool.submit_score(("hung", index), task, None, task.messages)
        for index in range(100):
            pool.submit_score(("good", index), task_that("judge", index), None, (assistant("x"),))
        found = collect(pool)
    assert len(found) == 103
    assert sum(s.value is None for s in found.values()) == 3  # type: ignore[union-attr]


def test_a_hung_domain_does_not_starve_another_with_a_single_worker() -> None:
    both = {name: DomainSettings(function="hostile_domains:make") for name in ("hostile", "other")}
    with ScoringPool(both, num_workers=1, timeout_s=30.0) as pool:
        for index in range(3):
            task = task_that("sleep", index, seconds=8.0)
            pool.submit_score(("slow", index), task, None, task.messages)
        for index in range(20):
            task = replace(task_that("judge", index), domain="other")
            pool.submit_score(("quick", index), task, None, (assistant("gold"),))
        done: list[object] = []
        wait_until(lambda: len(done.extend(k for k, _ in pool.poll(0.1)) or done) >= 20)
        assert all(kind == "quick" for kind, _ in done), "before the first slow one has ended"  # type: ignore[misc]
        assert len(pool.worker_pids()) == 2, "one worker and the spare one"


def test_domains_that_do_not_load_say_so() -> None:
    broken = {"hostile": DomainSettings(function="hostile_domains:make_nothing")}
    with ScoringPool(broken) as pool:
        found = score(pool, task_that("judge"))
    assert found.fault is Fault.GRADER
    assert "the domain does not load in a reward worker" in found.reason
    assert "no data" in found.reason


@pytest.mark.slow
def test_domains_that_load_for_ever_are_given_up() -> None:
    slow = {"hostile": DomainSettings(function="hostile_domains:make_slowly")}
    with ScoringPool(slow, load_timeout_s=20.0) as pool:
        assert "the domain did not load within 20 s" in score(pool, task_that("judge")).reason


def test_workers_that_cannot_start_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("educe.rollout.scoring._WORKER_MODULE", "educe.no_such_module")
    with ScoringPool(DOMAINS, log_path=tmp_path / "log") as pool:
        pool.submit_score("k", task_that("judge"), None, ())
        with pytest.raises(InfrastructureError, match=r"do not start .3 in a row, last: exit code"):
            pool.poll(30.0)
    assert "no_such_module" in (tmp_path / "log").read_text()


# Who calls


def test_the_same_answer_from_many_threads(pool: ScoringPool) -> None:
    lock, found = threading.Lock(), {}

    def run(number: int) -> None:
        mine = ScoringPool(DOMAINS) if number == 0 else pool
        for index in range(100):
            key = (number, index)
            mine.submit_score(key, task_that("judge", index), None, (assistant("gold"),))
        while mine.num_pending:
            got = mine.poll(0.1)
            with lock:
                found.update(got)
        if mine is not pool:
            mine.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 400
    assert {s.value for s in found.values()} == {1.0}


@pytest.mark.soak
def test_one_percent_hostile_answers_leave_nothing_behind(tmp_path: Path) -> None:
    """Processes and descriptors are as before; all good answers scored, all bad ones unscored."""
    me = psutil.Process()
    before = (me.num_fds(), len(me.children(recursive=True)))
    hostile = ["loop", "orphan", "kill itself", "hold the interpreter", "print", "exit"]
    with ScoringPool(DOMAINS, num_workers=2, timeout_s=0.5, log_path=tmp_path / "log") as pool:
        for index in range(10_000):
            do = hostile[index // 100 % len(hostile)] if index % 100 == 0 else "judge"
            pool.submit_score(index, task_that(do, index), None, (assistant("gold"),))
        found = collect(pool, limit_s=600)
    bad = [i for i, s in found.items() if s.value is None]  # type: ignore[union-attr]
    assert len(found) == 10_000
    assert set(bad) == {i for i in range(0, 10_000, 100) if hostile[i // 100 % 6] != "print"}
    assert (me.num_fds(), len(me.children(recursive=True))) == before


def test_from_an_asyncio_loop(pool: ScoringPool) -> None:
    async def run() -> float | None:
        task = task_that("judge")
        pool.submit_score("k", task, None, (assistant("gold"),))
        while not (found := pool.poll()):
            await asyncio.sleep(0.01)
        return found[0][1].value  # type: ignore[union-attr]

    assert asyncio.run(run()) == 1.0


PARENT = """
import os, sys, time
from educe.config.settings import DomainSettings
from educe.rollout.scoring import ScoringPool
from hostile_domains import task_that

# No main guard on purpose.
pool = ScoringPool({"hostile": DomainSettings(function="hostile_domains:make")}, num_workers=2,
                   timeout_s=1000)
"""


def run_script(body: str) -> subprocess.Popen[str]:
    script = PARENT + textwrap.dedent(body)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_kill_9_of_the_parent_leaves_no_worker() -> None:
    parent = run_script(
        """
        for index, do in enumerate(["hold the interpreter", "orphan"]):
            task = task_that(do, index)
            pool.submit_score(index, task, None, task.messages)
        while sorted(s.phase.name for s in pool._live()._slots.values()) != ["RUNNING"] * 2:
            time.sleep(0.01)
        time.sleep(0.3)
        print(*pool.worker_pids(), flush=True)
        time.sleep(1000)
        """
    )
    assert parent.stdout is not None
    pids = [int(p) for p in parent.stdout.readline().split()]
    everyone = pids + [c.pid for p in pids for c in psutil.Process(p).children(recursive=True)]
    assert len(everyone) == 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    # Well below the five seconds of the watching thread: the kernel does it.
    wait_until(lambda: not any(_is_alive(p) for p in everyone), limit_s=4.0)


@pytest.mark.slow
def test_a_script_may_end_without_closing_and_a_fork_gets_workers_of_its_own() -> None:
    parent = run_script(
        """
        from educe.core.types import assistant
        import warnings
        warnings.simplefilter("ignore")
        task = task_that("pid")
        def ask():
            pool.submit_score("k", task, None, task.messages)
            return pool.poll(60.0)[0][1].reason
        first = ask()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, ask().encode())
            pool.close()
            os._exit(0)
        os.waitpid(child, 0)
        print(first != os.read(read, 99).decode(), ask() == first)
        """
    )
    output, _ = parent.communicate(timeout=60)
    assert (parent.returncode, output) == (0, "True True\n")


def test_a_forgotten_pool_ends_its_workers() -> None:
    pool = ScoringPool(DOMAINS)
    score(pool, task_that("judge"))
    pids = pool.worker_pids()
    assert pids and all(_is_alive(p) for p in pids)
    del pool
    wait_until(lambda: not any(_is_alive(p) for p in pids))
    assert not any(_is_alive(p) for p in pids)


def test_a_closed_pool_refuses_work() -> None:
    pool = ScoringPool(DOMAINS)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.submit_score("k", task_that("judge"), None, ())
    with pytest.raises(ValueError, match="num_workers=0"):
        ScoringPool(DOMAINS, num_workers=0)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
