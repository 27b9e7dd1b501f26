"""What the controller reads out of few and noisy groups, and what a lesson is worth."""

from __future__ import annotations

import numpy as np
import pytest

from educe.core.seeds import numpy_random
from educe.scheduling.controller import ControlSettings, ShareController
from educe.scheduling.evidence import BatchCounts, Evidence
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain
from educe.scheduling.outlook import Outlook, expected_spread
from educe.scheduling.results import GroupResult
from educe.scheduling.strategies import expected_gain


def evidence_of(num_domains: int, num_families: int = 1) -> Evidence:
    return Evidence(np.arange(num_domains) % num_families, np.zeros(num_domains))


def batch(rates, rng, costs=None, groups: float = 1.0) -> BatchCounts:
    """One group of eight a domain, as a binomial draw."""
    right = rng.binomial(8, rates) / 8
    ones = np.full(len(rates), groups)
    return BatchCounts(
        groups=ones,
        scored_groups=ones,
        scored=8 * ones,
        score_sum=8 * right,
        spread_sum=2 * np.sqrt(right * (1 - right)),
        regret_sum=np.zeros(len(rates)),
        cost_sum=ones if costs is None else costs,
    )


def test_costs_of_alike_domains_are_not_told_apart_by_chance():
    rng = numpy_random("costs", 1)
    alike, unlike = evidence_of(60), evidence_of(60)
    means = np.where(np.arange(60) % 2, 3.0, 1.0)
    for _ in range(12):
        noise = rng.gamma(8.0, 1 / 8, 60)
        alike.update(batch(np.full(60, 0.5), rng, noise))
        unlike.update(batch(np.full(60, 0.5), rng, means * noise))
    raw = alike.cost / alike.groups
    assert np.std(alike.mean_cost()) < 0.35 * np.std(raw)
    found = unlike.mean_cost()
    assert found[1::2].mean() / found[::2].mean() == pytest.approx(3.0, rel=0.1)
    assert found[1::2].min() > 1.5 * found[::2].max()


def test_a_domain_without_costs_costs_what_its_family_does():
    evidence = evidence_of(4, 2)
    counts = batch(np.full(4, 0.5), numpy_random("c", 1), np.array([2.0, 8.0, 0.0, 0.0]))
    counts.groups = np.array([1.0, 1.0, 0.0, 0.0])
    for _ in range(30):
        evidence.update(counts)
    cost = evidence.mean_cost()
    assert cost[2] == pytest.approx(cost[0], rel=0.25) and cost[3] == pytest.approx(8, rel=0.15)


def test_first_decisions_are_careful():
    """With equal domains, what chance says of the first groups moves shares less than later."""
    rng = numpy_random("first", 1)
    careful, bold = (
        ShareController(
            np.ones(40), evidence_of(40), ControlSettings(settle=settle), np.arange(40.0),
            np.zeros(40, dtype=bool),
        )
        for settle in (6.0, 0.0)
    )  # fmt: skip
    widths = []
    for number in range(40):
        counts = batch(np.full(40, 0.5), rng)
        for controller in (careful, bold):
            controller.observe(counts)
        if number in (1, 39):
            widths.append([float(np.std(np.log(c.shares))) for c in (careful, bold)])
    (early, early_bold), (late, late_bold) = widths
    assert early < 0.5 * early_bold
    assert late == pytest.approx(late_bold, rel=0.5)


def test_the_spread_of_a_group_is_widest_in_the_middle():
    spread = expected_spread(np.array([0.02, 0.2, 0.5, 0.8, 0.98]))
    assert spread[2] == spread.max() and spread[0] < 0.2 and spread[4] < 0.2
    assert spread[1] == pytest.approx(spread[3], rel=1e-6)


