"""The critic of PPO in whole runs: values come to foresee what can be foreseen."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from educe.api import train
from tests.trainers.recipes import tiny_recipe


@pytest.mark.parametrize("trunk", [False, True], ids=["head alone", "trunk too"])
def test_values_learn_what_the_prompt_tells(tiny_folder: Path, tmp_path: Path, trunk: bool) -> None:
    """With the defaults, within 32 updates: more than half of the variance of returns."""
    seen: list[float] = []
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        domains={"letters": {"function": "tests.trainers.letters:ToldLetters"}},
        algorithm={"name": "ppo", "value": {"trunk": trunk}},
        rl={"steps": 16, "prompts": 8, "learning_rate": 1e-3},
        checkpoint={"every_steps": 0},
        guards={"action": "off"},
    )
    callbacks = [lambda info: seen.append(info.metrics["rl/explained_variance"])]
    train(recipe, announce=lambda _: None, callbacks=callbacks)
    assert seen[0] == pytest.approx(0, abs=1e-6), "untrained values are a constant"
    assert fmean(seen[-3:]) > 0.5
