"""Planning against runs: the constants that are fitted, and the whole command on a tiny model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import plan_check
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_constants_are_those_of_the_line_through_the_runs() -> None:
    step_s, each = plan_check.fitted_handling([(16, 0.2 + 16 * 0.01), (48, 0.2 + 48 * 0.01)])
    assert (step_s, each) == (pytest.approx(0.2), pytest.approx(0.01))


def test_no_constant_is_negative() -> None:
    assert plan_check.fitted_handling([(16, 0.5), (48, 0.3)]) == (pytest.approx(0.4), 0.0)
    assert plan_check.fitted_handling([(16, 0.0), (48, 3.2)])[0] == 0.0
    assert plan_check.fitted_handling([(16, -1.0), (48, -2.0)]) == (0.0, 0.0)
    assert plan_check.fitted_handling([(16, 0.4)]) == (pytest.approx(0.4), 0.0)


def test_the_runs_of_the_fit_are_not_those_of_the_check() -> None:
    """Nor are their sizes: what a step samples is another number in each."""
    assert not {r.name for r in plan_check.FITTED} & {r.name for r in plan_check.RUNS}
    assert not {r.overrides for r in plan_check.FITTED} & {r.overrides for r in plan_check.RUNS}
    assert len(plan_check.RUNS) == 3


@pytest.mark.slow
def test_the_whole_command_on_a_tiny_model(tiny_folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path / "cache"))
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'stages = ["rl"]\n[domains."letters"]\n'
        'function = "tests.trainers.letters:DistinctLetters"\n[rl]\nscore_workers = 2\n'
    )
    overrides = [
        f'model.name="{tiny_folder}"', "rl.max_completion_tokens=6", "run.threads=1",
        "optimizer.micro_batch_tokens=512",
    ]  # fmt: skip
    given = argparse.Namespace(
        steps=2, only=None, fit=True, recipe=str(recipe), overrides=overrides,
        out=tmp_path / "rows.json",
    )  # fmt: skip
    assert plan_check.measure(given) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["completions"] for row in rows] == [48, 16]
    assert all(row["memory_gb"] > 0.1 and row["step_s"] > 0 for row in rows)
    assert all(10 * 2**20 < row["worker_bytes"] < 2**30 for row in rows)
    assert {"rollout", "train"} <= set(rows[0]["measured_parts"])
    told = capsys.readouterr().out
    assert "_HANDLING_S = " in told and "_STEP_S = " in told and "_WORKER_BYTES = " in told
