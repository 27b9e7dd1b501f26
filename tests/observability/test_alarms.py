"""Each alarm rings on its own sign, stays silent on a healthy run, and rings once."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import pytest

from educe.core.protocols import MetricRow
from educe.observability.alarms import Alarm, AlarmLimits, AlarmWatch, check_alarms
from educe.observability.history import History


def rows(num_steps: int, **curves: Callable[[int], float]) -> list[MetricRow]:
    """Rows 1..num_steps of stage rl; ``domain__x__score`` stands for ``domain/x/score``."""
    names = {k: k.replace("__", "/") if k.startswith("domain") else f"rl/{k}" for k in curves}
    return [
        MetricRow("rl", step, {names[k]: curve(step) for k, curve in curves.items()})
        for step in range(1, num_steps + 1)
    ]


def alarms(num_steps: int, **curves: Callable[[int], float]) -> list[Alarm]:
    return check_alarms(History(rows(num_steps, **curves)), "rl")


def constant(value: float) -> Callable[[int], float]:
    return lambda step: value


def test_a_healthy_run_is_silent() -> None:
    assert not alarms(
        60,
        reward=lambda s: 0.2 + s / 100,
        screen_score=lambda s: 0.2 + s / 120,
        entropy=lambda s: 1.5 - s / 100,
        kl_k3=lambda s: s / 1000,
        trivial_right=constant(0.2),
        trivial_wrong=constant(0.3),
        unscored=constant(0.01),
        skipped=constant(0.0),
        mismatch=constant(2e-6),
        grad_norm=constant(1.0),
        domain__rg__gcd__score=constant(0.5),
        domain__rg__gcd__unscored=constant(0.0),
    )


CASES: dict[str, dict[str, Callable[[int], float]]] = {
    "entropy_collapse": {"entropy": lambda s: 1.5 * math.exp(-s / 5)},
    "kl_blow_up": {"kl_k3": lambda s: s / 10},
    "reward_hacking": {
        "reward": lambda s: s / 60,
        "screen_score": lambda s: 0.5 - abs(s - 20) / 100,
    },
    "trivial_groups": {"trivial_right": constant(0.9), "trivial_wrong": constant(0.08)},
    "unscored": {"unscored": constant(0.2)},
    "non_finite": {"skipped": lambda s: float(s == 59)},
    "non_finite_metric": {"loss": lambda s: math.nan if s == 60 else 1.0},
    "engine_mismatch": {"mismatch": lambda s: 0.05 if s == 60 else 1e-6},
}


@pytest.mark.parametrize("kind", sorted(CASES))
def test_an_alarm_rings_alone_and_says_what_to_do(kind: str) -> None:
    (alarm,) = alarms(60, **CASES[kind])
    assert alarm.kind == kind and alarm.stage == "rl" and alarm.step in (59, 60)
    assert alarm.value > alarm.limit or kind in ("entropy_collapse", "non_finite")
    assert len(alarm.cause) > 60
    json.dumps(alarm.to_json(), allow_nan=False)


@pytest.mark.parametrize("kind", sorted(set(CASES) - {"non_finite_metric"}))
def test_a_limit_of_none_switches_an_alarm_off(kind: str) -> None:
    off = AlarmLimits(**{f.name: None for f in dataclasses.fields(AlarmLimits) if f.type != "int"})
    assert not check_alarms(History(rows(60, **CASES[kind])), "rl", off)


def test_k1_is_looked_at_where_k3_is_missing() -> None:
    (alarm,) = alarms(10, kl_k1=constant(2.0))
    assert "kl_k1" in alarm.cause


def test_few_steps_are_no_evidence() -> None:
    for kind in ("entropy_collapse", "kl_blow_up", "trivial_groups", "unscored", "reward_hacking"):
        assert not alarms(4, **CASES[kind])


def test_a_domain_is_named() -> None:
    (alarm,) = alarms(10, unscored=constant(0.0), domain__rg__gcd__unscored=constant(0.5))
    assert alarm.domain == "rg/gcd" and "rg/gcd" in alarm.cause


def test_a_domain_that_games_its_grader_is_named() -> None:
    found = alarms(
        40,
        domain__a__reward=lambda s: s / 40,
        domain__a__screen_score=lambda s: 0.9 if s < 20 else 0.3,
        domain__b__reward=lambda s: s / 40,
        domain__b__screen_score=lambda s: s / 40,
    )
    assert [(a.kind, a.domain) for a in found] == [("reward_hacking", "a")]


def test_reward_that_rises_with_the_screen_score_is_no_hacking() -> None:
    assert not alarms(40, reward=lambda s: s / 40, screen_score=lambda s: s / 40)


def test_noise_of_a_few_screen_tasks_is_no_hacking() -> None:
    looks = [0.5, 0.625, 0.4375, 0.5, 0.5625, 0.4375, 0.5, 0.53125]
    history = History(
        MetricRow("rl", s, {"rl/reward": s / 80})
        if s % 10
        else MetricRow("rl", s, {"rl/reward": s / 80, "rl/screen_score": looks[s // 10 - 1]})
        for s in range(1, 81)
    )
    assert not check_alarms(history, "rl")


def test_falling_reward_and_screen_score_is_no_hacking() -> None:
    assert not alarms(40, reward=lambda s: 1 - s / 40, screen_score=lambda s: 1 - s / 40)


def test_trivial_groups_tell_easy_from_hard() -> None:
    (easy,) = alarms(10, trivial_right=constant(1.0), trivial_wrong=constant(0.0))
    (hard,) = alarms(10, trivial_right=constant(0.0), trivial_wrong=constant(1.0))
    assert "too easy" in easy.cause and "too hard" in hard.cause


def test_the_watch_rings_once_and_again_after_silence() -> None:
    watch = AlarmWatch()
    values = [0.0] * 3 + [0.05] * 4 + [0.0] * 2 + [0.05] * 2
    rung = [
        step
        for step, value in enumerate(values, 1)
        if watch.observe(MetricRow("rl", step, {"rl/mismatch": value}))
    ]
    assert rung == [4, 10]


def test_the_watch_keeps_stages_apart() -> None:
    watch = AlarmWatch()
    assert watch.observe(MetricRow("rl", 1, {"rl/mismatch": 1.0}))
    assert watch.observe(MetricRow("other", 1, {"other/mismatch": 1.0}))
    assert not watch.observe(MetricRow("rl", 2, {"rl/mismatch": 1.0}))


def test_the_watch_stays_small_over_a_long_run() -> None:
    import tracemalloc

    watch = AlarmWatch(capacity=50)

    def step_row(step: int) -> MetricRow:
        values = {f"domain/d{i}/{name}": 0.5 for i in range(20) for name in ("score", "kl_k1")}
        return MetricRow("rl", step, {"rl/entropy": 1.0, **values})

    for step in range(1, 101):
        watch.observe(step_row(step))
    tracemalloc.start()
    for step in range(101, 401):
        watch.observe(step_row(step))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 50 steps x 21 series, replaced in place; without a bound it would be 300 steps x 41 series.
    assert grown < 400_000
