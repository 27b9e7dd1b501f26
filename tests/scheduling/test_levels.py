"""Levels kept in a band."""

from __future__ import annotations

import json

import pytest

from educe.scheduling.controller import ControlSettings
from educe.scheduling.levels import LevelControl, Standing, ladders_of
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain
from educe.scheduling.results import GroupResult

RUNGS = ("rg/gcd/tiny", "rg/gcd/easy", "rg/gcd/hard")


def control() -> LevelControl:
    return LevelControl({"rg/gcd": RUNGS}, dict.fromkeys(RUNGS, 1.0), 0.2, 0.8)


def standings(success: float, deviation: float = 0.05, groups: float = 10.0):
    return dict.fromkeys(RUNGS, Standing(success, deviation, groups))


def test_ladders_are_families_with_levels_in_the_run():
    found = ladders_of(
        {
            "rg/gcd/hard": "rg/gcd",
            "rg/gcd/tiny": "rg/gcd",
            "rg/lcm/easy": "rg/lcm",
            "mine": "mine",
            "mine/other": "mine",
        }
    )
    assert found == {"rg/gcd": ("rg/gcd/tiny", "rg/gcd/hard")}


def test_the_active_level_goes_up_and_down_but_not_off_the_ladder():
    levels = control()
    assert levels.move(standings(0.95)) == {"rg/gcd": ("rg/gcd/tiny", "rg/gcd/easy")}
    assert levels.move(standings(0.95, groups=12)) == {}, "too few groups since the move"
    levels.move(standings(0.95, groups=20))
    assert levels.active["rg/gcd"] == 2
    assert levels.move(standings(0.95, groups=40)) == {}
    for groups in (50, 60, 70):
        levels.move(standings(0.05, groups=groups))
    assert levels.active["rg/gcd"] == 0


def test_doubt_and_the_band_keep_the_level():
    levels = control()
    assert levels.move(standings(0.85, deviation=0.1)) == {}
    assert levels.move(standings(0.5)) == {}


def test_a_ladder_keeps_its_total_weight():
    levels = control()
    for _ in range(3):
        weights = levels.current_weights()
        assert sum(weights.values()) == pytest.approx(3.0)
        assert max(weights, key=weights.__getitem__) == RUNGS[levels.active["rg/gcd"]]
        assert min(weights.values()) > 0
        levels.active["rg/gcd"] = min(2, levels.active["rg/gcd"] + 1)


def test_state_is_kept_and_a_shorter_ladder_is_tolerated():
    levels = control()
    levels.move(standings(0.95))
    again = control()
    again.restore(json.loads(json.dumps(levels.state())))
    assert again.state() == levels.state()
    short = LevelControl({"rg/gcd": RUNGS[:1]}, {RUNGS[0]: 1.0})
    short.restore({"rg/gcd": [2, 5.0], "gone": [1, 0.0]})
    assert short.active == {"rg/gcd": 0}


def test_a_band_must_be_one():
    with pytest.raises(ValueError, match="low < high"):
        LevelControl({}, {}, 0.8, 0.2)


@pytest.mark.parametrize("strategy", ["static", "expected_gain"])
def test_the_mixture_follows_the_level(strategy):
    """Tiny is solved, easy is mixed: the ladder moves up and most prompts go there."""
    names = (*RUNGS, "other/a")
    levels = LevelControl({"rg/gcd": RUNGS}, dict.fromkeys(names, 1.0), 0.2, 0.8)
    mixed = AdaptiveMixture(
        {n: MixedDomain(1.0, n.rpartition("/")[0]) for n in names},
        ControlSettings(strategy),
        levels=levels,
    )
    rewards = {RUNGS[0]: (1.0,) * 4, RUNGS[1]: (1.0, 0.0) * 2, RUNGS[2]: (0.0,) * 4}
    order = 0
    for _ in range(15):
        batch = []
        for _ in range(16):
            name = mixed.next_domain()
            batch.append(GroupResult(order, name, order, rewards.get(name, (1.0, 0.0)), 10))
            order += 1
        mixed.observe(batch)
    assert levels.active["rg/gcd"] == 1
    assert mixed.shares[RUNGS[1]] > 2 * mixed.shares[RUNGS[0]]
    again = AdaptiveMixture(
        {n: MixedDomain(1.0, n.rpartition("/")[0]) for n in names},
        ControlSettings(strategy),
        levels=LevelControl({"rg/gcd": RUNGS}, dict.fromkeys(names, 1.0), 0.2, 0.8),
    )
    again.restore(json.loads(json.dumps(mixed.state())))
    assert again.shares == mixed.shares
