"""Proportions, clustered means, bootstrap: against closed forms, scipy and simulation.

Simulated figures are acceptance values of the design: how often an interval holds the truth.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from educe.evaluation.statistics import (
    beta_posterior,
    bootstrap_mean,
    bootstrap_statistic,
    chance_corrected,
    clopper_pearson,
    clustered_standard_error,
    macro_average,
    macro_chance_corrected,
    mean_estimate,
    score_estimate,
    standard_error,
    variance_split,
    wilson,
    zero_failure_bound,
)
from educe.evaluation.statistics.estimates import Estimate


@pytest.mark.parametrize(("right", "total"), [(0, 1), (0, 20), (3, 7), (97, 100), (50, 50)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_proportion_intervals_equal_scipys(right, total, level):
    reference = stats.binomtest(right, total)
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        theirs = reference.proportion_ci(level, method=method)
        estimate = ours(right, total, level=level)
        assert (estimate.low, estimate.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
        assert estimate.value == right / total


def test_beta_posterior_and_zero_failures():
    theirs = stats.beta(4, 6).interval(0.95)
    ours = beta_posterior(3, 8)
    assert (ours.low, ours.high) == pytest.approx(theirs)
    assert ours.value == pytest.approx(0.4)
    assert ours.standard_error == pytest.approx(stats.beta(4, 6).std())
    for n in (30, 100, 1000):
        assert zero_failure_bound(n) == pytest.approx(3 / n, rel=0.07)
        assert zero_failure_bound(n) < 3 / n
    assert zero_failure_bound(29) == pytest.approx(clopper_pearson(0, 29, level=0.9).high)


def coverage_of_proportions(p: float, n: int, interval) -> float:
    """Exact coverage: the probabilities of all outcomes whose interval holds p."""
    counts = np.arange(n + 1)
    holds = []
    for k in counts:
        low, high = interval(int(k), n)
        holds.append(low <= p <= high)
    return float(stats.binom.pmf(counts, n, p)[holds].sum())


def normal_interval(k: int, n: int) -> tuple[float, float]:
    half = 1.959964 * math.sqrt(k / n * (1 - k / n) / n)
    return k / n - half, k / n + half


def wilson_interval(k: int, n: int) -> tuple[float, float]:
    estimate = wilson(k, n)
    return estimate.low, estimate.high


@pytest.mark.parametrize(("n", "clt", "ours"), [(30, 0.59, 0.94), (100, 0.80, 0.97)])
def test_wilson_covers_where_the_normal_interval_does_not(n, clt, ours):
    """At p = .97 the normal interval covers 59 % and 80 %, Wilson's 94 % and 97 %."""
    assert coverage_of_proportions(0.97, n, normal_interval) == pytest.approx(clt, abs=0.02)
    assert coverage_of_proportions(0.97, n, wilson_interval) == pytest.approx(ours, abs=0.01)
    exact = coverage_of_proportions(
        0.97, n, lambda k, m: (clopper_pearson(k, m).low, clopper_pearson(k, m).high)
    )
    assert exact >= 0.95


def clustered_scores(rng, clusters, size, icc, replicates, mean=0.5) -> np.ndarray:
    """0/1 scores [replicates, clusters, size] with intra-cluster correlation.

    Every member of a cluster copies the cluster's own coin with probability sqrt(icc).
    """
    coin = rng.random((replicates, clusters, 1)) < mean
    own = rng.random((replicates, clusters, size)) < mean
    copies = rng.random((replicates, clusters, size)) < math.sqrt(icc)
    return np.where(copies, coin, own).astype(float)


def test_clustered_standard_error_covers_and_the_naive_one_does_not():
    """ICC .4, 40 clusters of 10: true sd .0527; naive SE .0244 covers 64 %, clustered 94 %."""
    rng = np.random.default_rng(1)
    x = clustered_scores(rng, 40, 10, 0.4, 3000, mean=0.6)
    means = x.mean((1, 2))
    assert means.std() == pytest.approx(0.0527, abs=0.002)
    naive = x.reshape(3000, -1).std(1, ddof=1) / 20
    sums = (x - means[:, None, None]).sum(2)
    robust = np.sqrt((sums**2).sum(1) * 40 / 39) / 400
    labels = np.repeat(np.arange(40), 10).tolist()
    for i in range(20):  # the library's own function is what the vectorised line says
        flat = x[i].ravel()
        assert clustered_standard_error(flat, labels) == pytest.approx(robust[i])
        assert standard_error(flat) == pytest.approx(naive[i], rel=0.01)
    assert naive.mean() == pytest.approx(0.0244, abs=0.0004)
    assert robust.mean() == pytest.approx(0.0523, abs=0.001)
    covers = lambda se, t: (np.abs(means - 0.6) <= t * se).mean()  # noqa: E731
    assert covers(naive, 1.96) == pytest.approx(0.64, abs=0.03)
    assert covers(robust, stats.t.ppf(0.975, 39)) == pytest.approx(0.94, abs=0.015)


