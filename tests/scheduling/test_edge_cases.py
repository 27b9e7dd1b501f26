"""Domains at the edges, under every strategy: nothing divides by zero, starves or takes over."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable

import pytest

from educe.scheduling.controller import ControlSettings, reason_text
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain, StaticMixture
from educe.scheduling.results import GroupResult
from educe.scheduling.strategies import STRATEGIES
from educe.scheduling.tasks import TaskChooser

ALL = sorted(STRATEGIES)
Answer = Callable[[int], tuple[float | None, ...]]
HALF: Answer = lambda i: (1.0, 0.0) * 4  # noqa: E731
SOLVED: Answer = lambda i: (1.0,) * 8  # noqa: E731
FAILING: Answer = lambda i: (0.0,) * 8  # noqa: E731
UNSCORED: Answer = lambda i: (None,) * 8  # noqa: E731


def mixed(names: list[str], strategy: str, **options: float) -> AdaptiveMixture:
    domains = {n: MixedDomain(1.0, "family") for n in names}
    return AdaptiveMixture(domains, ControlSettings(strategy, **options), seed=1)  # type: ignore[arg-type]


def drive(
    mixture: AdaptiveMixture | StaticMixture,
    answers: dict[str, Answer],
    batches: int = 40,
    tokens: dict[str, int] | None = None,
) -> Counter[str]:
    """Run batches of 6 prompts; every number on the way is finite and shares add up to 1."""
    picked: Counter[str] = Counter()
    order = 0
    for _ in range(batches):
        results = []
        for _ in range(6):
            name = mixture.next_domain()
            picked[name] += 1
            cost = (tokens or {}).get(name, 100)
            results.append(GroupResult(order, name, order, answers[name](order), cost))
            order += 1
        mixture.observe(results)
        assert sum(mixture.shares.values()) == pytest.approx(1.0)
        assert all(math.isfinite(v) for v in mixture.metrics().values())
    return picked


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("answer", [SOLVED, FAILING, UNSCORED], ids=["solved", "failing", "none"])
def test_a_domain_without_signal_falls_to_its_floor_and_is_still_visited(strategy, answer):
    names = ["good", "better", "odd"]
    mixture = mixed(names, strategy, floor=0.25, ceiling=4.0, lowest=0.0)
    picked = drive(mixture, {"good": HALF, "better": HALF, "odd": answer})
    assert picked["odd"] >= 0.2 * 240 / 3
    if strategy != "static":
        assert mixture.shares["odd"] <= 1 / 3 + 1e-9
    if strategy == "expected_gain":
        assert mixture.shares["odd"] == pytest.approx(0.25 / 3, rel=0.01)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("answer", [SOLVED, FAILING, UNSCORED], ids=["solved", "failing", "none"])
def test_all_domains_without_signal_are_treated_alike(strategy, answer):
    names = ["a", "b", "c"]
    picked = drive(mixed(names, strategy), dict.fromkeys(names, answer))
    assert max(picked.values()) <= 2 * min(picked.values())


def test_the_reasons_say_what_is_wrong():
    names = ["good", "solved", "failing", "unscored"]
    mixture = mixed(names, "expected_gain")
    drive(mixture, {"good": HALF, "solved": SOLVED, "failing": FAILING, "unscored": UNSCORED})
    told = {n: reason_text(r) for n, r in mixture.reasons.items()}
    assert told["solved"].startswith("solved")
    assert told["failing"].startswith("no success yet")
    assert told["unscored"].startswith("its samples come back unscored")


@pytest.mark.parametrize("strategy", ALL)
def test_a_very_slow_domain_neither_starves_nor_eats_the_run(strategy):
    names = ["fast", "slow"]
    mixture = mixed(names, strategy, cost_power=1.0, floor=0.25, ceiling=4.0, lowest=0.0)
    picked = drive(
        mixture, dict.fromkeys(names, HALF), tokens={"fast": 100, "slow": 1_000_000}, batches=60
    )
    assert picked["slow"] >= 0.2 * 360 / 2
    if strategy not in ("static", "learning_progress"):
        assert picked["slow"] < picked["fast"]


@pytest.mark.parametrize("strategy", ALL)
def test_shares_that_round_to_zero_still_have_their_turn(strategy):
    """A thousand to one, batches of 6: the share of a batch rounds to 0."""
    domains = {"main": MixedDomain(1000.0, "f"), "rare": MixedDomain(1.0, "f")}
    mixture = AdaptiveMixture(domains, ControlSettings(strategy, visit_within=20.0), seed=0)
    picked = drive(mixture, {"main": HALF, "rare": HALF}, batches=200)
    assert picked["rare"] >= (1 if strategy == "static" else 1200 // 41)


def test_a_static_share_that_rounds_to_zero_comes_round():
    mixture = StaticMixture({"main": 1000.0, "rare": 1.0})
    assert [mixture.next_domain() for _ in range(2002)].count("rare") == 2


def test_one_domain_alone_and_none_at_all():
    picked = drive(mixed(["only"], "expected_gain"), {"only": SOLVED}, batches=5)
    assert picked == {"only": 30}
    for empty in ({}, {"a": MixedDomain(0.0, "f")}):
        with pytest.raises(Exception, match="no domain has a positive weight"):
            AdaptiveMixture(empty, ControlSettings())


def test_rewards_of_any_size_and_of_one_value_only():
    names = ["huge", "negative", "plain"]
    picked = drive(
        mixed(names, "expected_gain"),
        {"huge": lambda i: (1e9, 0.0) * 4, "negative": lambda i: (-5.0,) * 8, "plain": HALF},
    )
    assert min(picked.values()) > 0


def test_a_batch_in_which_nothing_came_back():
    mixture = mixed(["a", "b"], "expected_gain")
    before = mixture.state()["evidence"]
    mixture.observe([])
    assert mixture.state()["evidence"]["visits"] == before["visits"]
    assert sum(mixture.shares.values()) == pytest.approx(1.0)


def test_a_tiny_set_of_tasks_is_revisited_and_an_endless_one_never():
    chooser = TaskChooser({"tiny": 1, "endless": None}, group_size=8, threshold=0.2, revisit=3)
    seen = []
    for issued in range(9):
        seen.append(chooser.next_index("tiny", issued))
        chooser.observe("tiny", 0, [1.0] * 8, issued)
    assert seen == [0] * 9, "its only task comes, however hopeless"
    assert [chooser.next_index("endless", i) for i in (0, 7, 10**9)] == [0, 7, 10**9]


@pytest.mark.parametrize("strategy", ALL)
def test_a_domain_added_and_one_removed_at_a_resume(strategy):
    one = mixed(["kept", "gone", "other"], strategy)
    drive(one, dict.fromkeys(("kept", "gone", "other"), HALF), batches=10)
    saved = json.loads(json.dumps(one.state()))
    two = mixed(["kept", "other", "new"], strategy)
    two.restore(saved)
    picked = drive(two, {"kept": HALF, "other": SOLVED, "new": FAILING}, batches=30)
    assert min(picked.values()) >= 0.2 * 180 / 3, "no backlog is paid, none is owed"
    assert picked["new"] <= 0.6 * 180
    static = StaticMixture({"kept": 1.0, "new": 1.0})
    old = StaticMixture({"kept": 1.0, "gone": 1.0})
    for _ in range(100):
        old.next_domain()
    static.restore(old.state())
    assert Counter(static.next_domain() for _ in range(20)) == {"kept": 10, "new": 10}
