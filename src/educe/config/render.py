"""A recipe back as TOML: what a run folder keeps, and what two runs are compared by."""

from __future__ import annotations

from typing import Any

from educe.config.positions import format_key
from educe.config.schema import format_value
from educe.config.settings import Recipe


def flatten_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return every leaf setting under its dotted key, in the order of the settings' classes."""
    return {format_key(path): value for path, value in _leaves(recipe.model_dump(), ())}


def diff_recipes(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return dotted key: (before, after) for the settings that differ; None where one is absent."""
    left, right = flatten_recipe(before), flatten_recipe(after)
    keys = list(left) + [k for k in right if k not in left]
    return {k: (left.get(k), right.get(k)) for k in keys if left.get(k) != right.get(k)}


def render_recipe(recipe: Recipe) -> str:
    """Return a complete recipe as TOML that loads back to an equal one (unset keys left out)."""
    raw = recipe.model_dump()
    lines = [f"{k} = {_exact(v)}" for k, v in raw.items() if not isinstance(v, dict)]
    for name, section in raw.items():
        if isinstance(section, dict):
            lines += _table((name,), section)
    return "\n".join(lines) + "\n"


def _table(path: tuple[str, ...], table: dict[str, Any]) -> list[str]:
    # Free tables (options, goal targets) may hold anything: they are written inline.
    is_nested = path in (("domains",), ("model",)) or (len(path) == 2 and path[0] == "domains")
    lines = ["", f"[{format_key(path)}]"]
    nested: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict) and is_nested and key != "options":
            nested += _table((*path, key), value)
        elif value is not None:
            lines.append(f"{format_key((key,))} = {_exact(value)}")
    return lines + nested


def _exact(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        known = ((k, v) for k, v in value.items() if v is not None)
        inner = ", ".join(f"{format_key((k,))} = {_exact(v)}" for k, v in known)
        return "{ " + inner + " }" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_exact, value)) + "]"
    return format_value(value)


def _leaves(table: dict[str, Any], prefix: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found += _leaves(value, (*prefix, key))
        else:
            found.append(((*prefix, key), value))
    return found