def test_score_estimate_covers_with_duplicates_and_with_samples():
    """Coverage of the interval that reports use, for contents drawn repeatedly and for K = 4."""
    rng = np.random.default_rng(2)
    held = {"duplicates": 0, "samples": 0, "naive samples": 0}
    replicates = 600
    for _ in range(replicates):
        flat = clustered_scores(rng, 30, 3, 0.9, 1)[0].ravel()
        estimate = score_estimate([[v] for v in flat], np.repeat(np.arange(30), 3).tolist())
        held["duplicates"] += estimate.low <= 0.5 <= estimate.high
        difficulty = rng.beta(0.5, 1.5, 40)
        draws = rng.random((40, 4)) < difficulty[:, None]
        estimate = score_estimate(draws.astype(float).tolist())
        held["samples"] += estimate.low <= 0.25 <= estimate.high
        naive = wilson(int(draws.sum()), draws.size)
        held["naive samples"] += naive.low <= 0.25 <= naive.high
    rates = {k: v / replicates for k, v in held.items()}
    assert rates["duplicates"] > 0.93
    assert rates["samples"] > 0.93
    assert rates["naive samples"] < 0.85


def test_samples_of_one_item_never_count_as_items():
    once = score_estimate([[1.0], [0.0], [1.0], [0.0]] * 5)
    repeated = score_estimate([[1.0] * 8, [0.0] * 8, [1.0] * 8, [0.0] * 8] * 5)
    assert repeated.half_width >= once.half_width
    assert repeated.num_items == 20
    # Samples that really vary do narrow it, but never below what all samples as items would give.
    varied = score_estimate([[1.0, 0.0] * 4] * 20)
    assert wilson(80, 160).half_width <= varied.half_width < once.half_width


def test_degenerate_scores_have_no_interval_of_width_zero():
    for samples in ([[0.0]] * 10, [[1.0, 1.0]] * 10, [[0.3]] * 10):
        estimate = score_estimate(samples)
        assert estimate.half_width > 0.1
    assert score_estimate([[0.0]] * 10).low == 0.0
    assert score_estimate([[1.0]] * 10).high == 1.0
    one = score_estimate([[1.0]] * 9, ["same"] * 9)
    assert one.num_clusters == 1 and one.low < 0.3


def test_graded_scores_take_the_bootstrap():
    rng = np.random.default_rng(3)
    x = rng.random(60)
    estimate = score_estimate([[v] for v in x])
    assert estimate.method == "bootstrap"
    reference = mean_estimate(x)
    assert estimate.low == pytest.approx(reference.low, abs=0.01)
    assert estimate.high == pytest.approx(reference.high, abs=0.01)


