"""Length shaping, and that it never touches the metric that filters."""

from __future__ import annotations

import numpy as np
import pytest

from educe.algorithms.advantages import has_spread
from educe.algorithms.shaping import (
    RunningScale,
    length_share,
    repetition_share,
    soft_bounded,
    soft_overlong_penalty,
    without_truncated,
)


def test_the_penalty_is_zero_then_a_line_then_one():
    got = soft_overlong_penalty([0, 16384, 18432, 20480, 30000], 20480, 4096)
    assert got == pytest.approx([0, 0, -0.5, -1, -1])
    assert soft_overlong_penalty([8], 10, 4, factor=0.5) == pytest.approx([-0.25])


@pytest.mark.parametrize("cache", [0, -1, 11])
def test_a_cache_that_does_not_fit_is_refused(cache):
    with pytest.raises(ValueError, match="0 < cache <= 10"):
        soft_overlong_penalty([1], 10, cache)


def test_an_all_wrong_group_is_filtered_though_its_lengths_differ():
    """Filtering on the shaped reward trains "be short and wrong" (NeMo-RL 2431)."""
    raw, everyone = np.zeros(4), np.ones(4, bool)
    shaped = raw + soft_overlong_penalty([5, 9, 10, 10], 10, 4)
    assert has_spread(shaped, everyone)
    assert not has_spread(raw, everyone)


def test_truncated_completions_leave_the_loss_only():
    assert without_truncated([True, True, False], [False, True, True]) == (True, False, False)


def test_length_share():
    assert length_share([0, 5, 10, 99], 10).tolist() == [0, 0.5, 1, 1]
    with pytest.raises(ValueError, match="max_length >= 1"):
        length_share([1], 0)


def test_repetition_counts_n_grams_that_came_before():
    assert repetition_share([1, 2, 3, 4, 5], 2) == 0
    assert repetition_share([1, 2] * 4, 2) == pytest.approx(5 / 7)
    assert repetition_share([1] * 100, 4) == pytest.approx(96 / 97)
    assert repetition_share([1, 1], 4) == repetition_share([], 4) == 0
    with pytest.raises(ValueError, match="width of at least 1"):
        repetition_share([1], 0)


def test_a_soft_bound_keeps_small_rewards_and_their_order():
    rewards = np.array([0.01, 1.0, 100.0, -1e9, np.nan])
    got = soft_bounded(rewards, 5.0)
    assert got[0] == pytest.approx(0.01, rel=1e-4) and got[3] == -5.0
    assert got[1] < got[2] <= 5.0 and np.isnan(got[4])
    assert soft_bounded(rewards, 0.0) is rewards


def test_running_statistics_are_those_of_the_weighted_past():
    scale = RunningScale(decay=0.5)
    batches = [np.array([1.0, 3.0]), np.array([5.0]), np.array([2.0, 2.0, 8.0])]
    for batch in batches:
        scale.update(batch)
    weights = np.array([0.25, 0.5, 1.0]) / 1.75
    mean = sum(w * b.mean() for w, b in zip(weights, batches, strict=True))
    square = sum(w * (b**2).mean() for w, b in zip(weights, batches, strict=True))
    assert scale.mean == pytest.approx(mean)
    assert scale.deviation == pytest.approx((square - mean**2) ** 0.5)


def test_the_first_batch_is_normalised_by_itself():
    scale = RunningScale()
    assert scale.normalise(np.array([2.0])).tolist() == [2.0]  # before any, nothing is known
    scale.update([0.0, 1.0])
    assert scale.normalise(np.array([0.0, 1.0])).tolist() == pytest.approx([-1, 1])


def test_statistics_of_equal_far_and_bad_rewards():
    scale = RunningScale(least=0.01)
    scale.update([1e9 + 1.0, 1e9 + 1.0, float("nan"), float("inf")])
    assert scale.deviation == 0.01 and scale.mean == 1e9 + 1.0
    scale.update([])
    scale.update([float("nan")])
    assert scale.mean == 1e9 + 1.0
    scale.update([1e9 + 2.0, 1e9])  # the digits of a small spread are not lost in large squares
    assert scale.deviation == pytest.approx((0.01 / 0.0199) ** 0.5)


def test_statistics_round_trip():
    scale = RunningScale(decay=0.9)
    scale.update([1.0, 2.0])
    assert RunningScale.from_state(scale.state()) == scale
