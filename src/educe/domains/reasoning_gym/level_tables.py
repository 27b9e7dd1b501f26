"""Shorthands for tables of levels."""

from __future__ import annotations

from typing import Any

Overrides = dict[str, Any]
"""Overrides of a family's configuration."""

Levels = dict[str, Overrides]


def ranges(*names: str, **levels: tuple[Any, ...]) -> Levels:
    """Return levels over ``min_<name>``/``max_<name>`` pairs: one (low, high) per name."""
    return {
        level: {
            f"{end}_{name}": value
            for name, pair in zip(names, pairs, strict=True)
            for end, value in zip(("min", "max"), pair, strict=True)
        }
        for level, pairs in levels.items()
    }


def with_all(levels: Levels, **extra: Any) -> Levels:
    """Return the levels with the same further overrides in each."""
    return {level: {**overrides, **extra} for level, overrides in levels.items()}


def values(name: str, **levels: Any) -> Levels:
    """Return levels that set one field."""
    return {level: {name: value} for level, value in levels.items()}
