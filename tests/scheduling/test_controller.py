"""The controller of shares, on domains of every awkward kind."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from educe.core.errors import DomainError
from educe.scheduling.bounds import bounded_shares
from educe.scheduling.controller import (
    AT_CEILING,
    AT_FLOOR,
    REASON_TEXTS,
    ControlSettings,
    Reason,
    reason_text,
)
from educe.scheduling.evidence import Evidence
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain, StaticMixture
from educe.scheduling.results import GroupResult, quantise_cost

STRATEGIES = ("expected_gain", "success_variance", "learning_progress", "regret")
HALF = (1.0, 0.0, 1.0, 0.0)
RIGHT, WRONG, UNSCORED = (1.0,) * 4, (0.0,) * 4, (None,) * 4


def mixture(names, settings=None, **options) -> AdaptiveMixture:
    weights = names if isinstance(names, dict) else dict.fromkeys(names, 1.0)
    domains = {n: MixedDomain(w, n.partition("/")[0]) for n, w in weights.items()}
    return AdaptiveMixture(domains, settings or ControlSettings(), **options)


class Feed:
    """Plays batches: picks domains, answers with each domain's own rewards."""

    def __init__(self, mixed: AdaptiveMixture, rewards, tokens=None, batch: int = 16) -> None:
        self.mixed, self.rewards, self.tokens, self.batch = mixed, rewards, tokens or {}, batch
        self.issued: dict[str, int] = dict.fromkeys(mixed.names, 0)
        self.next_order = 0

    def results(self) -> list[GroupResult]:
        found = []
        for _ in range(self.batch):
            name = self.mixed.next_domain()
            given = self.rewards[name]
            drawn = given(self.issued[name]) if callable(given) else given
            self.issued[name] += 1
            found.append(
                GroupResult(
                    self.next_order, name, self.issued[name], drawn, self.tokens.get(name, 40)
                )
            )
            self.next_order += 1
        return found

    def run(self, steps: int) -> AdaptiveMixture:
        for _ in range(steps):
            self.mixed.observe(self.results())
        return self.mixed


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_keeps_its_bounds_and_turns(strategy):
    names = [f"f{i % 4}/d{i}" for i in range(20)]
    rewards = {n: (HALF, RIGHT, WRONG, UNSCORED)[i % 4] for i, n in enumerate(names)}
    mixed = mixture(names, ControlSettings(strategy, visit_within=4.0))
    feed = Feed(mixed, rewards)
    last = dict.fromkeys(names, 0)
    for step in range(60):
        results = feed.results()
        for result in results:
            assert result.order - last[result.domain] <= 4 * 20 + 20, (step, result.domain)
            last[result.domain] = result.order
        mixed.observe(results)
        shares = np.array(list(mixed.shares.values()))
        assert shares.sum() == pytest.approx(1.0, abs=1e-12)
        lowest, highest = ControlSettings().floor / 20, ControlSettings().ceiling / 20
        assert (shares >= lowest - 1e-9).all() and (shares <= highest + 1e-9).all()
        assert np.isfinite(list(mixed.metrics().values())).all()


def test_signal_is_preferred_to_solved_hopeless_and_unscored():
    rewards = {"a/mixed": HALF, "b/solved": RIGHT, "c/hopeless": WRONG, "d/lost": UNSCORED}
    mixed = Feed(mixture(rewards.keys()), rewards).run(30)
    shares = mixed.shares
    assert shares["a/mixed"] > 2 * max(shares[n] for n in rewards if n != "a/mixed")
    reasons = {n: Reason(r % 100) for n, r in mixed.reasons.items()}
    assert reasons["b/solved"] is Reason.SOLVED
    assert reasons["c/hopeless"] is Reason.HOPELESS
    assert reasons["d/lost"] is Reason.UNSCORED


