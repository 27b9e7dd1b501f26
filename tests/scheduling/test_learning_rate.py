"""Factors of learning rates: where the KL and the score push them, and that they come back."""

from __future__ import annotations

import json
import math
import random

import pytest

from educe.scheduling.learning_rate import DomainRates, RateBackOff


def run(scores: list[float | None], kl: float | None = None, rounds: int = 1) -> float:
    rates = DomainRates(kl=0.05)
    for _ in range(rounds):
        for score in scores:
            rates.observe("d", kl, score)
    return rates.factors()["d"]


def test_a_domain_that_moved_too_far_slows_down_to_its_least():
    assert run([0.5], kl=0.06) < 1.0
    assert run([0.5] * 100, kl=1.0) == pytest.approx(0.25)
    assert run([0.5], kl=0.01) == 1.0


def test_a_rising_score_speeds_up_and_a_sinking_one_slows_down():
    rng = random.Random(0)
    rising = [0.2 + 0.01 * i + 0.05 * rng.gauss(0, 1) for i in range(60)]
    assert run(list(rising)) > 1.3
    assert run(list(reversed(rising))) < 0.8


def test_noise_alone_moves_little():
    ends = []
    for seed in range(50):
        rng = random.Random(seed)
        ends.append(math.log(run([0.5 + 0.1 * rng.gauss(0, 1) for _ in range(100)])))
    assert abs(sum(ends) / len(ends)) < 0.1
    assert sum(abs(e) > 0.5 for e in ends) < 5


def test_it_comes_back_once_nothing_speaks_for_it():
    rates = DomainRates()
    for _ in range(10):
        rates.observe("d", 1.0, None)
    for _ in range(40):
        rates.observe("d", None, None)
    assert rates.factors() == {"d": pytest.approx(1.0)}


def test_what_is_not_known_moves_nothing():
    rates = DomainRates()
    rates.observe("d", math.nan, math.nan)
    rates.observe("d", math.inf, None)  # a KL that overflowed is no measurement
    assert rates.factors() == {"d": 1.0}


def test_domain_rates_resume():
    rates = DomainRates()
    for score in (0.1, 0.4, 0.2, 0.6):
        rates.observe("a", 0.2, score)
    rates.observe("b", None, None)
    again = DomainRates()
    again.restore(json.loads(json.dumps(rates.state())))
    for found in (rates, again):
        found.observe("a", None, 0.9)
        found.observe("b", 0.2, 0.5)
    assert rates.state() == again.state()


def test_the_run_gives_way_to_its_kl_and_recovers():
    back = RateBackOff(kl=0.1, by=0.5, recovery=1.5, least=0.2)
    seen = []
    for kl in (0.05, 0.2, 0.2, 0.2, 0.08, None, math.nan, 0.01, 0.01, 0.01, 0.01, 0.01):
        back.observe(kl)
        seen.append(round(back.factor, 4))
    assert seen == [1.0, 0.5, 0.25, 0.2, 0.2, 0.2, 0.2, 0.3, 0.45, 0.675, 1.0, 1.0]
