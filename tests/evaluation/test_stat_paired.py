"""Paired tests, sample sizes and non-inferiority: exact where they can be, else simulated."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from educe.evaluation.statistics import (
    binary_detectable_effect,
    binary_sample_size,
    macro_difference,
    mcnemar,
    minimum_detectable_effect,
    non_inferiority,
    paired_difference,
    paired_power,
    paired_sample_size,
    paired_t_interval,
    sign_flip_test,
)
from educe.evaluation.statistics.paired import adjusted_difference


@pytest.mark.parametrize(("learned", "forgotten"), [(0, 0), (5, 0), (0, 5), (8, 2), (30, 31)])
def test_mcnemar_equals_the_binomial_test(learned, forgotten):
    ours = mcnemar(learned, forgotten)
    total = learned + forgotten
    if total == 0:
        assert (ours.exact, ours.mid_p, ours.mid_p_greater) == (1.0, 1.0, 0.5)
        return
    for name, side in (
        ("exact", "two-sided"),
        ("exact_greater", "greater"),
        ("exact_less", "less"),
    ):
        theirs = stats.binomtest(learned, total, alternative=side).pvalue
        assert getattr(ours, name) == pytest.approx(theirs)
    half = stats.binom.pmf(learned, total, 0.5) / 2
    assert ours.mid_p_greater == pytest.approx(ours.exact_greater - half)
    assert ours.mid_p_less == pytest.approx(ours.exact_less - half)
    assert ours.mid_p_greater + ours.mid_p_less == pytest.approx(1.0)


def test_mcnemar_of_many_pairs_and_wrong_counts():
    assert mcnemar(1100, 900).mid_p == pytest.approx(
        2 * stats.norm.sf(200 / math.sqrt(2000)), rel=0.02
    )
    with pytest.raises(ValueError, match=">= 0"):
        mcnemar(-1, 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=40))
def test_sign_flips_of_single_items_are_mcnemar(differences):
    two, greater, less, method = sign_flip_test(differences)
    reference = mcnemar(differences.count(1.0), differences.count(-1.0))
    assert (two, greater, less) == pytest.approx(
        (reference.mid_p, reference.mid_p_greater, reference.mid_p_less)
    )
    assert method == "sign-flip-exact"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([k / 4 for k in range(-8, 9)] + [1 / 3]), min_size=1, max_size=9))
def test_the_exact_distribution_is_what_enumeration_gives(totals):
    _, greater, less, method = sign_flip_test(totals)
    sums = [sum(s * abs(t) for s, t in zip(signs, totals, strict=True))
            for signs in itertools.product((-1, 1), repeat=len(totals))]  # fmt: skip
    observed = sum(totals)
    above = np.mean([s > observed + 1e-9 for s in sums])
    at = np.mean([abs(s - observed) <= 1e-9 for s in sums])
    assert greater == pytest.approx(above + at / 2)
    assert less == pytest.approx(1 - above - at / 2)
    assert method == "sign-flip-exact"


def test_tiny_p_values_survive_rounding():
    _, greater, less, _ = sign_flip_test(np.ones(90))
    assert greater == pytest.approx(0.5**91)
    assert sign_flip_test(-np.ones(90))[2] == pytest.approx(0.5**91)
    assert 0 <= less <= 1


def test_drawn_flips_agree_with_the_t_test():
    rng = np.random.default_rng(1)
    x = rng.normal(0.25, 1, size=80)
    two, greater, _, method = sign_flip_test(x)
    assert method == "sign-flip-drawn"
    reference = stats.ttest_1samp(x, 0).pvalue
    assert two == pytest.approx(reference, abs=0.01)
    assert greater == pytest.approx(reference / 2, abs=0.006)
    assert sign_flip_test(np.abs(x) + 1)[0] > 0
    assert sign_flip_test(x) == sign_flip_test(x)


def simulate(rng, n: int, p_before: float, p_after: float, agree: float):
    """Two correlated runs: with probability ``agree`` the two share their uniform number."""
    u = rng.random(n)
    v = np.where(rng.random(n) < agree, u, rng.random(n))
    return (u < p_before).astype(float), (v < p_after).astype(float)


def test_false_alarms_and_power_of_the_paired_test():
    """At most 5 % false "better" or "worse" under no change; power where the formula says."""
    rng = np.random.default_rng(2)
    replicates = 1200
    null = [paired_difference(*simulate(rng, 60, 0.3, 0.3, 0.7)).p_value for _ in range(replicates)]
    assert 0.01 < np.mean(np.array(null) <= 0.05) <= 0.06
    agree, p, delta = 0.5, 0.4, 0.1
    # Discordance of these two runs: they differ where u and v are separate, or fall between.
    separate = p * (1 - p - delta) + (1 - p) * (p + delta)
    discordance = agree * delta + (1 - agree) * separate
    n = binary_sample_size(delta, discordance)
    found = [paired_difference(*simulate(rng, n, p, p + delta, agree)) for _ in range(500)]
    power = np.mean([f.p_value <= 0.05 and f.estimate.value > 0 for f in found])
    assert power == pytest.approx(0.8, abs=0.05)
    covered = np.mean([f.estimate.low <= delta <= f.estimate.high for f in found])
    assert covered > 0.93
    assert np.mean([f.discordant for f in found]) == pytest.approx(discordance, abs=0.01)


def test_pairing_narrows_and_clusters_widen():
    rng = np.random.default_rng(3)
    x, y = simulate(rng, 200, 0.4, 0.5, 0.9)
    paired = paired_t_interval(x, y)
    unpaired = math.sqrt(x.var(ddof=1) / 200 + y.var(ddof=1) / 200)
    assert paired.standard_error < 0.6 * unpaired
    assert paired.standard_error == pytest.approx(stats.sem(y - x))
    four = [np.repeat(a, 4) for a in (x, y)]
    clustered = paired_difference(*four, np.repeat(np.arange(200), 4).tolist())
    naive = paired_difference(*four)
    assert clustered.estimate.value == pytest.approx(naive.estimate.value)
    assert clustered.estimate.half_width == pytest.approx(2 * naive.estimate.half_width, rel=0.02)
    assert clustered.p_value == pytest.approx(paired_difference(x, y).p_value)
    assert naive.p_value < clustered.p_value


def test_nothing_changed_is_not_certainty():
    """No discordant pair among 20 tasks: the interval still reaches past ten points."""
    estimate = paired_difference([0.0] * 20, [0.0] * 20).estimate
    assert estimate.value == 0.0
    assert estimate.low == -estimate.high and estimate.high > 0.1
    plain = adjusted_difference(np.zeros(20), np.ones(20), pseudo=0.0)
    assert plain.half_width == 0.0
    one = paired_difference([0.0], [1.0])
    assert one.p_value == 0.5 and (one.estimate.low, one.estimate.high) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("n", "samples", "before", "after"),
    [(20, 1, 0.02, 0.02), (20, 1, 0.1, 0.3), (50, 1, 0.05, 0.2), (20, 4, 0.05, 0.1),
     (50, 4, 0.05, 0.1), (20, 8, 0.3, 0.5)],
)  # fmt: skip
def test_the_adjusted_interval_covers_where_few_tasks_change(n, samples, before, after):
    rng = np.random.default_rng(4)
    held = []
    for _ in range(400):
        a, b = (rng.beta(2 * p, 2 - 2 * p, n) for p in (before, after))
        x, y = rng.binomial(samples, a) / samples, rng.binomial(samples, b) / samples
        estimate = adjusted_difference(y - x, np.ones(n), pseudo=1 / math.sqrt(samples))
        held.append(estimate.low <= after - before <= estimate.high)
    assert np.mean(held) > 0.935


def domains_of(rng, count, tasks, lose, gain):
    """Paired differences of domains in which tasks are lost and gained at given rates."""
    moves = rng.choice([-1.0, 0.0, 1.0], p=[lose, 1 - lose - gain, gain], size=(count, tasks))
    before = (moves < 0).astype(float)
    return [paired_difference(b, b + d) for b, d in zip(before, moves, strict=True)]


@pytest.mark.parametrize(
    ("count", "tasks", "lose", "gain"),
    [(8, 50, 0.05, 0.15), (8, 50, 0.02, 0.02), (60, 10, 0.02, 0.02), (3, 10, 0.02, 0.05)],
)
def test_the_macro_difference_covers_and_raises_no_false_alarms(count, tasks, lose, gain):
    rng = np.random.default_rng(6)
    held, better = 0, 0
    for _ in range(150):
        estimate = macro_difference(domains_of(rng, count, tasks, lose, gain))
        held += estimate.low <= gain - lose <= estimate.high
        better += estimate.low > 0
    assert held / 150 > 0.91
    if gain == lose:
        assert better / 150 <= 0.05


def test_a_hundred_domains_show_a_small_common_gain():
    """One point over 2,000 tasks: near one half of the time, not one time in twelve."""
    rng = np.random.default_rng(7)
    found = [macro_difference(domains_of(rng, 100, 20, 0.02, 0.03)) for _ in range(80)]
    assert np.mean([e.low > 0 for e in found]) > 0.33
    assert found[0].num_items == 2000
    alone = paired_difference([0.0] * 20, [0.0] * 19 + [1.0])
    assert macro_difference([alone]) == alone.estimate
    nothing = macro_difference([paired_difference([0.0] * 20, [0.0] * 20)] * 4)
    assert 0.01 < nothing.high < 0.06
    lone = macro_difference([paired_difference([0.0], [1.0]), alone])
    assert lone.low < 0 < lone.value
    with pytest.raises(ValueError, match="at least one"):
        macro_difference([])


SIZES = [
    (0.01, 0.1, 7842), (0.01, 0.2, 15691), (0.01, 0.3, 23540),
    (0.02, 0.1, 1955), (0.02, 0.2, 3917), (0.02, 0.3, 5879),
    (0.03, 0.1, 865), (0.03, 0.2, 1737), (0.03, 0.3, 2609),
    (0.05, 0.1, 307), (0.05, 0.2, 621), (0.05, 0.3, 935),
]  # fmt: skip


@pytest.mark.parametrize(("delta", "discordance", "items"), SIZES)
def test_sample_sizes_of_the_design(delta, discordance, items):
    assert abs(binary_sample_size(delta, discordance) - items) <= 1
    size = binary_sample_size(delta, discordance)
    assert binary_detectable_effect(size, discordance) == pytest.approx(delta, rel=0.002)


def test_164_tasks_cannot_resolve_ten_points_at_common_discordance():
    assert 0.09 < binary_detectable_effect(164, 0.2) < 0.1
    assert binary_detectable_effect(164, 0.3) > 0.11


def test_general_sample_size_power_and_detectable_effect():
    # About a thousand questions for three points, as in the paper's own example.
    size = paired_sample_size(
        0.03, item_variance=1 / 9, before_variance=1 / 6, after_variance=1 / 6, before_samples=10,
        after_samples=10,
    )  # fmt: skip
    assert 900 < size < 1300
    assert minimum_detectable_effect(0.02) == pytest.approx(0.056, abs=0.0005)
    assert paired_power(minimum_detectable_effect(0.02), 0.02) == pytest.approx(0.8, abs=0.001)
    assert paired_power(0.0, 0.02) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="zero"):
        paired_sample_size(0.0, item_variance=1.0)
    with pytest.raises(ValueError, match="discordance"):
        binary_sample_size(0.3, 0.2)
    with pytest.raises(ValueError, match="power"):
        minimum_detectable_effect(0.1, power=1.0)


def test_non_inferiority_is_not_the_absence_of_significance():
    rng = np.random.default_rng(5)
    few = non_inferiority(*simulate(rng, 20, 0.5, 0.5, 0.5), margin=0.05)
    assert not few.is_non_inferior
    many = non_inferiority(*simulate(rng, 4000, 0.5, 0.5, 0.5), margin=0.05)
    assert many.is_non_inferior and many.p_value < 0.05
    assert many.lower_bound > -0.05
    at_margin = [
        non_inferiority(*simulate(rng, 400, 0.5, 0.4, 0.5), margin=0.1) for _ in range(800)
    ]
    assert np.mean([t.is_non_inferior for t in at_margin]) == pytest.approx(0.05, abs=0.02)
    for test in at_margin[:50]:
        assert test.is_non_inferior == (test.p_value < 0.05) or abs(test.p_value - 0.05) < 0.01
    with pytest.raises(ValueError, match="margin"):
        non_inferiority([0.0], [0.0], margin=0.0)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="2 before, 1 after"):
        paired_difference([0.0, 1.0], [1.0])