def test_what_is_trained_without_moving_loses_to_what_responds():
    """Both have the same spread; one climbs, the other is noise around a half."""
    rng = random.Random(1)

    def draws(probability):
        return lambda seen: tuple(float(rng.random() < probability(seen)) for _ in range(8))

    rewards = {
        "a/learns": draws(lambda seen: min(0.6, 0.1 + 0.005 * seen)),
        "b/noise": draws(lambda _: 0.5),
    }
    mixed = Feed(mixture(rewards.keys()), rewards).run(20)
    values = mixed.metrics()
    learns, noise = (values[f"domain/{n}/response_estimate"] for n in rewards)
    assert learns > 2 * noise
    assert mixed.shares["a/learns"] > mixed.shares["b/noise"]


def test_costs_divide_and_may_be_ignored():
    names = ["a/cheap", "b/dear"]
    rewards = dict.fromkeys(names, HALF)
    tokens = {"a/cheap": 20, "b/dear": 200}
    aware = Feed(mixture(names, ControlSettings("success_variance")), rewards, tokens).run(30)
    blind = Feed(
        mixture(names, ControlSettings("success_variance", cost_power=0.0)), rewards, tokens
    ).run(30)
    assert aware.shares["a/cheap"] > 3 * aware.shares["b/dear"]
    assert blind.shares["a/cheap"] == pytest.approx(blind.shares["b/dear"], rel=0.05)


def test_seconds_replace_tokens_when_they_are_measured():
    names = ["a/fast", "b/slow"]
    mixed = mixture(names, ControlSettings("success_variance"))
    feed = Feed(mixed, dict.fromkeys(names, HALF))
    for _ in range(20):
        results = feed.results()
        count = {n: sum(r.domain == n for r in results) for n in names}
        mixed.observe(results, {"a/fast": 1.0 * count["a/fast"], "b/slow": 8.0 * count["b/slow"]})
    assert mixed.shares["a/fast"] > 3 * mixed.shares["b/slow"]


@pytest.mark.parametrize("is_protected", [False, True])
def test_who_slips_gets_more_at_once(is_protected):
    """A solved domain is at its floor; when it forgets, it is back at its own share or beyond."""
    names = ["a/old", *(f"b/d{i}" for i in range(7))]
    rewards = dict.fromkeys(names, HALF) | {"a/old": RIGHT}
    settings = ControlSettings(protect_boost=3.0)
    mixed = mixture(names, settings, protected=["a/*"] if is_protected else [])
    feed = Feed(mixed, rewards, batch=32)
    feed.run(25)
    before = mixed.shares["a/old"]
    least = 1.0 if is_protected else settings.floor
    assert before == pytest.approx(least / 8, rel=0.3)
    rewards["a/old"] = WRONG
    feed.run(4)
    assert mixed.controller.slipped()[mixed.names.index("a/old")]
    assert mixed.shares["a/old"] >= (3.0 if is_protected else 1.0) / 8 - 1e-9


def test_order_of_finishing_changes_nothing():
    names = [f"f{i % 3}/d{i}" for i in range(9)]
    rng = random.Random(0)
    rewards = {n: lambda _: tuple(rng.random() for _ in range(4)) for n in names}
    one, two = mixture(names), mixture(names)
    feed = Feed(one, rewards)
    for _ in range(12):
        results = feed.results()
        for _ in results:
            two.next_domain()
        one.observe(results)
        two.observe(rng.sample(results, len(results)))
        assert one.state() == two.state()


def test_resume_is_exact_through_json():
    names = [f"f{i % 3}/d{i}" for i in range(11)]
    rng = random.Random(5)
    rewards = {n: lambda _: tuple(rng.random() for _ in range(4)) for n in names}
    one = Feed(mixture(names, seed=3), rewards).run(7)
    two = mixture(names, seed=3)
    two.restore(json.loads(json.dumps(one.state())))
    assert two.shares == one.shares and two.reasons == one.reasons
    feeds = [Feed(one, dict.fromkeys(names, HALF)), Feed(two, dict.fromkeys(names, HALF))]
    for _ in range(9):
        batches = [feed.results() for feed in feeds]
        assert [r.domain for r in batches[0]] == [r.domain for r in batches[1]]
        for mixed, batch in zip((one, two), batches, strict=True):
            mixed.observe(batch)
    assert one.state() == two.state()


