"""Spans add up on a clock of our own, so nothing depends on the machine's speed."""

from __future__ import annotations

import threading

import pytest

from educe.observability.timing import Spans


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_spans_add_up_and_the_rest_is_other() -> None:
    clock = Clock()
    spans = Spans(clock)
    for _ in range(2):
        with spans.measure("rollout"):
            clock.now += 3
            with spans.measure("rollout/score"):
                clock.now += 1
    clock.now += 0.5
    with spans.measure("update"):
        clock.now += 2
    assert spans.drain() == {
        "time/rollout_s": 8.0,
        "time/rollout/score_s": 2.0,
        "time/update_s": 2.0,
        "time/step_s": 10.5,
        "time/other_s": 0.5,
    }
    clock.now += 1
    assert spans.drain() == {"time/step_s": 1.0, "time/other_s": 1.0}


def test_a_span_that_raises_is_counted_and_the_nesting_survives() -> None:
    clock = Clock()
    spans = Spans(clock)
    with pytest.raises(KeyError), spans.measure("a"), spans.measure("b"):
        clock.now += 1
        raise KeyError
    with spans.measure("c"):
        clock.now += 1
    assert spans.drain() == {
        "time/a_s": 1.0,
        "time/b_s": 1.0,
        "time/c_s": 1.0,
        "time/step_s": 2.0,
        "time/other_s": 0.0,
    }


def test_other_threads_and_processes_are_counted_but_do_not_cover_the_step() -> None:
    clock = Clock()
    spans = Spans(clock)

    def work() -> None:
        with spans.measure("score"):
            clock.now += 4

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    spans.add("sandbox", 2.5)
    drained = spans.drain()
    assert drained["time/score_s"] == 4.0 and drained["time/sandbox_s"] == 2.5
    assert drained["time/other_s"] == drained["time/step_s"] == 4.0
