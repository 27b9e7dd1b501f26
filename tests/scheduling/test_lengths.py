"""Long contexts: their own share, by prompts, tokens and seconds; and a limit that grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pytest

from educe.config.settings import Recipe
from educe.core.protocols import DomainSpec
from educe.scheduling.choice import build_mixture, build_ramp
from educe.scheduling.controller import ControlSettings, Reason
from educe.scheduling.lengths import LengthRamp
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain, StaticMixture
from educe.scheduling.results import GroupResult

TOKENS = {"short/a": 100, "short/b": 300, "long/a": 4000, "long/b": 8000}
MIXED = (1.0, 0.0, 1.0, 0.0)


def mixture(strategy: str = "static", **options: object) -> AdaptiveMixture:
    # Guaranteed visits stand above all shares; here they are rare enough not to be seen.
    settings = ControlSettings(strategy, long_share=0.5, visit_within=99.0, **options)  # type: ignore[arg-type]
    domains = {n: MixedDomain(1.0, n.partition("/")[0]) for n in TOKENS}
    return AdaptiveMixture(domains, settings, long=("long/*",))


def spend(
    mixed: AdaptiveMixture, batches: int = 60, costs: Mapping[str, float] = TOKENS
) -> tuple[Counter[str], Counter[str]]:
    """Return prompts and cost by domain of the second half of some batches."""
    prompts: Counter[str] = Counter()
    cost: Counter[str] = Counter()
    order = 0
    for number in range(batches):
        batch = []
        for _ in range(8):
            name = mixed.next_domain()
            batch.append(GroupResult(order, name, order, MIXED, int(costs[name])))
            order += 1
            if number >= batches // 2:
                prompts[name] += 1
                cost[name] += costs[name]
        mixed.observe(batch)
    return prompts, cost


def long_part(counts: Counter[str]) -> float:
    return sum(v for n, v in counts.items() if n.startswith("long/")) / counts.total()


@pytest.mark.parametrize("strategy", ["static", "expected_gain"])
def test_the_long_ones_get_their_share_of_the_tokens(strategy: str):
    prompts, tokens = spend(mixture(strategy), batches=200)
    assert long_part(tokens) == pytest.approx(0.5, abs=0.06)
    assert long_part(prompts) < 0.15, "hence few of the prompts"


def test_or_of_the_prompts():
    prompts, _ = spend(mixture(long_by_cost=False))
    assert long_part(prompts) == pytest.approx(0.5, abs=0.02)


def test_within_each_group_nothing_changes():
    mixed = mixture()
    spend(mixed)
    shares = mixed.shares
    assert shares["short/a"] == pytest.approx(shares["short/b"])
    assert shares["long/a"] == pytest.approx(shares["long/b"])
    assert sum(shares.values()) == pytest.approx(1.0)
    reasons = mixed.reasons
    assert reasons["long/a"] == Reason.LONG and reasons["short/a"] == Reason.WEIGHT


def test_measured_seconds_count_where_they_are_what_is_scarce():
    mixed = mixture()
    seconds = {"short/a": 1.0, "short/b": 1.0, "long/a": 1.0, "long/b": 1.0}
    order = 0
    for _ in range(40):
        batch = [GroupResult(order + i, mixed.next_domain(), 0, MIXED, 10**6) for i in range(8)]
        order += 8
        counts = Counter(r.domain for r in batch)
        mixed.observe(batch, {n: seconds[n] * counts[n] for n in counts})
    assert mixed.shares["long/a"] == pytest.approx(0.25, abs=0.01), "all take the same time"


def test_the_ramp_lets_the_long_ones_wait():
    ramp = LengthRamp({"short": 100, "middle": 1000, "long": 10_000}, 100, 10, early=0.0)
    limits = []
    seen = []
    for number in range(12):
        ramp.num_batches = number
        limits.append(ramp.limit)
        seen.append(tuple(n for n, f in ramp.factors().items() if f == 1.0))
    assert limits[0] == 100 and limits[5] == pytest.approx(1000) and limits[10] == 10_000
    assert seen[0] == ("short",) and seen[6] == ("short", "middle") and len(seen[11]) == 3


def test_the_shortest_take_part_whatever_the_limit():
    ramp = LengthRamp({"a": 500, "b": 900}, 10, 5)
    assert ramp.factors() == {"a": 1.0, "b": 0.05}
    assert LengthRamp({"a": 5}, 10, 5).factors() == {"a": 1.0}
    assert LengthRamp({}, 10, 5).factors() == {}
    assert set(LengthRamp({"a": 5, "b": 5000}, 10, 0).factors().values()) == {1.0}


def test_a_mixture_with_a_ramp_resumes_and_tells_its_limit():
    def fresh() -> AdaptiveMixture:
        ramp = LengthRamp(TOKENS, 300, 12, early=0.05)
        domains = {n: MixedDomain(1.0, "all") for n in TOKENS}
        return AdaptiveMixture(domains, ControlSettings("static"), ramp=ramp)

    one = fresh()
    assert one.shares["long/b"] == pytest.approx(0.05 / 2.1)
    spend(one, 6)
    two = fresh()
    two.restore(json.loads(json.dumps(one.state())))
    assert one.metrics() == two.metrics()
    assert 300 < one.metrics()["mixture/length_limit"] < 8000
    for mixed in (one, two):
        spend(mixed, 8)
        assert mixed.shares["long/b"] == pytest.approx(0.25)
    assert one.state() == two.state()


def test_a_raised_weight_stays_raised():
    one = mixture("static", long_by_cost=False)
    before = one.shares["short/a"]
    one.boost("short/a", 3.0)
    assert one.shares["short/a"] == pytest.approx(before * 1.5)  # of 1 : 1 it is 3 : 1
    two = mixture("static", long_by_cost=False)
    two.restore(json.loads(json.dumps(one.state())))
    assert two.shares == one.shares
    with pytest.raises(Exception, match="has no weight"):
        one.boost("nowhere", 2.0)
    with pytest.raises(Exception, match="fixed"):
        StaticMixture({"a": 1.0}).boost("a", 2.0)


def test_the_recipe_chooses_a_mixture_that_can_do_it():
    specs = {n: DomainSpec(n, n, "text", "") for n in TOKENS}
    weights = dict.fromkeys(TOKENS, 1.0)
    plain = Recipe()

    def built(**sections: object) -> object:
        recipe = Recipe.model_validate(sections)
        ramp = build_ramp(recipe.curriculum, TOKENS, 10)
        return build_mixture(recipe.mixture, recipe.curriculum, weights, specs, 0, ramp=ramp)

    assert isinstance(built(), StaticMixture)
    assert isinstance(built(mixture={"long_share": 0.3}), AdaptiveMixture)
    growing = built(curriculum={"lengths": "growing", "length_first": 200})
    assert isinstance(growing, AdaptiveMixture)
    assert growing.shares["short/a"] > 10 * growing.shares["long/a"]
    boosted = build_mixture(plain.mixture, plain.curriculum, weights, specs, 0, may_boost=True)
    assert isinstance(boosted, AdaptiveMixture)
