"""Learning from narrow rollouts: what is taken over from another study, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rollout_types
from arm_queue import Results
from test_algorithm_arms import arm_row, save_rows

ROOT = Path(__file__).resolve().parents[2]


def test_recipes_are_compared_but_for_places() -> None:
    one = {"run": {"name": "a", "out": "x", "seed": 1}, "rl": {"steps": 3, "old": 1}}
    two = {"run": {"name": "b", "out": "y", "seed": 1}, "rl": {"steps": 3, "new": 2}}
    assert rollout_types.different(one, two) == []
    two["rl"]["steps"], two["run"]["seed"] = 4, 2
    assert rollout_types.different(one, two) == ["run.seed", "rl.steps"]


@pytest.fixture
def reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder of algorithm arms with the start and GRPO of two seeds; arguments that reuse it."""
    monkeypatch.setattr(
        rollout_types,
        "recipe_of",
        lambda given, seed: {"engine": {"dtype": "bfloat16"}, "run": {"seed": seed}},
    )
    monkeypatch.setattr(rollout_types, "gaps_of", lambda folder: {"mismatch": 0.002})
    theirs = tmp_path / "arms"
    results = Results(theirs / "results.jsonl")
    start = theirs / "sft" / "models" / "sft"
    for seed in (1, 2):
        save_rows(theirs, "start", 0.2, seed)
        save_rows(theirs, "grpo", 0.5, seed)
        results.add({"arm": f"start-{seed}", "seed": seed, "score": 0.2})
        results.add({**arm_row("grpo", seed), "score": 0.5})
        (theirs / f"grpo-{seed}").mkdir()
        recipe = {
            "engine": {"dtype": "bfloat16"},
            "run": {"seed": seed},
            "model": {"name": str(start)},
        }
        (theirs / f"grpo-{seed}" / "run.json").write_text(json.dumps({"recipe": recipe}))
    return [
        "--reuse", str(theirs), "--out", str(tmp_path / "out"), "--seeds", "1", "2",
        "--tasks", "40", "--samples", "2", "--docs", str(tmp_path / "speed.md"),
    ]  # fmt: skip


def test_the_same_arms_are_taken_over_once(reused: list[str], tmp_path: Path) -> None:
    given = rollout_types.parse(reused)
    assert given.start.endswith("sft/models/sft")
    rollout_types.take_over(given)
    rollout_types.take_over(given)
    results = Results(tmp_path / "out" / "results.jsonl")
    assert set(results.rows) == {"start-1", "start-2", "bfloat16-1", "bfloat16-2"}
    assert results.rows["bfloat16-1"]["gaps"] == {"mismatch": 0.002}
    left = [a.name for p in rollout_types.phases(given) for a in p if a.name not in results]
    assert left == ["float32-1", "int8-1", "float32-2", "int8-2"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--tasks", "30"], "evaluated with {'tasks_per_domain': 40}"),
        (["--start", "elsewhere"], "wanted elsewhere"),
    ],
)
def test_what_differs_is_not_taken_over(
    reused: list[str], change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = rollout_types.parse([*reused, *change])
    rollout_types.take_over(given)
    assert said in capsys.readouterr().out
    assert "bfloat16-1" not in Results(given.out / "results.jsonl")


def test_the_report_compares_with_fp32(reused: list[str], tmp_path: Path) -> None:
    given = rollout_types.parse([*reused, "--report-only"])
    rollout_types.take_over(given)
    results = Results(given.out / "results.jsonl")
    for seed in (1, 2):
        for name, rate in (("float32", 0.5), ("int8", 0.2)):
            save_rows(given.out, name, rate, seed)
            row = {**arm_row("grpo", seed), "arm": f"{name}-{seed}", "gaps": {"mismatch": 0.01}}
            results.add(row)
    assert rollout_types.run(given) == 0
    page = (tmp_path / "speed.md").read_text()
    rows: dict[str, list[Any]] = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:]]
        for line in page.splitlines()
        if line.startswith(("| fp32", "| bf16", "| 8-bit"))
    }
    assert rows["fp32"][3:5] == ["-", "-"]
    assert rows["8-bit"][4] == "worse" and rows["8-bit"][3].startswith("-")
    assert rows["bf16"][4] in ("yes", "untold")
    assert rows["bf16"][5] == "0.0020"


@pytest.mark.slow
def test_the_whole_command_on_a_tiny_model(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    recipe = (ROOT / "benchmarks" / "algorithm_arms.toml").read_text()
    start, end = recipe.index("[domains."), recipe.index("[sft]")
    letters = '[domains."letters"]\nfunction = "tests.trainers.letters:DistinctLetters"\n\n'
    small = tmp_path / "small.toml"
    small.write_text(recipe[:start] + letters + recipe[end:])
    arguments = [
        "--recipe", str(small), "--start", str(tiny_folder), "--types", "float32", "int8",
        "--seeds", "1", "--tasks", "4", "--workers", "2", "--out", str(tmp_path / "out"),
        "--docs", str(tmp_path / "page.md"), "--set", 'model.compute_dtype="auto"',
        "rl.tokens=200", "rl.max_completion_tokens=6", "rl.prompts=4", "guards.screen_every=0",
    ]  # fmt: skip
    assert rollout_types.run(rollout_types.parse(arguments)) == 0
    results = Results(tmp_path / "out" / "results.jsonl")
    assert set(results.rows) == {"start-1", "float32-1", "int8-1"}
    gaps = {n: results.rows[f"{n}-1"]["gaps"]["mismatch"] for n in ("float32", "int8")}
    # A tiny model's probabilities are nearly even, so even its rounded ones differ little.
    assert gaps["float32"] < 1e-4 and 100 * gaps["float32"] < gaps["int8"]
    page = (tmp_path / "page.md").read_text()
    assert "| 8-bit |" in page
