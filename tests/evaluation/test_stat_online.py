"""Splits before users, adjusted outcomes, replayed policies, shrunk rates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from educe.evaluation.statistics import (
    assign_arm,
    clustered_standard_error,
    cuped,
    inverse_propensity,
    mean_estimate,
    ratio_estimate,
    sample_ratio_mismatch,
    shrunk_rates,
)


def arms(weights, salt="s", count=4000):
    return [assign_arm(f"user{i}", weights, salt=salt) for i in range(count)]


def test_assignment_is_sticky_fair_and_independent_between_experiments():
    weights = {"a": 0.9, "b": 0.1}
    first = arms(weights)
    assert first == arms(weights)
    share = np.mean([x.arm == "b" for x in first])
    assert share == pytest.approx(0.1, abs=0.02)
    assert all(x.propensity == pytest.approx(0.1) for x in first if x.arm == "b")
    other = arms(weights, salt="t")
    both = np.mean([x.arm == y.arm == "b" for x, y in zip(first, other, strict=True)])
    assert both == pytest.approx(0.01, abs=0.007)
    # Ramping up moves units in one direction only.
    wider = arms({"a": 0.5, "b": 0.5})
    assert all(y.arm == "b" for x, y in zip(first, wider, strict=True) if x.arm == "b")
    assert {x.arm for x in arms({"a": 0.0, "b": 2.0})} == {"b"}
    with pytest.raises(ValueError, match="positive sum"):
        assign_arm("u", {"a": 0.0}, salt="s")


def test_sample_ratio_mismatch_equals_scipys_chi_square():
    counts, weights = {"a": 5210, "b": 4790}, {"a": 0.5, "b": 0.5}
    expected = stats.chisquare([5210, 4790], [5000, 5000]).pvalue
    assert sample_ratio_mismatch(counts, weights) == pytest.approx(expected)
    assert sample_ratio_mismatch(counts, weights) < 0.001
    assert sample_ratio_mismatch({"a": 900, "b": 100}, {"a": 9, "b": 1}) == pytest.approx(1.0)
    assert sample_ratio_mismatch({"a": 9, "b": 1}, {"a": 1.0, "b": 1.0, "c": 0.0}) < 0.02
    assert sample_ratio_mismatch({"a": 9, "b": 9, "c": 1}, weights) == 0.0
    assert sample_ratio_mismatch({}, weights) == 1.0
    with pytest.raises(ValueError, match="two arms"):
        sample_ratio_mismatch({"a": 1}, {"a": 1.0})


def test_cuped_keeps_the_mean_and_removes_what_the_past_explains():
    rng = np.random.default_rng(1)
    past = rng.normal(size=4000)
    outcome = 0.8 * past + rng.normal(0, 0.6, size=4000)
    adjusted = cuped(outcome, past)
    assert adjusted.values.mean() == pytest.approx(outcome.mean())
    assert adjusted.theta == pytest.approx(0.8, abs=0.03)
    assert adjusted.reduction == pytest.approx(0.64, abs=0.03)
    assert cuped(outcome, np.ones(4000)).reduction == 0.0
    with pytest.raises(ValueError, match="covariates"):
        cuped([1.0, 2.0], [1.0])


def test_ratios_cover_and_reduce_to_means():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        sessions = rng.poisson(4, 60) + 1
        rate = rng.beta(2, 5, 60)
        clicks = rng.binomial(sessions, rate)
        estimate = ratio_estimate(clicks, sessions)
        held += estimate.low <= 2 / 7 <= estimate.high
    assert 0.92 < held / 400 < 0.98
    x = rng.normal(3, 1, size=200)
    users = np.repeat(np.arange(50), 4).tolist()
    ones = ratio_estimate(x, np.ones(200), users)
    assert ones.value == pytest.approx(x.mean())
    assert ones.standard_error == pytest.approx(clustered_standard_error(x, users))
    assert ones.half_width == pytest.approx(mean_estimate(x, users).half_width)
    with pytest.raises(ValueError, match="positive sum"):
        ratio_estimate([1.0], [0.0])


def test_replaying_a_policy_from_logs():
    rng = np.random.default_rng(3)
    n = 4000
    action = rng.random(n) < 0.2  # the logging policy takes action 1 one time in five
    reward = (rng.random(n) < np.where(action, 0.7, 0.3)).astype(float)
    logged = np.where(action, 0.2, 0.8)
    target = np.where(action, 0.9, 0.1)
    truth = 0.9 * 0.7 + 0.1 * 0.3
    plain = inverse_propensity(reward, logged, target)
    assert plain.value.low < truth < plain.value.high
    assert plain.effective_samples < 0.3 * n
    model = np.where(action, 0.68, 0.33)
    robust = inverse_propensity(
        reward, logged, target, predicted=model, predicted_target=np.full(n, 0.645)
    )
    assert robust.value.low < truth < robust.value.high
    assert robust.value.half_width < 0.8 * plain.value.half_width
    clipped = inverse_propensity(reward, logged, target, clip=2.0)
    assert clipped.clipped_share == pytest.approx(action.mean())
    assert clipped.value.value < truth
    same = inverse_propensity(reward, logged, logged)
    assert same.value.value == pytest.approx(reward.mean())
    assert same.effective_samples == pytest.approx(n)
    with pytest.raises(ValueError, match="positive"):
        inverse_propensity([1.0], [0.0], [0.5])
    with pytest.raises(ValueError, match="neither"):
        inverse_propensity([1.0], [0.5], [0.5], predicted=[1.0])


def test_shrunk_rates_are_closer_to_the_truth_than_raw_ones():
    rng = np.random.default_rng(4)
    truth = rng.beta(8, 12, size=300)
    right = rng.binomial(20, truth)
    shrunk = shrunk_rates(right, np.full(300, 20))
    raw = right / 20
    assert np.square(shrunk - truth).mean() < 0.75 * np.square(raw - truth).mean()
    assert shrunk.std() < raw.std()
    # Families keep their own centre; one far family is not drawn to the others.
    families = ["low"] * 150 + ["high"] * 150
    right = np.concatenate([rng.binomial(20, 0.1, 150), rng.binomial(20, 0.9, 150)])
    apart = shrunk_rates(right, np.full(300, 20), families)
    assert apart[:150].max() < 0.3 and apart[150:].min() > 0.7
    assert shrunk_rates([3], [10])[0] == pytest.approx(3.5 / 11)
    with pytest.raises(ValueError, match="num_right"):
        shrunk_rates([5], [4])