def test_domains_added_and_removed_at_resume():
    rewards = dict.fromkeys([f"a/{i}" for i in range(6)], HALF)
    old = Feed(mixture(rewards.keys()), rewards).run(5)
    names = ["a/0", "a/1", "a/2", "b/new"]
    new = mixture(names)
    new.restore(old.state())
    assert new.evidence.visits[new.names.index("b/new")] == 0
    assert new.evidence.visits[0] == old.evidence.visits[0]
    assert new.controller.credit.sum() == pytest.approx(0.0, abs=1e-9)
    picks = [new.next_domain() for _ in range(40)]
    assert 8 <= picks.count("b/new") <= 14


def test_a_strategy_may_change_at_resume():
    names = ["a/0", "b/1"]
    adaptive = Feed(mixture(names), dict.fromkeys(names, HALF)).run(3)
    static = StaticMixture(dict.fromkeys(names, 1.0))
    static.restore(adaptive.state())
    assert {static.next_domain(), static.next_domain()} == set(names)
    fresh = mixture(names)
    fresh.restore(StaticMixture(dict.fromkeys(names, 1.0)).state())
    assert fresh.evidence.visits.sum() == 0


def test_a_share_that_rounds_to_zero_still_has_its_turn():
    names = {"a/tiny": 1e-12, **{f"b/{i}": 1.0 for i in range(9)}}
    mixed = mixture(names, ControlSettings(visit_within=5.0))
    picks = [mixed.next_domain() for _ in range(300)]
    assert picks.count("a/tiny") >= 4
    static = StaticMixture(names)
    assert "a/tiny" not in [static.next_domain() for _ in range(300)]


def test_zero_weight_means_never_and_nothing_is_an_error():
    mixed = mixture({"a/x": 1.0, "a/y": 0.0})
    assert {mixed.next_domain() for _ in range(50)} == {"a/x"}
    assert "a/y" not in mixed.shares
    with pytest.raises(DomainError, match="positive weight"):
        mixture({"a/x": 0.0})


@pytest.mark.parametrize("rewards", [RIGHT, WRONG, UNSCORED, (1.0, None, 0.0), (-50.0, 90.0)])
def test_a_run_of_one_kind_keeps_its_weights(rewards):
    names = {"a/x": 3.0, "b/y": 1.0}
    mixed = Feed(mixture(names), dict.fromkeys(names, rewards)).run(20)
    assert mixed.shares["a/x"] == pytest.approx(0.75, abs=0.08)


def test_very_slow_domains_are_bounded_from_below():
    names = [f"a/{i}" for i in range(10)]
    tokens = dict.fromkeys(names, 10) | {"a/0": 10_000_000}
    mixed = Feed(mixture(names), dict.fromkeys(names, HALF), tokens).run(30)
    assert mixed.shares["a/0"] == pytest.approx(ControlSettings().floor / 10, rel=1e-6)
    code = mixed.reasons["a/0"]
    assert Reason(code % 100) is Reason.COSTLY and code >= AT_FLOOR
    assert reason_text(code) == "costly; at its floor"


def test_rewards_on_another_scale_are_read_by_their_range():
    names = ["a/points", "b/unit"]
    rng = random.Random(2)
    rewards = {
        "a/points": lambda _: tuple(rng.choice((-5.0, 20.0)) for _ in range(8)),
        "b/unit": lambda _: tuple(rng.choice((0.0, 1.0)) for _ in range(8)),
    }
    mixed = Feed(mixture(names), rewards).run(20)
    assert mixed.metrics()["domain/a/points/level_estimate"] == pytest.approx(0.5, abs=0.1)
    assert mixed.shares["a/points"] == pytest.approx(0.5, abs=0.15)


def test_hundreds_of_domains_are_small_and_exact():
    names = [f"f{i % 60}/d{i}" for i in range(400)]
    rng = random.Random(4)
    rewards = {n: lambda _: tuple(rng.random() for _ in range(8)) for n in names}
    mixed = Feed(mixture(names), rewards, batch=256).run(8)
    text = json.dumps(mixed.state())
    assert len(text) < 1_000_000
    again = mixture(names)
    again.restore(json.loads(text))
    assert json.dumps(again.state()) == text
    assert [mixed.next_domain() for _ in range(300)] == [again.next_domain() for _ in range(300)]


