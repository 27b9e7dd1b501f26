"""The shipped recipes: found by name, valid, and without a problem before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from educe.config.loader import find_recipe, load_recipe, shipped_recipes
from educe.config.render import render_recipe
from educe.core.errors import MissingExtraError
from educe.preflight import machine, make_plan

ROOT = Path(__file__).resolve().parents[1]
RECIPES = shipped_recipes()


def test_the_documented_place_is_the_shipped_one() -> None:
    assert (ROOT / "recipes").resolve() == (ROOT / "src" / "educe" / "recipes").resolve()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_found_by_every_spelling(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for spelling in (recipe.stem, recipe.name, f"recipes/{recipe.name}"):
        assert find_recipe(spelling) == recipe


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_ready_to_run(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither this machine's devices nor its memory are the recipe's fault.
    monkeypatch.setattr(machine, "has_cuda_device", lambda: True)
    monkeypatch.setattr(machine, "memory_of", lambda _: (None, None, ""))
    _, problems = make_plan(load_recipe(recipe, [f"run.out={tmp_path}"]))
    assert not [p for p in problems if not isinstance(p, MissingExtraError)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_short_and_rewritten_equal(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    code = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) <= 60 or "joint" in recipe.stem, f"{len(code)} lines: use globs"
    loaded = load_recipe(recipe).recipe
    again = tmp_path / recipe.name
    again.write_text(render_recipe(loaded))
    assert load_recipe(again).recipe == loaded
