"""Tiny recipes over real built-in domains, for tests of whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from educe.config.loader import LoadedRecipe
from educe.config.settings import Recipe


def tiny_recipe(folder: Path, out: Path, /, **sections: Any) -> LoadedRecipe:
    """Return a recipe of a few steps; ``sections`` are merged over its own."""
    raw: dict[str, Any] = {
        "stages": ["sft", "rl"],
        "run": {"name": "run", "out": str(out), "mode": "exact", "threads": 1, "seed": 3},
        "model": {"name": str(folder)},
        "domains": {
            "arithmetic/add/tiny": {},
            "letters": {"function": "tests.trainers.letters:domain"},
        },
        "sft": {"steps": 4, "batch_size": 4, "num_tasks": 12, "learning_rate": 3e-3},
        "rl": {
            "steps": 4,
            "prompts": 2,
            "group_size": 4,
            "updates": 2,
            "max_completion_tokens": 6,
            "learning_rate": 1e-3,
        },
        "optimizer": {"micro_batch_tokens": 512, "warmup_steps": 1},
        "checkpoint": {"every_steps": 2, "every_minutes": 0},
    }
    for section, values in sections.items():
        if isinstance(values, dict) and section != "domains":
            raw[section] = {**raw.get(section, {}), **values}
        else:
            raw[section] = values
    return LoadedRecipe(Recipe.model_validate(raw))


def tools_recipe(folder: Path, out: Path, world: str = "") -> LoadedRecipe:
    """A recipe with a multi-turn domain; a short lesson first, so that turns end by themselves."""
    oracle = {"function": "tests.trainers.worlds:Oracle", "options": {"world": world}}
    return tiny_recipe(
        folder,
        out,
        domains={"oracle": oracle, "arithmetic/add/tiny": {}},
        sft={"steps": 12, "num_tasks": 24, "learning_rate": 1e-2},
        rl={"prompts": 3, "max_completion_tokens": 8},
    )


def timeouts_recipe(folder: Path, out: Path) -> LoadedRecipe:
    """A recipe in which some answers are never scored in time."""
    return tiny_recipe(
        folder,
        out,
        stages=["rl"],
        domains={"sleepy": {"function": "tests.trainers.worlds:Sleepy"}},
        rl={"steps": 3, "score_timeout_s": 5.0, "score_workers": 2},
    )


RECIPES = {"plain": tiny_recipe, "tools": tools_recipe, "time-outs": timeouts_recipe}