def test_seeds_break_ties_only():
    names = [f"a/{i}" for i in range(12)]
    first = [mixture(names, seed=s).next_domain() for s in range(12)]
    assert len(set(first)) > 3
    same = [mixture(names, seed=7) for _ in range(2)]
    assert [same[0].next_domain() for _ in range(50)] == [same[1].next_domain() for _ in range(50)]


def test_many_worlds_at_once_decide_as_each_alone():
    """The simulator's leading axis changes nothing: the same object runs one run or a stack."""
    from educe.scheduling.controller import ShareController
    from educe.scheduling.evidence import BatchCounts

    rng = np.random.default_rng(0)
    family = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]])

    def build(rows):
        shape = family[rows].shape
        return ShareController(
            np.ones(shape),
            Evidence(family[rows], np.zeros(shape)),
            ControlSettings(),
            np.broadcast_to(np.arange(5.0), shape).copy(),
            np.zeros(shape, dtype=bool),
        )

    stack, alone = build(slice(None)), [build(0), build(1)]
    for _ in range(25):
        picks = np.stack([stack.pick() for _ in range(8)])
        for row in (0, 1):
            assert [int(alone[row].pick()) for _ in range(8)] == picks[:, row].tolist()
        groups = np.stack([np.bincount(picks[:, row], minlength=5) for row in (0, 1)]).astype(float)
        part = rng.random((2, 5))
        counts = BatchCounts(groups, groups, 8 * groups, 8 * groups * part, groups * part,
                             groups * part, groups * (1 + part))  # fmt: skip
        stack.observe(counts)
        for row in (0, 1):
            own = BatchCounts(*(getattr(counts, f)[row] for f in BatchCounts.__slots__))
            alone[row].observe(own)
            np.testing.assert_allclose(alone[row].shares, stack.shares[row], rtol=1e-12)


def test_bounded_shares_are_shares():
    rng = np.random.default_rng(1)
    base = np.full((50, 30), 1 / 30)
    wished = base * np.exp(rng.normal(0, 3, base.shape))
    shares = bounded_shares(wished, 0.25 * base, 4 * base)
    assert np.allclose(shares.sum(-1), 1)
    assert (shares >= 0.25 * base - 1e-9).all() and (shares <= 4 * base + 1e-9).all()
    free = (shares > 0.2501 * base) & (shares < 3.999 * base)
    ratio = np.where(free, shares / wished, np.nan)
    assert np.nanstd(ratio, axis=-1).max() < 1e-6
    # Nobody wishes for anything, floors that exceed the whole, a single domain.
    assert bounded_shares(np.zeros(4), np.zeros(4), np.ones(4)) == pytest.approx([0.25] * 4)
    assert bounded_shares(np.ones(2), np.array([3.0, 1.0]), np.ones(2)).sum() == pytest.approx(1)
    assert bounded_shares(np.ones(1), np.zeros(1), np.ones(1)) == pytest.approx([1.0])


def test_every_reason_has_words():
    assert set(REASON_TEXTS) == set(Reason)
    assert len(set(REASON_TEXTS.values())) == len(Reason.__members__), "none hides another"
    assert reason_text(int(Reason.CHEAP) + AT_CEILING) == "cheap; at its ceiling"


def test_the_lowest_scores_are_told_as_such():
    """Kept up at half their share; with a share for long contexts the others are told too."""
    names = [f"a/{i}" for i in range(10)]
    low = (1.0,) + (0.0,) * 7
    rewards = dict.fromkeys(names, HALF) | {"a/0": low}
    mixed = Feed(mixture(names, ControlSettings(lowest=0.1)), rewards, {"a/0": 400}).run(30)
    assert mixed.shares["a/0"] == pytest.approx(0.5 / 10, rel=1e-6)
    assert reason_text(mixed.reasons["a/0"]) == "among the lowest scores; at its floor"
    assert reason_text(Reason.LONG) == "long contexts have a share of their own"


def test_costs_are_coarse():
    assert quantise_cost(1.0) == 1.0 and quantise_cost(1.04) == 1.0 and quantise_cost(1.2) > 1.1
    assert quantise_cost(0.0) == quantise_cost(-1.0) == quantise_cost(float("nan")) == 0.0
