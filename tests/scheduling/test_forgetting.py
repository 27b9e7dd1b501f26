"""The forgetting guard: false alarms over a whole run, real ones, and what is done."""

from __future__ import annotations

import random

import pytest

from educe.scheduling.forgetting import Action, ForgettingGuard, Tally


def sample(rng: random.Random, probability: float, count: int) -> Tally:
    return Tally(sum(rng.random() < probability for _ in range(count)) / count, count)


def test_looks_alone_conclude_nothing_and_a_run_rarely_cries_wolf():
    """300 runs of 20 looks at 10 steady domains, 16 tasks each; trials of 100 fresh tasks."""
    rng = random.Random(0)
    wrong, trials = 0, 0
    for _ in range(300):
        guard = ForgettingGuard(margin=0.05)
        chances = {f"d{i}": rng.random() for i in range(10)}
        start = {d: sample(rng, p, 200) for d, p in chances.items()}
        alarms = 0
        for _ in range(20):
            now = {d: sample(rng, p, 16) for d, p in chances.items()}
            for domain in guard.suspects(start, now):
                fresh = sample(rng, chances[domain], 100)
                alarms += guard.judge(domain, start[domain], fresh) is not None
        wrong += alarms > 0
        trials += guard.num_trials
    assert trials > 300, "noise makes suspects, or nothing was tested"
    assert wrong / 300 < 0.05


def test_a_real_fall_is_found():
    rng = random.Random(1)
    found = 0
    for _ in range(100):
        guard = ForgettingGuard(margin=0.05)
        count = guard.trial_size(0.3)
        start = {"d": sample(rng, 0.8, 200)}
        now = {"d": sample(rng, 0.5, 16)}
        for domain in guard.suspects(start, now):
            alarm = guard.judge(domain, start["d"], sample(rng, 0.5, count))
            found += alarm is not None and alarm.action is Action.RAISE_SHARE
    assert found > 60


def test_actions_follow_each_other_and_resume():
    guard = ForgettingGuard(actions=(Action.RAISE_SHARE, Action.ROLL_BACK), level=0.5)
    start, gone = Tally(0.9, 500), Tally(0.1, 500)
    first = guard.judge("d", start, gone)
    again = ForgettingGuard(actions=guard.actions, level=0.5)
    again.restore(guard.state())
    later = [again.judge("d", start, gone) for _ in range(2)]
    assert first is not None and first.action is Action.RAISE_SHARE
    assert [a and a.action for a in later] == [Action.ROLL_BACK] * 2
    assert first.fall == pytest.approx(0.8) and first.p_value < 1e-6


def test_drift_makes_a_suspect_and_no_data_makes_none():
    guard = ForgettingGuard(kl_limit=0.1)
    assert guard.suspects({}, {}, {"b": 0.3, "a": 0.5, "c": 0.05}) == ["a", "b"]
    assert guard.suspects({"d": Tally(1.0, 0)}, {"d": Tally(0.0, 0)}) == []
    assert guard.judge("d", Tally(1.0, 0), Tally(0.0, 0)) is None
    with pytest.raises(ValueError, match="within the margin"):
        guard.trial_size(0.05)


def test_later_trials_need_more_tasks():
    guard = ForgettingGuard()
    first = guard.trial_size(0.2)
    guard.num_trials = 5
    assert guard.trial_size(0.2) > first > 50
