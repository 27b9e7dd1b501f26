"""The benchmarks on exploration and stability: verdicts, and the whole commands on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import exploration
import pytest
import stability

from educe.evaluation.statistics import Estimate

ROOT = Path(__file__).resolve().parents[2]


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, 0.95, 0.01, 100, 100, "test")


@pytest.mark.parametrize(
    "low, high, told",
    [
        (0.01, 0.1, "better"),
        (-0.2, -0.01, "worse"),
        (-0.04, 0.05, "no worse"),
        (-0.06, 0.05, "cannot be told"),
    ],
)
def test_an_interval_says_no_more_than_it_may(low: float, high: float, told: str) -> None:
    assert exploration.verdict(estimate((low + high) / 2, low, high)) == told


def test_an_alarm_that_did_not_fire_is_told() -> None:
    row = {"alarms": ["mismatch"], "rollbacks": [], "curves": {}}
    line = stability.line_of("times-100", row, estimate(0.0, -0.04, 0.04))
    assert "mismatch (expected max_advantage)" in line and line.endswith("| yes |")
    row["rollbacks"] = [{"step": 3, "kind": "max_advantage", "given_up": "ended"}]
    row["alarms"] = ["max_advantage"]
    line = stability.line_of("times-100", row, estimate(-0.1, -0.2, -0.05))
    assert "| max_advantage | step 3: max_advantage | yes |" in line and line.endswith("| worse |")


def test_arms_begin_from_a_given_start() -> None:
    given = exploration.parse(["--start", "model", "--seeds", "1", "--schedules", "plain"])
    assert [[a.name for a in p] for p in exploration.phases(given)] == [[], ["start", "plain-1"]]
    named = stability.parse(["--troubles", "nan-weight"])
    assert [[a.name for a in p] for p in stability.phases(named)] == [
        ["sft"],
        ["start", "nan-weight"],
    ]


@pytest.fixture
def small(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a small run on the tiny model."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    recipe = (ROOT / "benchmarks" / "algorithm_arms.toml").read_text()
    start, end = recipe.index("[domains."), recipe.index("[sft]")
    letters = '[domains."letters"]\nfunction = "tests.trainers.letters:DistinctLetters"\n\n'
    (tmp_path / "small.toml").write_text(recipe[:start] + letters + recipe[end:])
    return [
        "--recipe", str(tmp_path / "small.toml"), "--tasks", "3", "--workers", "2",
        "--out", str(tmp_path / "out"), "--docs", str(tmp_path / "page.md"),
        "--start", str(tiny_folder),
        "--set", 'model.compute_dtype="auto"', 'engine.dtype="auto"',
        "rl.tokens=300", "rl.max_completion_tokens=6", "rl.prompts=4",
        "guards.screen_every=0",
    ]  # fmt: skip


def rows(out: Path) -> dict[str, dict]:
    lines = (out / "results.jsonl").read_text().splitlines()
    return {r["arm"]: r for r in map(json.loads, lines)}


@pytest.mark.slow
def test_exploration_on_a_tiny_model(small: list[str], tmp_path: Path) -> None:
    arguments = ["--schedules", "temperature", "pass_at_k", "--seeds", "1", *small]
    assert exploration.run(exploration.parse(arguments)) == 0
    assert set(rows(tmp_path / "out")) == {"start", "temperature-1", "pass_at_k-1"}
    page = (tmp_path / "page.md").read_text()
    assert "PKPO, best of 4" in page and "activated" in page


@pytest.mark.slow
def test_stability_on_a_tiny_model(small: list[str], tmp_path: Path) -> None:
    arguments = ["--troubles", "nan-weight", "times-100-bounded", "--steps", "8", *small]
    assert stability.run(stability.parse(arguments)) == 0
    found = rows(tmp_path / "out")
    assert "non_finite_weights" in found["nan-weight"]["alarms"]
    assert found["nan-weight"]["rollbacks"][0]["step"] == stability.POISONED_STEP
    assert not found["times-100-bounded"]["rollbacks"]
    assert "| a NaN in a weight |" in (tmp_path / "page.md").read_text()
