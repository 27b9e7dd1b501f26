"""Tests that may be looked at: false alarms and power of the design, burn-in, latch, state."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from educe.evaluation.statistics import (
    SequentialComparison,
    asymptotic_half_width,
    betting_sequence,
    empirical_bernstein_sequence,
    mixture_log_ratio,
    tightest_rho,
)
from educe.evaluation.statistics.sequential import MIN_BURN_IN

BASE = 0.6
VARIANCE = 2 * BASE * (1 - BASE)
# The published system tunes its boundary to be tightest early.
RHO = tightest_rho(250, VARIANCE)


def looks(rate: float, replicates: int, total: int = 5000, every: int = 50, seed: int = 0):
    """Return (n, differences, variances) [replicates, looks] of two binary arms."""
    rng = np.random.default_rng(seed)
    n = np.arange(every, total + 1, every)
    means = [rng.binomial(every, p, (replicates, len(n))).cumsum(1) / n for p in (BASE, rate)]
    variance = sum(m * (1 - m) for m in means) * n / np.maximum(n - 1, 1)
    return n, means[1] - means[0], variance


def stops(rejected: np.ndarray, n: np.ndarray) -> tuple[float, float]:
    """Return (share ever rejected, median n at the first rejection; inf when never)."""
    ever = rejected.any(1)
    return float(ever.mean()), float(np.median(np.where(ever, n[rejected.argmax(1)], np.inf)))


TABLE = [
    # rate, z at the end, z at every look, mixture, its median, confidence sequence, its median
    (0.60, 0.047, 0.357, 0.025, None, 0.023, None),
    (0.63, 0.88, 0.94, 0.60, None, 0.52, None),
    (0.66, 1.00, 1.00, 1.00, 1050, 1.00, 1100),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_designs_table_of_false_alarms_and_power(row):
    """Looks every 50, up to 5,000 an arm: 36 % false alarms for z, about 2 % for the valid ones."""
    rate, z_end, z_every, mixture, mixture_stop, sequence, sequence_stop = row
    n, d, v = looks(rate, 2000)
    z = np.abs(d) / np.sqrt(v / n)
    assert (z[:, -1] > 1.96).mean() == pytest.approx(z_end, abs=0.03)
    assert stops(z > 1.96, n)[0] == pytest.approx(z_every, abs=0.035)
    share, median = stops(mixture_log_ratio(d, v, n, 0.05) >= math.log(20), n)
    assert share == pytest.approx(mixture, abs=0.04 if rate > BASE else 0.012)
    if mixture_stop:
        assert median == pytest.approx(mixture_stop, abs=75)
    share, median = stops(np.abs(d) > asymptotic_half_width(v, n, RHO), n)
    assert share == pytest.approx(sequence, abs=0.04 if rate > BASE else 0.012)
    if sequence_stop:
        assert median == pytest.approx(sequence_stop, abs=75)


def every_user(replicates: int, total: int, seed: int) -> dict[tuple[str, int], float]:
    """False alarms when looking after every user, with the plug-in variance taken as it comes."""
    n, d, v = looks(BASE, replicates, total=total, every=1, seed=seed)
    tiny = np.where(v > 0, v, 1e-12)
    rules = {
        "mixture": mixture_log_ratio(d, tiny, n, 0.05) >= math.log(20),
        "sequence": np.abs(d) > asymptotic_half_width(tiny, n, RHO),
        "guarded": mixture_log_ratio(d, v, n, 0.05) >= math.log(20),
    }
    return {
        (name, burn): float(rejected[:, burn - 1 :].any(1).mean())
        for name, rejected in rules.items()
        for burn in (1, 20, 50)
    }


def test_no_burn_in_is_worthless_and_fifty_is_enough():
    """Every user, no burn-in: 48 % false alarms of the mixture test; 2.4 % after 50."""
    rates = every_user(replicates=600, total=1500, seed=1)
    assert rates["mixture", 1] == pytest.approx(0.48, abs=0.06)
    assert rates["mixture", 50] < 0.045
    assert rates["mixture", 20] < 0.06
    assert rates["sequence", 50] < 0.055
    # Ours also treats a variance of zero as "nothing known", which alone removes the trap.
    assert rates["guarded", 1] < 0.05


@pytest.mark.slow
def test_every_user_at_full_length():
    parts = [every_user(replicates=500, total=5000, seed=s) for s in range(6)]
    rates = {key: float(np.mean([p[key] for p in parts])) for key in parts[0]}
    assert rates["mixture", 1] == pytest.approx(0.48, abs=0.035)
    assert rates["mixture", 20] == pytest.approx(0.037, abs=0.017)
    assert rates["mixture", 50] == pytest.approx(0.024, abs=0.01)
    assert rates["sequence", 1] == pytest.approx(0.042, abs=0.015)
    assert rates["sequence", 20] == pytest.approx(0.054, abs=0.02)
    assert rates["sequence", 50] == pytest.approx(0.036, abs=0.012)


def test_rho_is_where_the_boundary_is_tightest():
    for planned in (100, 1000):
        rho = tightest_rho(planned, 0.48)
        here = asymptotic_half_width(0.48, planned, rho)
        for other in (rho * 0.9, rho * 1.1):
            assert asymptotic_half_width(0.48, planned, other) > here


@pytest.mark.parametrize("sequence", [betting_sequence, empirical_bernstein_sequence])
def test_bounded_sequences_hold_the_mean_at_every_look(sequence):
    """Finite-sample validity, rare outcomes included, without any burn-in."""
    rng = np.random.default_rng(2)
    options = {"grid": 101} if sequence is betting_sequence else {}
    for mean in (0.03, 0.6):
        missed = 0
        for _ in range(60):
            low, high = sequence((rng.random(250) < mean).astype(float), **options)
            missed += bool(((low > mean) | (high < mean)).any())
            assert (np.diff(low) >= 0).all() and (np.diff(high) <= 0).all()
        assert missed <= 8  # 3 expected at most; 9 of 60 has probability 0.3 %
    low, high = sequence(np.full(2000, 0.5), **options)
    assert low[-1] <= 0.5 <= high[-1]


def test_betting_is_tighter_than_bernstein_and_finds_a_change():
    rng = np.random.default_rng(3)
    x = (rng.random(1500) < 0.2).astype(float)
    betting, bernstein = betting_sequence(x), empirical_bernstein_sequence(x)
    assert betting[1][-1] - betting[0][-1] < bernstein[1][-1] - bernstein[0][-1]
    assert betting[1][-1] < 0.3
    # Paired differences in [-1, 1], mapped to [0, 1]: above one half is better.
    d = rng.choice([-1.0, 0.0, 1.0], p=[0.05, 0.7, 0.25], size=800)
    assert betting_sequence((d + 1) / 2)[0][-1] > 0.5
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        betting_sequence(d)


def test_burn_in_is_enforced_and_decisions_latch():
    with pytest.raises(ValueError, match="at least 50 an arm, got 20"):
        SequentialComparison(tau=0.05, burn_in=20)
    watch = SequentialComparison(tau=0.1)
    look = watch.update(np.zeros(40), np.ones(40) - np.arange(40) % 2 * 0.1)
    assert look.is_burning_in and look.decision == "undecided" and look.p_value == 1.0
    assert look.e_value == 1.0
    look = watch.update(np.zeros(10), np.ones(10))
    assert look.num_per_arm == MIN_BURN_IN and look.decision == "better"
    p = look.p_value
    look = watch.update(np.ones(500), np.zeros(500))
    assert look.decision == "better" and look.p_value == p
    assert look.difference < 0


def test_the_watcher_is_the_formula_and_can_be_saved():
    rng = np.random.default_rng(4)
    a, b = (rng.random((2, 400)) < np.array([[0.5], [0.62]])).astype(float)
    whole, parts = SequentialComparison(tau=0.05), SequentialComparison(tau=0.05)
    look = whole.update(a, b)
    for start in range(0, 400, 7):
        saved = SequentialComparison(**asdict(parts))
        partial = saved.update(a[start : start + 7], b[start : start + 7])
        parts = saved
    assert partial.difference == pytest.approx(look.difference)
    assert partial.e_value == pytest.approx(look.e_value)
    assert partial.p_value <= look.p_value  # the smallest of all its looks
    v = a.var(ddof=1) + b.var(ddof=1)
    expected = mixture_log_ratio(b.mean() - a.mean(), v, 400, 0.05)
    assert math.log(look.e_value) == pytest.approx(float(expected))
    half = asymptotic_half_width(v, 400, tightest_rho(1000, v))
    assert (look.low, look.high) == pytest.approx((look.difference - half, look.difference + half))


def test_the_watcher_holds_its_level_under_peeking():
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(150):
        watch = SequentialComparison(tau=0.1)
        for _ in range(12):
            draws = (rng.random((2, 50)) < BASE).astype(float)
            watch.update(draws[0], draws[1])
        alarms += watch.decision != "undecided"
    assert alarms <= 13  # 7.5 at most expected


def test_unequal_or_broken_outcomes_are_refused():
    watch = SequentialComparison(tau=0.05)
    with pytest.raises(ValueError, match="equally many"):
        watch.update([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="finite"):
        watch.update([math.nan], [1.0])
    with pytest.raises(ValueError, match="tau"):
        SequentialComparison(tau=0.0)
