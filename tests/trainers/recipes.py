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
