"""A machine that is busy with other things is not the fault of a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from soak import loaded_machine

from educe.sandbox import (
    BoxVerdict,
    Case,
    Job,
    Limits,
    Sandbox,
    SandboxError,
    grade_function,
    open_sandbox,
)
from educe.sandbox.inside.boxes import Box
from educe.sandbox.inside.process_tree import Schedule, waited_since

# A quarter of a processor's time is left for it beside others of the usual priority.
_NICER = 5
_WORK = "import time\nbegun = time.process_time()\nwhile time.process_time() - begun < 0.3: pass\n"


def open_nicer(level: str | None) -> Sandbox:
    """Return a sandbox whose boxes stand back behind this process and its children."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, min(19, before + _NICER))
    try:
        return open_sandbox(level, minimum="confined", num_parallel=2)
    except SandboxError as error:
        pytest.skip(str(error))
    finally:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, before)
        except PermissionError:
            pytest.skip("only root gets its priority back")


@pytest.fixture(scope="module", params=[None, "namespaces", "confined"])
def starving(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with open_nicer(request.param) as sandbox, loaded_machine():
        yield sandbox


def test_a_starved_job_gets_another_go(starving: Sandbox) -> None:
    limits = Limits(cpu_s=5, wall_s=0.6)
    result = starving.run(Job(_WORK + "print('done')", limits=limits))
    # Not late: it came to its end, or nobody could say whether it would have.
    assert result.verdict in (BoxVerdict.OK, BoxVerdict.INFRA), result
    if result.verdict is BoxVerdict.INFRA:
        assert "too busy" in result.reason
    elif "retried:starved" in result.flags:
        assert result.times.limit_s > limits.wall_s


def test_a_job_that_sleeps_stays_late(starving: Sandbox) -> None:
    result = starving.run(Job("import time; time.sleep(600)", limits=Limits(wall_s=1.0)))
    assert result.verdict is BoxVerdict.TLE_WALL


@pytest.mark.parametrize(
    ("before", "now", "waited_s"),
    [
        ({}, {7: (0.1, 0.4, True)}, 0.4),
        ({7: (0.1, 0.4, True)}, {7: (0.1, 0.5, True)}, 0.1),
        ({}, {7: (0.1, 0.4, False)}, 0.0),  # it stepped back by itself
        ({}, {7: (0.1, 0.4, True), 8: (0.4, 0.1, True)}, 0.0),  # they wait for each other
        ({7: (1.0, 1.0, True)}, {8: (0.0, 0.2, True)}, 0.2),  # one after another
    ],
)
def test_waiting_is_counted_where_no_other_process_of_the_job_ran(
    before: dict[int, tuple[float, float, bool]],
    now: dict[int, tuple[float, float, bool]],
    waited_s: float,
) -> None:
    first, second = (
        {pid: Schedule(*entry) for pid, entry in look.items()} for look in (before, now)
    )
    assert waited_since(first, second) == pytest.approx(waited_s)


@pytest.mark.parametrize(
    ("late", "cpu_s", "waited_s", "stretch", "starved"),
    [
        (True, 0.5, 1.4, 1.0, True),
        (True, 0.0, 0.0, 1.0, False),  # it sleeps
        (True, 3.5, 60.0, 1.0, False),  # its many processes wait for each other
        (True, 1.0, 0.1, 1.0, False),
        (False, 0.5, 1.4, 1.0, False),
        (True, 0.5, 5.0, 3.0, True),  # the second time it did not have its limit either
        (True, 1.9, 3.9, 3.0, False),  # it had
    ],
)
def test_who_was_starved(
    late: bool, cpu_s: float, waited_s: float, stretch: float, starved: bool
) -> None:
    box = Box.__new__(Box)
    box.request = SimpleNamespace(limits={"wall_s": 2.0}, stretch=stretch)  # type: ignore[assignment]
    box.facts = {"late": late}
    box.cpu_s, box.waited_s = cpu_s, waited_s
    assert box.was_starved() is starved
    assert 1.5 <= box.stretch() <= 8.0


def test_an_endless_job_stays_late_or_unjudged(starving: Sandbox) -> None:
    limits = Limits(cpu_s=0.4, wall_s=0.6)
    result = starving.run(Job("while True: pass", limits=limits))
    assert result.verdict in (BoxVerdict.TLE_CPU, BoxVerdict.TLE_WALL, BoxVerdict.INFRA)


def test_a_starved_case_is_not_late(starving: Sandbox) -> None:
    if starving.level < 3:
        pytest.skip("a confined box cannot see how long its processes wait")
    source = "def f():\n" + "".join(f"    {line}\n" for line in _WORK.splitlines()) + "    return 1"
    limits = Limits(cpu_s=10, wall_s=120, case_wall_s=0.5)
    assert grade_function(starving, source, "f", [Case((), 1)], limits=limits).all_right
    endless = "def f():\n    import time\n    time.sleep(60)"
    late = grade_function(starving, endless, "f", [Case((), 1)], limits=limits)
    assert late.cases[0].outcome == "timeout"


def test_a_starved_turn_is_not_late(starving: Sandbox) -> None:
    if starving.level < 3:
        pytest.skip("a confined box cannot see how long its processes wait")
    with starving.open_session() as session:
        session.python("1")
        turn = session.python(_WORK.replace("0.3", "0.2") + "print('done')", wall_s=0.4)
        assert turn.status in ("ok", "timeout")
        assert session.python("import time; time.sleep(60)", wall_s=0.3).status == "timeout"


def test_boxes_are_ordinary_and_their_keepers_prompt() -> None:
    with open_sandbox(minimum="plain") as sandbox:
        printed = sandbox.run(Job("import os; print(os.getpriority(os.PRIO_PROCESS, 0))")).stdout
        own = max(0, os.getpriority(os.PRIO_PROCESS, 0))
        assert int(printed) == own
        if os.geteuid() == 0 and sandbox.level > 1:
            stats = sandbox.stats()
            for pid in (stats["pid"], *stats["zygotes"]):
                assert os.getpriority(os.PRIO_PROCESS, pid) < 0
