"""Several samples of a task, agreement of raters, corrected judges, corpus metrics."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.evaluation.statistics import (
    CORPUS_METRICS,
    REDUCERS,
    agreement_estimate,
    auroc,
    cohen_kappa,
    corpus_estimate,
    f1_macro,
    f1_micro,
    fleiss_kappa,
    graded_pass_at_k,
    gwet_ac1,
    krippendorff_alpha,
    majority_at_k,
    mean_graded_pass_at_k,
    pass_at_k,
    pass_hat_k,
    prediction_powered_mean,
    raw_agreement,
    recall_at_false_positive_rate,
    reduce_samples,
    rogan_gladen,
    stability,
    swap_consistency,
    win_rate,
)

# --- pass@k and kin -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.data())
def test_pass_estimators_are_averages_over_all_subsets(total, data):
    right = data.draw(st.integers(0, total))
    k = data.draw(st.integers(1, total))
    hits = [sum(c) for c in itertools.combinations([1] * right + [0] * (total - right), k)]
    assert pass_at_k(right, total, k) == pytest.approx(np.mean([h >= 1 for h in hits]))
    assert pass_hat_k(right, total, k) == pytest.approx(np.mean([h == k for h in hits]))
    for share in (0.25, 0.5, 0.75, 1.0):
        needed = math.ceil(share * k)
        expected = np.mean([h >= needed for h in hits])
        assert graded_pass_at_k(right, total, k, share) == pytest.approx(expected)


def test_unbiased_pass_at_k_and_the_plug_ins_bias():
    """p = .3, K = 10, k = 5: plug-in .760 against a truth of .832; pass^5 .0109 against .0024."""
    weights = [math.comb(10, c) * 0.3**c * 0.7 ** (10 - c) for c in range(11)]
    counts = np.arange(11)
    assert weights @ pass_at_k(counts, 10, 5) == pytest.approx(1 - 0.7**5)
    assert round(1 - 0.7**5, 3) == 0.832
    assert weights @ (1 - (1 - counts / 10) ** 5) == pytest.approx(0.760, abs=5e-4)
    assert weights @ pass_hat_k(counts, 10, 5) == pytest.approx(0.3**5)
    assert round(0.3**5, 4) == 0.0024
    assert weights @ (counts / 10) ** 5 == pytest.approx(0.0109, abs=5e-5)


def test_pass_at_k_of_many_samples_and_wrong_k():
    assert pass_at_k([0, 1, 199, 200], 200, 100) == pytest.approx([0, 0.5, 1, 1])
    assert pass_at_k(3, 1000, 1000) == 1.0
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k = {k} cannot be estimated from 4 samples"):
            pass_at_k(2, 4, k)
    with pytest.raises(ValueError, match=r"\[0, 4\]"):
        pass_hat_k(5, 4, 1)
    with pytest.raises(ValueError, match="share"):
        graded_pass_at_k(1, 4, 2, 1.5)


def test_mean_graded_pass_is_between_half_and_all():
    value = mean_graded_pass_at_k(12, 16, 8)
    assert pass_hat_k(12, 16, 8) < value < 1
    assert mean_graded_pass_at_k(16, 16, 8) == pytest.approx(1.0)
    assert mean_graded_pass_at_k([0, 16], 16, 4) == pytest.approx([0.0, 1.0])


def test_majority_by_answer_class():
    votes = ["4", "4", "5", "6", None, None, None]
    assert majority_at_k(votes, {"4"}, 7) == 1.0
    assert majority_at_k(["4", "5"], {"4"}, 2) == 0.5
    assert majority_at_k([None, None], {"4"}, 2) == 0.0
    one = majority_at_k(["4", "5", "5", "5"], {"4"}, 1, draws=4000)
    assert one == pytest.approx(0.25, abs=0.03)
    assert majority_at_k(["4"] * 3 + ["5"] * 2, {"4"}, 3) > 0.6
    with pytest.raises(ValueError, match="k = 3"):
        majority_at_k(["4"], {"4"}, 3)


def test_stability_tells_consistently_wrong_from_unstable():
    steady = stability(["5", "5", "5", "5"], {"4"})
    assert steady.is_consistently_wrong and not steady.flips
    assert (steady.agreement, steady.entropy, steady.modal_rate) == (1.0, 0.0, 1.0)
    unstable = stability(["4", "5", "6", "7"], {"4"})
    assert not unstable.is_consistently_wrong and unstable.flips
    assert unstable.agreement == 0.0
    assert unstable.entropy == pytest.approx(math.log(4))
    # Unbiased: two classes at one half agree half of the time, whatever K.
    rng = np.random.default_rng(1)
    found = [stability(rng.integers(0, 2, 3).tolist(), {0}).agreement for _ in range(3000)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)
    with pytest.raises(ValueError, match="at least 2"):
        stability(["4"], {"4"})


# --- agreement ------------------------------------------------------------------------------------

NAN = math.nan
# A textbook example with missing ratings: four coders, twelve units, five categories.
CODERS = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T


@pytest.mark.parametrize(
    ("scale", "expected"),
    [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849), ("ratio", 0.797)],
)
def test_krippendorffs_alpha_on_the_textbook_example(scale, expected):
    assert krippendorff_alpha(CODERS, scale=scale) == pytest.approx(expected, abs=6e-4)


def test_kappas_on_worked_examples():
    first = [1] * 25 + [0] * 25
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    # Fourteen raters, ten items, five categories.
    table = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    ratings = [np.repeat(np.arange(5), row).tolist() for row in table]
    assert fleiss_kappa(ratings) == pytest.approx(0.210, abs=5e-4)
    assert cohen_kappa([1, 2, 3, 4], [1, 2, 3, 3], weights="quadratic") > cohen_kappa(
        [1, 2, 3, 4], [1, 2, 3, 3]
    )
    assert cohen_kappa([1, 5], [5, 1], weights="linear") == pytest.approx(-1.0)
    assert math.isnan(cohen_kappa([1, 1], [1, 1]))
    with pytest.raises(ValueError, match="same number"):
        fleiss_kappa(CODERS)


def test_quadratic_kappa_by_its_definition():
    rng = np.random.default_rng(2)
    x = rng.integers(1, 6, 300)
    y = np.clip(x + rng.integers(-1, 2, 300), 1, 5)
    observed = np.mean((x - y) ** 2.0)
    expected = np.mean((x[:, None] - y[None, :]) ** 2.0)
    assert cohen_kappa(x, y, weights="quadratic") == pytest.approx(1 - observed / expected)


def test_ac1_escapes_the_kappa_paradox():
    """118 of 125 agree, but one class dominates: kappa near zero, AC1 near the agreement."""
    ratings = np.array([[1, 1]] * 118 + [[1, 0]] * 5 + [[0, 1]] * 2, dtype=float)
    assert raw_agreement(ratings) == pytest.approx(118 / 125)
    assert abs(cohen_kappa(ratings[:, 0], ratings[:, 1])) < 0.05
    assert gwet_ac1(ratings) == pytest.approx(0.94, abs=0.01)
    assert gwet_ac1(CODERS) == pytest.approx(0.775, abs=0.001)
    with pytest.raises(ValueError, match="num_categories"):
        gwet_ac1(ratings, num_categories=1)


def test_agreement_comes_with_interval_raw_rate_and_prevalence():
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, 150)
    ratings = np.where(rng.random((150, 3)) < 0.8, truth[:, None], rng.integers(0, 3, (150, 3)))
    found = agreement_estimate(ratings, krippendorff_alpha, resamples=200)
    alpha = krippendorff_alpha(ratings)
    assert found.coefficient.value == pytest.approx(alpha)
    assert found.coefficient.low < 0.64 < found.coefficient.high  # .8 squared is the true alpha
    assert found.raw == pytest.approx(raw_agreement(ratings))
    assert sum(found.prevalence.values()) == pytest.approx(1.0)
    # Independent raters agree by chance alone.
    noise = rng.integers(0, 2, (400, 2))
    for coefficient in (krippendorff_alpha(noise), cohen_kappa(noise[:, 0], noise[:, 1])):
        assert abs(coefficient) < 0.12


# --- judges ---------------------------------------------------------------------------------------


def test_rogan_gladen_recovers_the_rate_and_covers():
    assert rogan_gladen(
        30, 100, true_positives=90, num_positives_labelled=100, true_negatives=80,
        num_negatives_labelled=100,
    ).value == pytest.approx((0.3 + 0.8 - 1) / 0.7)  # fmt: skip
    rng = np.random.default_rng(4)
    rate, sensitivity, specificity = 0.2, 0.85, 0.9
    held, raw = 0, 0
    for _ in range(1000):
        flagged = rate * sensitivity + (1 - rate) * (1 - specificity)
        positive = rng.binomial(500, flagged)
        estimate = rogan_gladen(
            int(positive), 500,
            true_positives=int(rng.binomial(60, sensitivity)), num_positives_labelled=60,
            true_negatives=int(rng.binomial(140, specificity)), num_negatives_labelled=140,
        )  # fmt: skip
        held += estimate.low <= rate <= estimate.high
        raw += abs(positive / 500 - rate) < 1.96 * math.sqrt(flagged * (1 - flagged) / 500)
    assert 0.93 < held / 1000 < 0.99
    assert raw / 1000 < 0.4  # the judge's own rate, with its own interval, misses
    with pytest.raises(ValueError, match="no better than chance"):
        rogan_gladen(
            5, 10, true_positives=5, num_positives_labelled=10, true_negatives=5,
            num_negatives_labelled=10,
        )  # fmt: skip


def test_a_perfect_small_sample_is_not_a_perfect_judge():
    estimate = rogan_gladen(
        20, 1000, true_positives=10, num_positives_labelled=10, true_negatives=10,
        num_negatives_labelled=10,
    )  # fmt: skip
    assert estimate.value == pytest.approx(0.02)
    assert estimate.high > 0.1


def test_prediction_powered_mean_removes_bias_and_covers():
    rng = np.random.default_rng(5)
    held, widths, classical = 0, [], []
    for _ in range(600):
        truth = (rng.random(1100) < 0.35).astype(float)
        flips = rng.random(1100) < np.where(truth == 1, 0.05, 0.15)
        judged = np.where(flips, 1 - truth, truth)
        estimate = prediction_powered_mean(judged[:1000], judged[1000:], truth[1000:])
        held += estimate.low <= 0.35 <= estimate.high
        widths.append(estimate.half_width)
        classical.append(1.96 * truth[1000:].std(ddof=1) / 10)
    assert 0.92 < held / 600 < 0.98
    assert np.mean(widths) < 0.85 * np.mean(classical)
    with pytest.raises(ValueError, match="labels"):
        prediction_powered_mean([1.0, 0.0], [1.0, 0.0], [1.0])


def test_win_rates_count_both_orders():
    a_first = ["second", "first", "first", "tie", "second"]
    b_first = ["first", "second", "first", "tie", "tie"]
    found = win_rate(a_first, b_first)
    assert (found.wins, found.losses, found.ties, found.inconsistent) == (1, 1, 3, 1)
    assert found.rate.value == 0.5
    assert swap_consistency(a_first, b_first) == pytest.approx(3 / 5)
    # A judge that always takes the first place wins nothing for anyone.
    biased = win_rate(["first"] * 10, ["first"] * 10)
    assert (biased.ties, biased.inconsistent, biased.rate.value) == (10, 10, 0.5)
    with pytest.raises(ValueError, match="both orders"):
        win_rate(["first"], [])


# --- reducers and corpus metrics ------------------------------------------------------------------


def test_reducers_see_every_sample():
    """A harness kept only the first of several repeats: right, wrong, wrong is one third."""
    samples = [1.0, 0.0, 0.0]
    assert {n: reduce_samples(samples, n) for n in REDUCERS} == {
        "mean": pytest.approx(1 / 3), "median": 0.0, "mode": 0.0, "max": 1.0, "min": 0.0
    }  # fmt: skip
    assert reduce_samples([1.0, 0.0], "mode") == 0.0
    with pytest.raises(ValueError, match="known are"):
        reduce_samples(samples, "first")
    with pytest.raises(ValueError, match="leave it out"):
        reduce_samples([])


@pytest.mark.parametrize("name", sorted(CORPUS_METRICS))
def test_every_corpus_metric_has_a_value_and_an_interval(name):
    """A harness raised TypeError for the error of a list-valued metric; every one here has one."""
    rng = np.random.default_rng(6)
    true = rng.integers(0, 2, 120).astype(float)
    scores = true + rng.normal(0, 0.6, 120)
    predicted = scores if name in ("auroc", "recall_at_1pct_fpr") else (scores > 0.5).astype(float)
    estimate = corpus_estimate(name, predicted, true, resamples=200)
    assert estimate.low <= estimate.value <= estimate.high
    assert 0 < estimate.standard_error < 0.3
    perfect = corpus_estimate(name, true, true, resamples=100)
    assert perfect.value == 1.0


def test_corpus_f1_is_not_the_mean_of_items():
    predicted, true = np.array([1.0, 1, 0, 0, 1]), np.array([1.0, 0, 1, 0, 1])
    assert f1_micro(predicted, true) == pytest.approx(2 / 3)
    assert f1_macro(predicted, true) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert math.isnan(f1_micro(np.zeros(3), np.zeros(3)))


def test_ranking_metrics():
    scores, true = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    assert auroc(scores, true) == 0.75
    assert auroc(np.ones(4), true) == 0.5
    assert math.isnan(auroc(scores, np.ones(4)))
    rng = np.random.default_rng(7)
    scores = np.concatenate([rng.normal(0, 1, 20_000), rng.normal(2, 1, 5_000)])
    labels = np.repeat([0, 1], [20_000, 5_000])
    # At 1 % false positives the threshold is 2.326, so recall is P(Z > .326).
    assert recall_at_false_positive_rate(scores, labels) == pytest.approx(0.372, abs=0.02)
    assert recall_at_false_positive_rate(np.ones(10), np.repeat([0, 1], 5)) == 0.0
    with pytest.raises(ValueError, match="unknown metric"):
        corpus_estimate("bleu", [1.0], [1.0])
    with pytest.raises(ValueError, match="equally many"):
        corpus_estimate("accuracy", [1.0], [1.0, 0.0])


def test_clusters_widen_corpus_intervals():
    rng = np.random.default_rng(8)
    true = np.repeat(rng.integers(0, 2, 40), 5).astype(float)
    predicted = np.repeat(rng.integers(0, 2, 40), 5).astype(float)
    apart = corpus_estimate("f1_micro", predicted, true, resamples=300)
    together = corpus_estimate(
        "f1_micro", predicted, true, np.repeat(np.arange(40), 5).tolist(), resamples=300
    )
    assert together.half_width > 1.6 * apart.half_width
