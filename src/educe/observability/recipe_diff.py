"""What differs between two recipes, key by key, defaults filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from educe.config.positions import format_key
from educe.core.types import JSON
from educe.observability.run_reader import RunReader

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Change:
    """One key with two values; a value of :data:`ABSENT` means that side has no such key."""

    key: str
    old: JSON
    new: JSON

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


def _shown(value: JSON) -> str:
    return ABSENT if value is ABSENT else json.dumps(value, ensure_ascii=False)


def flatten(recipe: Mapping[str, JSON], path: tuple[str, ...] = ()) -> dict[str, JSON]:
    """Return dotted key: value. Lists are values; empty tables are kept as ``{}``."""
    flat: dict[str, JSON] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, (*path, key))
        else:
            flat[format_key((*path, key))] = value
    return flat


def diff_recipes(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> list[Change]:
    """Return the keys whose values differ, in the order of the old recipe, new keys last.

    Both must be JSON values (``Recipe.model_dump(mode="json")``).
    """
    before, after = flatten(old), flatten(new)
    keys = [*before, *(key for key in after if key not in before)]
    pairs = ((key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in keys)
    return [Change(key, a, b) for key, a, b in pairs if a is ABSENT or b is ABSENT or a != b]


def read_recipe(source: str | Path) -> dict[str, JSON]:
    """Return the resolved recipe of a run folder, or of a recipe file with defaults filled in.

    Raises RecipeError when the folder holds no run or the file is no valid recipe.
    """
    path = Path(source)
    if path.is_dir():
        return RunReader(path).recipe
    from educe.config.loader import load_recipe

    return load_recipe(path).recipe.model_dump(mode="json")
