"""Guards judge a stage by its numbers alone, and their state replays every judgement."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import torch

from educe.config.settings import GuardSettings
from educe.trainers.guards import GuardWatch, Level, batch_health
from educe.trainers.step_limits import StepLimits, are_finite


def watch(**settings: Any) -> GuardWatch:
    return GuardWatch(GuardSettings(**settings), "rl")


def reward(value: float, **more: float) -> dict[str, float]:
    values = {"rl/reward": value, "rl/reward_error": 0.02, "rl/entropy": 2.0}
    return values | {f"rl/{k}": v for k, v in more.items()}


def kinds(guard: GuardWatch, values: dict[str, float], *, sound: bool = True) -> list[str]:
    return [f.kind for f in guard.observe(values, are_weights_finite=sound)]


def feed(guard: GuardWatch, rewards: list[float], **more: float) -> list[str]:
    return [k for value in rewards for k in kinds(guard, reward(value, **more))]


def test_a_healthy_noisy_run_raises_nothing() -> None:
    for seed in range(100):
        draw = random.Random(seed)
        guard = watch()
        for step in range(100):
            # 8 groups of 8: a reward that rises from 0.2 to 0.5, with the noise of its samples.
            rate = 0.2 + 0.003 * step
            sampled = sum(draw.random() < rate for _ in range(64)) / 64
            error = math.sqrt(rate * (1 - rate) / 64)
            entropy = 2.0 * math.exp(-step / 80) * draw.uniform(0.95, 1.05)
            found = kinds(guard, reward(sampled, reward_error=error, entropy=entropy))
            assert not found, (seed, step, found)


def test_sparse_rewards_raise_nothing() -> None:
    alarms = 0
    for seed in range(100):
        draw = random.Random(seed)
        guard = watch()
        for _ in range(60):
            means = [sum(draw.random() < 0.02 for _ in range(8)) / 8 for _ in range(8)]
            error = batch_health([[m] for m in means], [])["reward_error"]
            found = kinds(guard, reward(sum(means) / 8, reward_error=error))
            alarms += len(found)
    assert alarms <= 2


def test_a_reward_that_falls_by_half_is_a_collapse_once() -> None:
    guard = watch()
    assert feed(guard, [0.5] * 10) == []
    assert feed(guard, [0.2] * 10) == ["reward_collapse"]
    assert feed(guard, [0.5] * 5 + [0.1] * 5) == ["reward_collapse"], "told again after it had gone"


def test_a_collapse_within_the_first_window_is_measured_from_the_first_step() -> None:
    assert feed(watch(), [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]) == ["reward_collapse"]
    # A first step that may have been luck is no level to fall from.
    assert feed(watch(), [0.5, 0.0, 0.0, 0.0, 0.0, 0.0], reward_error=0.2) == []


def test_a_fall_within_the_noise_is_none() -> None:
    assert feed(watch(), [0.9, 0.1, 0.9, 0.0, 0.4] + [0.15] * 5, reward_error=0.3) == []


def test_negative_rewards_have_a_scale_too() -> None:
    assert feed(watch(), [-1.0] * 8 + [-1.3] * 8) == []
    assert feed(watch(), [-1.0] * 8 + [-1.8] * 8) == ["reward_collapse"]


def test_a_loss_that_rises_is_told_where_there_is_no_reward() -> None:
    def rise(losses: list[float]) -> list[str]:
        guard = GuardWatch(GuardSettings(), "sft")
        return [k for loss in losses for k in kinds(guard, {"sft/loss": loss})]

    assert rise([3.0, 2.0, 1.5, 1.2, 1.0, 0.9, 0.8]) == []
    assert rise([3.0, *[9.0] * 5]) == ["loss_rise"]
    assert rise([3.0, *[0.5] * 10, *[2.5] * 6]) == ["loss_rise"]
    assert rise([3.0, *[0.01] * 10, *[0.05] * 6]) == [], "near 0 the first loss is the scale"


def test_entropy_that_falls_without_gain_is_a_collapse() -> None:
    guard = watch()
    feed(guard, [0.5] * 5)
    assert feed(guard, [0.5] * 5, entropy=0.01) == ["policy_collapse"]
    gaining = watch()
    feed(gaining, [0.5] * 5)
    assert feed(gaining, [0.9] * 5, entropy=0.01) == [], "sure of the right answer"


def test_a_reward_that_turns_at_each_step_is_an_oscillation() -> None:
    guard = watch()
    found = [
        f for value in [0.8, 0.2] * 8 for f in guard.observe(reward(value), are_weights_finite=True)
    ]
    assert [(f.kind, f.response) for f in found] == [("oscillation", "back_off")]
    assert feed(watch(), [0.505, 0.5] * 10) == [], "too small to matter"
    assert feed(watch(oscillation=0), [0.8, 0.2] * 10) == []


def test_independent_noise_is_rarely_taken_for_an_oscillation() -> None:
    alarms = 0
    for seed in range(100):
        draw = random.Random(seed)
        guard = watch()
        alarms += feed(guard, [draw.gauss(0.5, 0.2) for _ in range(60)]).count("oscillation")
    assert alarms <= 12


def test_broken_weights_large_advantages_and_large_updates_are_told_at_once() -> None:
    assert kinds(watch(), reward(0.5), sound=False) == ["non_finite_weights"]
    assert kinds(watch(), reward(50.0, max_advantage=87.0)) == ["max_advantage"]
    assert kinds(watch(advantage=100), reward(50.0, max_advantage=87.0)) == []
    assert kinds(watch(), reward(0.5, update_k3=3.0)) == ["update_k3"]


def test_skipped_steps_count_in_a_row() -> None:
    guard = watch(max_skipped=3)
    assert feed(guard, [0.5] * 2, skipped=1.0) == []
    assert feed(guard, [0.5], skipped=0.0) == []
    assert feed(guard, [0.5] * 3, skipped=1.0) == ["skipped_steps"]


def test_action_off_looks_at_nothing() -> None:
    assert kinds(watch(action="off"), reward(0.5, max_advantage=87.0), sound=False) == []


def looks(*rates: float, size: int = 200) -> list[dict[str, list[float | None]]]:
    """Looks at ``size`` tasks, of which the first are solved."""
    return [{"a": [float(i < r * size) for i in range(size)]} for r in rates]


def test_screen_scores_are_measured_from_the_best() -> None:
    guard = watch(screen_drop=0.1)
    seen = looks(0.3, 0.5, 0.45, 0.35)
    seen.insert(3, {"a": [None] * 200})
    found = [[f.kind for f in guard.observe_screen(s)] for s in seen]
    assert found == [[], [], [], [], ["screen_drop"]]


def test_a_fall_on_few_screen_tasks_is_no_alarm_before_it_is_beyond_chance() -> None:
    few, many = looks(0.5, 0.34, size=50), looks(0.5, 0.34, size=200)
    for (best, now), expected in ((few, []), (many, ["screen_drop"])):
        guard = watch(screen_drop=0.1)
        assert guard.observe_screen(best) == []
        assert [f.kind for f in guard.observe_screen(now)] == expected
        assert guard.is_near_best is False, "an anchor is not what may have fallen"


def test_a_policy_that_stays_as_it_is_seldom_looks_fallen() -> None:
    draw, alarms = random.Random(3), 0
    for _ in range(300):
        rates = [draw.betavariate(0.6, 0.9) for _ in range(64)]
        guard = watch(screen_drop=0.1)
        for _ in range(10):
            found = guard.observe_screen({"a": [float(draw.random() < r) for r in rates]})
            if found:
                alarms += 1
                break
    assert alarms <= 30, "more than one stage of ten"


def test_a_reward_of_the_wrong_sign_is_seen_on_the_screen() -> None:
    guard = watch(screen_drop=0.1)
    found = [guard.observe_screen(s) for s in looks(0.39, 0.2, 0.1, 0.0, size=64)]
    assert any(found[1:3]), "at the second look at the latest"


def test_a_stage_that_went_back_must_be_seen_as_good_as_its_anchor() -> None:
    guard = watch(screen_drop=0.1)
    start, fallen, worse, better = looks(0.4, 0.2, 0.38, 0.42)
    guard.observe_screen(start)
    guard.observe_screen(better)
    assert not guard.is_doubtful, "it never went back"
    assert guard.observe_screen(fallen)
    guard.lower_rate("rollback")
    assert guard.is_doubtful, "nobody has looked since"
    guard.observe_screen(worse)
    assert guard.is_doubtful, "too little for an alarm, but not what the anchor had"
    restored = watch(screen_drop=0.1)
    restored.restore(json.loads(json.dumps(guard.state())))
    assert restored.is_doubtful
    guard.observe_screen(start)
    assert not guard.is_doubtful


def test_two_screen_tasks_prove_nothing() -> None:
    guard = watch(screen_drop=0.1)
    assert [guard.observe_screen(s) for s in looks(1.0, 0.0, size=2)] == [[], []]


def test_an_older_state_leaves_the_screen_to_be_seen_anew() -> None:
    guard = watch()
    guard.restore({**guard.state(), "best_screen": 0.5, "screens": [0.4], "num_rollbacks": 2})
    assert guard.best_screen is None and guard.num_rollbacks == 2


def test_an_anchor_must_hold_before_it_counts() -> None:
    guard = watch(anchor_every=5)
    guard.anchor = "start"
    assert [s for s in range(16) if guard.is_anchor_due(s)] == [5, 10, 15]
    feed(guard, [0.4] * 5)
    guard.offer("a")
    assert guard.anchor == "start" and guard.needs == {"start", "a"}
    feed(guard, [0.5] * 5)
    guard.offer("b")
    assert guard.anchor == "a" and guard.needs == {"a", "b"}
    feed(guard, [0.3] * 5)
    guard.offer("c")
    assert guard.anchor == "a", "b was followed by worse"
    feed(guard, [0.2] * 5)
    assert guard.needs == {"a", "c"}
    guard.lower_rate("rollback")
    assert guard.needs == {"a"}
    assert guard.rate_scale == pytest.approx(0.3)


def test_a_stage_gives_up_after_its_rollbacks() -> None:
    guard = watch(max_rollbacks=2)
    for number in range(3):
        assert guard.has_given_up is False
        guard.lower_rate("rollback")
        assert guard.num_rollbacks == number + 1
    assert guard.has_given_up is True
    assert not guard.is_anchor_due(20)
    slower = watch(max_rollbacks=0)
    slower.lower_rate("back_off")
    assert not slower.has_given_up


def test_the_state_replays_every_judgement() -> None:
    draw = random.Random(7)
    rewards = [max(0.0, draw.gauss(0.5 - 0.008 * step, 0.1)) for step in range(60)]
    whole = watch(anchor_every=5)
    cut = watch(anchor_every=5)
    log: list[list[Any]] = [[], []]
    for step, value in enumerate(rewards, start=1):
        restored = watch(anchor_every=5)
        restored.restore(json.loads(json.dumps(cut.state())))
        cut = restored
        for guard, told in zip((whole, cut), log, strict=True):
            values = reward(value, entropy=2.0 * 0.9**step, skipped=float(value < 0.05))
            found = guard.observe(values, are_weights_finite=True)
            found += guard.observe_screen({"a": [value]}) if step % 4 == 0 else []
            told += [(step, f) for f in found]
            if found:
                guard.lower_rate(found[0].response)
            if guard.is_anchor_due(step):
                guard.offer(f"c{step}")
    assert log[0] == log[1] and log[0]
    assert whole == cut
    assert len(json.dumps(whole.state())) < 3000


def test_batch_health() -> None:
    told = batch_health([[1.0, 0.0], [None, 1.0], [None, None]], [[1.0, -2.5], [0.0, 0.0], []])
    assert told["max_advantage"] == 2.5
    assert told["reward_error"] == pytest.approx(0.25)  # of the groups' means 0.5 and 1
    assert batch_health([[1.0, 0.0]], [[0.0]]) == {"max_advantage": 0.0}


def test_levels() -> None:
    assert Level.of([1.0] * 4, 5) is None
    assert Level.of([9.0, 1.0, 2.0, 3.0], 3) == Level(2.0, pytest.approx(1 / math.sqrt(3)))


# One step's limits


def make_parameters() -> list[torch.nn.Parameter]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [torch.nn.Parameter(torch.randn(*s)) for s in ((300, 40), (7,), (64, 576))]


def take(limits: StepLimits, scale: float = 1.0) -> tuple[float, float]:
    """Return (distance told, distance moved) of one SGD step."""
    parameters = make_parameters()
    before = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in parameters:
            parameter.grad = scale * torch.randn_like(parameter)
    told = limits.apply(optimizer, parameters)
    moved = sum((p.detach() - b).pow(2).sum() for p, b in zip(parameters, before, strict=True))
    return told, float(moved) ** 0.5


def test_the_distance_is_estimated_within_a_few_percent() -> None:
    told, moved = take(StepLimits())
    assert told == pytest.approx(moved, rel=0.05)


def test_an_update_over_the_limit_is_cut_to_it() -> None:
    told, moved = take(StepLimits(update_norm=2.0))
    assert told > 100 and moved == pytest.approx(2.0, rel=1e-4)
    told, moved = take(StepLimits(update_norm=1e6))
    assert told == pytest.approx(moved, rel=1e-4)


def test_an_update_that_is_not_finite_is_taken_back() -> None:
    told, moved = take(StepLimits(update_norm=2.0), scale=math.inf)
    assert not math.isfinite(told) and moved == 0.0


def test_a_gradient_over_the_limit_is_a_reason_to_skip() -> None:
    limits = StepLimits(grad_norm=5.0)
    assert limits.reason_to_skip(4.9) == ""
    assert "over guards.grad_norm = 5" in limits.reason_to_skip(5.1)
    for bad in (math.nan, math.inf):
        assert limits.reason_to_skip(bad) == f"gradient norm is {bad}"
        assert StepLimits().reason_to_skip(bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_broken_weight_is_found(bad: float) -> None:
    parameters = make_parameters()
    assert are_finite(parameters)
    parameters[2].data[63, 575] = bad
    assert not are_finite(parameters)


def losses(guard: GuardWatch, values: list[float]) -> list[str]:
    return [k for value in values for k in kinds(guard, {"sft/loss": value})]


def supervised(**settings: Any) -> GuardWatch:
    return GuardWatch(GuardSettings(**settings), "sft")


def test_batches_of_unlike_domains_are_no_loss_rise() -> None:
    """A mixture's losses, measured: an easy first batch is not what training began with."""
    measured = [0.078, 1.025, 0.662, 0.236, 0.334, 0.815, 1.193, 0.821, 0.564, 0.822, 1.521]
    measured += [0.812, 1.055, 1.390, 1.412, 0.967, 1.541, 0.649, 0.493, 0.932, 1.550, 0.615]
    measured += [1.216, 0.563, 1.020, 0.545, 0.905, 0.751, 1.197, 0.922, 0.255, 1.006, 0.252]
    assert losses(supervised(), measured) == []
    for seed in range(100):
        draw = random.Random(seed)
        series = [
            0.9 * math.exp(-step / 200) * math.exp(draw.gauss(0.0, 0.7)) for step in range(100)
        ]
        assert losses(supervised(), series) == [], seed


@pytest.mark.parametrize("calm", [0, 20])
def test_a_loss_that_runs_away_is_told_among_unlike_batches(calm: int) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        calm_steps = [0.9 * math.exp(draw.gauss(0.0, 0.5)) for _ in range(1 + calm)]
        away = [12.0 * math.exp(draw.gauss(0.0, 0.05)) for _ in range(20)]
        assert "loss_rise" in losses(supervised(), [*calm_steps, *away]), seed
