"""What must stay true over many jobs: here at a reduced size, in full with ``-m soak``.

``EDUCE_SOAK_SCALE=0.1 pytest -m soak tests/sandbox`` takes a tenth of each full size.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import soak

from educe.sandbox import Sandbox, SandboxError, open_sandbox


@pytest.fixture
def own() -> Iterator[Sandbox]:
    try:
        opened = open_sandbox(minimum="confined", num_parallel=4)
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def test_a_random_mix_of_hostile_jobs_leaves_the_host_whole(own: Sandbox) -> None:
    assert soak.random_mix(own, 60) == []


def test_many_jobs_leave_nothing_behind(own: Sandbox) -> None:
    assert soak.many_jobs(own, 400) == []


def test_sleeping_jobs_run_all_at_once(sandbox: Sandbox) -> None:
    if sandbox.level < 3:
        pytest.skip("this host has no namespaces")
    assert soak.sleepers(40, 0.5) == []


def test_golden_programs_pass_twenty_times(sandbox: Sandbox) -> None:
    assert soak.golden_failures(sandbox, 20) == []


def test_verdicts_do_not_flip_beside_a_loading_process(sandbox: Sandbox) -> None:
    with soak.loaded_machine():
        assert soak.verdict_flips(sandbox, 4) == []


@pytest.mark.soak
def test_ten_thousand_hostile_jobs_in_random_order(own: Sandbox) -> None:
    assert soak.random_mix(own, soak.size(10_000)) == []


@pytest.mark.soak
def test_a_hundred_thousand_jobs_stay_flat(own: Sandbox) -> None:
    assert soak.many_jobs(own, soak.size(100_000)) == []


@pytest.mark.soak
def test_a_thousand_sleepers_at_once(own: Sandbox) -> None:
    if own.level < 3:
        pytest.skip("this host has no namespaces")
    assert soak.sleepers(soak.size(1000), 3.0) == []


@pytest.mark.soak
def test_a_thousand_repeats_beside_a_loading_process_give_one_verdict(sandbox: Sandbox) -> None:
    with soak.loaded_machine():
        assert soak.verdict_flips(sandbox, soak.size(1000)) == []
