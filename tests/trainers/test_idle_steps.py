"""A rollout batch that trains nothing says why, in the run store and on the terminal."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from educe.api import train
from educe.observability.live import LiveView
from educe.observability.run_store import RunStore
from educe.trainers.idle_steps import reason_without_update
from tests.trainers.recipes import tiny_recipe


@dataclass
class Credit:
    rewards_G: tuple[float | None, ...]


def test_reasons() -> None:
    assert reason_without_update([], []) == "no group was sampled"
    assert reason_without_update([], ["trivial"] * 3 + ["stale"]) == (
        "all 4 sampled groups were left out (1 stale, 3 trivial; trivial: equal scores, so no "
        "advantage)"
    )
    groups = [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0), (0.5, 0.5), (None, None), (None, 1.0), (0.0, 1.0)]
    assert reason_without_update([Credit(g) for g in groups], ["trivial"]) == (
        "no group has an advantage: of 7, 1 all equal, 1 all right, 2 all wrong, 1 masked, "
        "1 unscored, 1 with one scored sample; left out besides: 1 trivial"
    )


@pytest.mark.parametrize("drops", [False, True])
def test_a_run_of_equal_groups_says_so(tiny_folder: Path, tmp_path: Path, drops: bool) -> None:
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        domains={"letters": {"function": "tests.trainers.letters:SilentLetters"}},
        rl={"steps": 2, "group_size": 2, "drop_trivial": drops, "tokens": 0},
    )
    folder = train(recipe, announce=lambda _: None).folder
    store = RunStore.open(folder)
    reasons = [(e.payload["step"], e.payload["reason"]) for e in store.events("no_update")]
    assert [step for step, _ in reasons] == [0, 1]
    told = "sampled groups were left out" if drops else "no group has an advantage: of 2, 2 all wr"
    assert all(told in reason for _, reason in reasons)
    rows = store.metrics("rl")
    assert not any("rl/loss" in row.values for row in rows)
    assert all((row.values["rl/dropped"] > 0) == drops for row in rows)
    stream = io.StringIO()
    view = LiveView(stream)
    view.record_event("no_update", {"stage": "rl", "step": 0, "reason": reasons[0][1]})
    assert told in stream.getvalue()


def test_dropped_groups_count_for_the_token_budget(tiny_folder: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        domains={"letters": {"function": "tests.trainers.letters:SilentLetters"}},
        rl={"steps": 50, "group_size": 2, "drop_trivial": True, "tokens": 30},
    )
    folder = train(recipe, announce=lambda _: None).folder
    assert len(RunStore.open(folder).metrics("rl")) < 5
