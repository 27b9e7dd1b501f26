"""Numbers that follow training or a plan."""

from __future__ import annotations

import math

import pytest

from educe.algorithms.steering import EntropyTarget, scheduled


def test_the_bonus_rises_below_the_target_and_falls_above():
    held = EntropyTarget(coefficient=0.01, target=0.5, delta=0.005, most=0.02)
    assert held.update(0.4) == pytest.approx(0.015)
    assert [held.update(0.4) for _ in range(3)] == pytest.approx([0.02] * 3)
    assert held.update(0.6) == pytest.approx(0.015)
    assert [held.update(9.0) for _ in range(9)][-1] == 0.0  # never a penalty


@pytest.mark.parametrize("entropy", [math.nan, math.inf])
def test_a_skipped_step_does_not_move_the_bonus(entropy):
    assert EntropyTarget(coefficient=0.01).update(entropy) == 0.01


def test_the_bonus_goes_on_after_a_resume():
    held, again = EntropyTarget(), EntropyTarget()
    held.update(0.0)
    again.restore(held.state())
    assert again.update(0.0) == held.update(0.0) == 0.01


def test_bad_targets_are_refused():
    with pytest.raises(ValueError, match="target must be a finite number > 0"):
        EntropyTarget(target=0.0)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_schedule_starts_ends_and_stays(shape):
    got = [scheduled(1.0, 0.5, step, 10, shape) for step in (0, 5, 10, 99)]
    assert got == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert scheduled(1.0, 0.5, 3, 0, shape) == 0.5  # no way to go
    steps = [scheduled(1.0, 2.0, s, 10, shape) for s in range(11)]
    assert steps == sorted(steps)


def test_other_shapes():
    assert scheduled(1.0, 0.5, 9, 10, "constant") == 1.0
    assert scheduled(1.0, 0.0, 1, 10, "cosine") > scheduled(1.0, 0.0, 1, 10, "linear")
    with pytest.raises(ValueError, match="shape must be"):
        scheduled(1.0, 0.5, 1, 10, "step")
