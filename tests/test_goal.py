"""A goal is reached by scores, never by their absence."""

from __future__ import annotations

import math

from educe.config.settings import GoalSettings
from educe.goal import GoalWatch


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