@pytest.mark.parametrize("clusters", [None, np.repeat(np.arange(50), 4).tolist()])
def test_bootstrap_standard_error_equals_the_closed_form(clusters):
    """A published harness is off by sqrt(1000): its bootstrap divides by the resamples again."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=200) + (0 if clusters is None else np.repeat(rng.normal(size=50), 4))
    closed = clustered_standard_error(x, clusters)
    drawn = bootstrap_mean(x, clusters, resamples=4000)
    assert drawn.standard_error == pytest.approx(closed, rel=0.04)
    general = bootstrap_statistic(lambda i: float(x[i].mean()), 200, clusters, resamples=1500)
    assert general.standard_error == pytest.approx(closed, rel=0.08)
    assert general.value == pytest.approx(x.mean())


def test_bootstrap_of_other_statistics_and_few_clusters():
    x = np.random.default_rng(5).exponential(size=100)
    median = bootstrap_statistic(lambda i: float(np.median(x[i])), 100)
    assert median.low < math.log(2) < median.high
    with pytest.raises(ValueError, match="undefined in 200 resamples"):
        bootstrap_statistic(lambda i: math.nan, 10, resamples=200)
    lone = bootstrap_mean([1.0, 2.0], ["a", "a"])
    assert (lone.low, lone.high) == (-math.inf, math.inf)
    # Expanded percentiles: with 8 items the plain ones would cover about 88 %.
    rng = np.random.default_rng(6)
    held = [bootstrap_mean(rng.normal(size=8), resamples=400, seed=s) for s in range(500)]
    assert np.mean([e.low <= 0 <= e.high for e in held]) > 0.92


def test_variance_split_finds_the_parts_and_predicts_designs():
    rng = np.random.default_rng(7)
    items = rng.normal(0, 0.3, size=(2000, 1))
    split = variance_split(items + rng.normal(0, 0.5, size=(2000, 4)))
    assert split.item_variance == pytest.approx(0.09, rel=0.15)
    assert split.sample_variance == pytest.approx(0.25, rel=0.05)
    assert split.standard_error(100, 1) == pytest.approx(math.sqrt(0.34 / 100), rel=0.05)
    assert split.standard_error(100, 10**6) == pytest.approx(math.sqrt(0.09 / 100), rel=0.1)
    with pytest.raises(ValueError, match=r"\(5, 1\)"):
        variance_split(np.ones((5, 1)))


def test_chance_correction():
    estimate = chance_corrected(wilson(50, 100), 0.25)
    assert estimate.value == pytest.approx(1 / 3)
    assert estimate.low == pytest.approx((wilson(50, 100).low - 0.25) / 0.75)
    assert chance_corrected(wilson(25, 100), 0.25).value == 0.0
    assert chance_corrected(wilson(0, 100), 0.25).value < 0
    with pytest.raises(ValueError, match="floor"):
        chance_corrected(wilson(1, 2), 1.0)


def test_macro_average_weights_domains_alike():
    big, small = wilson(900, 1000), wilson(1, 10)
    assert macro_average([big, small]).value == pytest.approx(0.5)
    assert macro_average([big, small], weights=[3, 1]).value == pytest.approx(0.7)
    one = score_estimate([[1.0], [0.0], [1.0], [1.0]] * 5)
    assert macro_average([one]).value == one.value
    assert macro_average([one]).half_width == pytest.approx(one.half_width, rel=0.1)
    zeros = macro_average([score_estimate([[0.0]] * 20)] * 3)
    assert zeros.low == 0.0 and 0.03 < zeros.high < 0.1
    beyond = macro_average([mean_estimate([-2.0, 1.0, 4.0]), mean_estimate([5.0, 6.0, 7.0])])
    assert beyond.method == "macro-t" and beyond.value == 3.5
    with pytest.raises(ValueError, match="coverage levels"):
        macro_average([wilson(1, 2), wilson(1, 2, level=0.9)])
    with pytest.raises(ValueError, match="at least one"):
        macro_average([])
    with pytest.raises(ValueError, match="positive weights"):
        macro_average([big], weights=[0])


@pytest.mark.parametrize(
    ("rates", "tasks"),
    [([0.02, 0.1, 0.3, 0.5, 0.9], 25), ([0.01] * 10, 30), (np.linspace(0, 0.1, 60).tolist(), 10),
     (np.linspace(0.2, 0.8, 8).tolist(), 50)],
)  # fmt: skip
def test_macro_average_covers_over_few_and_many_domains(rates, tasks):
    """Many domains of low scores included, where combining the domains' own limits covers 89 %."""
    rng = np.random.default_rng(8)
    truth, held, misses = float(np.mean(rates)), 0, 0
    for _ in range(400):
        right = rng.binomial(tasks, rates)
        estimates = [wilson(int(r), tasks) for r in right]
        estimate = macro_average(estimates)
        held += estimate.low <= truth <= estimate.high
        misses += truth < estimate.low
    assert held / 400 > 0.925
    assert misses / 400 < 0.05


def test_macro_chance_correction_is_the_mean_of_corrected_scores():
    estimates, floors = [wilson(10, 20), wilson(4, 20), wilson(19, 20)], [0.25, 0.0, 0.5]
    found = macro_chance_corrected(estimates, floors)
    corrected = [chance_corrected(e, f) for e, f in zip(estimates, floors, strict=True)]
    assert found.value == pytest.approx(np.mean([c.value for c in corrected]))
    error = math.sqrt(sum(c.standard_error**2 for c in corrected)) / 3
    assert found.standard_error == pytest.approx(error)
    assert found.low < found.value < found.high <= 1
    perfect = macro_chance_corrected([wilson(20, 20)] * 2, [0.25, 0.5])
    assert (perfect.value, perfect.high) == pytest.approx((1.0, 1.0))
    with pytest.raises(ValueError, match="floors"):
        macro_chance_corrected(estimates, [0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_estimate([1.0, math.nan]),
        lambda: score_estimate([[1.0], []]),
        lambda: score_estimate([]),
        lambda: score_estimate([[math.inf]]),
        lambda: mean_estimate([1.0, 2.0], ["a"]),
        lambda: wilson(3, 2),
        lambda: wilson(1, 0),
        lambda: wilson(1, 2, level=1.0),
        lambda: zero_failure_bound(0),
    ],
)
def test_wrong_input_is_refused(call):
    with pytest.raises(ValueError):
        call()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), min_size=1, max_size=30
    ),
    st.integers(1, 5),
)
def test_every_estimate_holds_its_value_and_ignores_order(samples, groups):
    clusters = [i % groups for i in range(len(samples))]
    estimate = score_estimate(samples, clusters)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    backwards = score_estimate(samples[::-1], clusters[::-1])
    assert (backwards.low, backwards.high) == pytest.approx((estimate.low, estimate.high))
    assert Estimate.from_json(estimate.to_json()) == estimate
