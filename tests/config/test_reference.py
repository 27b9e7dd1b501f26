"""The page of settings is written from the settings, and is current."""

from __future__ import annotations

from pathlib import Path

from educe.config.reference import reference
from educe.config.schema import Node, walk_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"


def test_page_is_current() -> None:
    told = "docs/recipes.md is stale: run python -m educe.config.reference > docs/recipes.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), told


def test_every_setting_is_on_the_page() -> None:
    page = reference()
    for path, _ in walk_settings():
        assert f"`{path[-1]}`" in page or f"[{path[-1]}]" in page or f".{path[-1]}]" in page, path


def test_every_setting_says_what_it_is_for() -> None:
    silent = [
        path
        for path, field in walk_settings()
        if not field.description and Node(field.annotation, field).section is None
    ]
    assert not silent


def test_sections_stay_small() -> None:
    sizes: dict[tuple[str, ...], int] = {}
    for path, _ in walk_settings():
        if len(path) > 1:  # the recipe itself is its list of sections
            sizes[path[:-1]] = sizes.get(path[:-1], 0) + 1
    assert max(sizes.values()) <= 20, sizes
