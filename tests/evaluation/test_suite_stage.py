"""The eval stage with a suite: asked of the start and of the result, one more report in the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import educe
from educe.config.settings import Recipe
from educe.core.errors import EduceError
from educe.preflight import make_plan


def recipe(model: Path, out: Path, **settings: object) -> Recipe:
    return Recipe.model_validate(
        {
            "stages": ["eval"],
            "run": {"name": "r", "out": str(out)},
            "model": {"name": str(model)},
            "domains": {"arithmetic/percent/tiny": {"max_completion_tokens": 8}},
            "eval": {
                "tasks_per_domain": 2,
                "suite": "standard",
                "dimensions": ["completion"],
                "suite_options": {"completion": {"tasks": 2, "domains": "arithmetic/add/tiny"}},
                **settings,
            },
        }
    )


def test_a_run_asks_its_suite(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    result = educe.train(recipe(tiny_folder, tmp_path), announce=said.append)
    names = {p.name for p in (result.folder / "suite").iterdir()}
    assert names == {"before.json", "before.jsonl", "after.json", "after.jsonl"}
    raw = json.loads((result.folder / "suite.json").read_text())
    assert [d["name"] for d in raw["dimensions"]] == ["completion"]
    assert raw["dimensions"][0]["measures"][0]["num_pairs"] == 2
    assert (result.folder / "suite.html").is_file()
    assert any("suite report" in line for line in said)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"suite": "standrad"}, "Did you mean 'standard'"),
        ({"dimensions": ["compleiton"]}, "Did you mean 'completion'"),
        ({"suite_options": {"stabilty": {}}}, "which the suite does not ask"),
    ],
)
def test_names_are_checked_before_anything_runs(
    settings: dict, told: str, tiny_folder: Path, tmp_path: Path
):
    _, problems = make_plan(recipe(tiny_folder, tmp_path, **settings))
    assert any(told in str(p) for p in problems), problems
    assert all(isinstance(p, EduceError) for p in problems)
