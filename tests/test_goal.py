"""A goal is reached by scores, never by their absence."""

from __future__ import annotations

import math

from educe.config.settings import GoalSettings
from educe.goal import GoalWatch, goal_line


def test_an_unscored_target_is_not_reached() -> None:
    settings = GoalSettings(targets={"a": 0.5}, patience=1)
    watch = GoalWatch(settings, lambda names: dict.fromkeys(names, math.nan))
    first = watch.look(1)
    assert first["status"] == "pursued"
    assert first["missing"] == {"a": 0.5}
    assert watch.look(2)["status"] == "out_of_reach"


def test_a_scored_target_is_reached() -> None:
    watch = GoalWatch(GoalSettings(targets={"a": 0.5}), lambda names: {"a": 0.5})
    assert watch.look(1)["status"] == "reached"


def test_a_guardrail_that_was_not_measured_fails_closed() -> None:
    settings = GoalSettings(targets={"a": 0.5}, guardrails={"b": 0.2})
    watch = GoalWatch(settings, lambda names: {"a": 0.9, "b": math.nan})
    look = watch.look(10)
    assert look["status"] == "unmeasured"
    assert look["undercut"] == {"b": 0.2}
    assert watch.is_over
    assert goal_line(look) == "step 10: a guardrail could not be measured (a 0.90, b nan)"


def test_an_undercut_guardrail_ends_the_stage_although_the_goal_is_reached() -> None:
    settings = GoalSettings(targets={"a": 0.5}, guardrails={"b": 0.2, "c": 0.1})
    watch = GoalWatch(settings, lambda names: {"a": 0.9, "b": 0.1, "c": math.nan})
    assert watch.look(10)["status"] == "guardrail"


def test_looks_are_due_once_a_step_and_survive_a_resume() -> None:
    settings = GoalSettings(targets={"a": 0.5}, check_every=5)
    watch = GoalWatch(settings, lambda names: {"a": 0.1}, "rl-2")
    assert [step for step in range(12) if watch.is_due(step)] == [5, 10]
    assert watch.look(5)["stage"] == "rl-2"
    assert not watch.is_due(5) and not watch.is_over
    again = GoalWatch(settings, lambda names: {"a": 0.9})
    again.restore(watch.state())
    assert not again.is_due(5) and again.is_due(10)
    again.look(10)
    last = GoalWatch(settings, lambda names: {})
    last.restore(again.state())
    assert last.is_over, "reached before the resume, so no further step"