def test_lessons_at_the_foot_of_the_curve_count_for_what_they_lead_to():
    outlook = Outlook.of(Evidence.slope)
    levels = np.array([0.03, 0.1, 0.5, 0.9])
    near, far = outlook(levels, np.full(4, 0.01)), outlook(levels, np.full(4, 3.0))
    assert near == pytest.approx(np.ones(4), abs=0.25)
    assert far[0] > 2.0 and far[0] > far[1] > 1.0
    assert far[2:] == pytest.approx([1.0, 1.0]), "past the steep part the next lesson decides"
    # More within reach is never worth less, and ends of the tables are held.
    reaches = [outlook(np.array([0.03]), np.array([r]))[0] for r in (0.0, 0.1, 1.0, 5.0, 1e9)]
    assert reaches == sorted(reaches)
    assert np.isfinite(outlook(np.array([0.0, 1.0]), np.array([1.0, 1.0]))).all()


def test_more_spread_than_a_level_lets_expect_is_no_signal():
    """A coin flip has the largest spread there is; it is not wished for because of it."""
    rng = numpy_random("flip", 1)
    evidence = evidence_of(20, 5)
    for _ in range(30):
        counts = batch(np.full(20, 0.5), rng)
        counts.spread_sum[0] = 1.0
        counts.spread_sum[1:] = 0.6
        evidence.update(counts)
    signal = expected_gain(evidence, 0.0, np.array([40.0])).factors["signal"]
    assert signal[0] == pytest.approx(signal[1:].mean(), rel=0.15)
    # Where groups turn out to carry nothing at all, that is believed.
    for _ in range(200):
        counts = batch(np.full(20, 0.5), rng)
        counts.spread_sum[0] = 0.0
        evidence.update(counts)
    later = expected_gain(evidence, 0.0, np.array([1.0])).factors
    assert later["signal"][0] < 0.3 * signal[0]


def test_near_the_end_lessons_count_for_what_they_add():
    """A low domain is wished for while its later gains are within the run, then less."""
    rng = numpy_random("end", 1)
    evidence = evidence_of(20, 20)
    rates = np.array([0.04, 0.04, *([0.5] * 18)])
    for _ in range(40):
        evidence.update(batch(rates, rng))
    rooms = [expected_gain(evidence, 0.0, np.array([left])).factors["room"] for left in (60.0, 0.5)]
    assert rooms[0][:2].mean() > 1.5 * rooms[1][:2].mean()
    assert rooms[0][2:] == pytest.approx(rooms[1][2:])


def test_a_mixture_knows_what_is_left_of_its_run():
    names = {f"f/d{i}": MixedDomain(1.0, "f") for i in range(4)}
    mixed = AdaptiveMixture(names, ControlSettings(), num_prompts=80)
    for step in range(5):
        results = [
            GroupResult(8 * step + i, mixed.next_domain(), step, (1.0, 0.0), 10) for i in range(8)
        ]
        mixed.observe(results)
    assert mixed.controller.rounds_left == pytest.approx((80 - 40) / 4)
    again = AdaptiveMixture(names, ControlSettings(), num_prompts=80)
    again.restore(mixed.state())
    assert again.controller.rounds_left == mixed.controller.rounds_left
    assert again.shares == mixed.shares


def test_the_lowest_are_not_left_behind_but_the_hopeless_are():
    """Ten domains: a hopeless one, two low ones, the others in the middle of their curve."""
    rng = numpy_random("low", 1)
    rates = np.array([0.0, 0.06, 0.06, *([0.5] * 7)])
    shares = {}
    for lowest in (0.2, 0.0):
        controller = ShareController(
            np.ones(10), Evidence(np.arange(10), np.zeros(10)), ControlSettings(lowest=lowest),
            np.arange(10.0), np.zeros(10, dtype=bool),
        )  # fmt: skip
        for _ in range(60):
            controller.observe(batch(rates, rng))
        shares[lowest] = 10 * controller.shares
        assert controller.lowest()[:3].tolist() == [False, lowest > 0, lowest > 0]
    settings = ControlSettings()
    assert shares[0.2][0] == pytest.approx(settings.floor, rel=0.2)
    assert (shares[0.2][1:3] >= settings.lowest_floor - 1e-9).all()
