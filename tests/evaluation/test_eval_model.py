"""``educe eval`` on a real (tiny, untrained) model: the whole way from weights to a report."""

from __future__ import annotations

import json
from pathlib import Path

from educe.cli.main import main
from educe.evaluation.saved import load_saved


def test_a_tiny_model_is_evaluated_and_not_sampled_twice(
    tiny_folder: Path, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        f'[model]\nname = "{tiny_folder}"\n[domains."algebra/evaluate/tiny"]\n'
        "max_completion_tokens = 8\n[eval]\ntasks_per_domain = 3\n"
    )
    words = ["eval", str(tiny_folder), "--recipe", str(recipe), "--out", "out", "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    domain = first["summary"]["domains"][0]
    assert domain["domain"] == "algebra/evaluate/tiny"
    assert domain["counts"]["total"] == domain["num_tasks"] == 3
    assert 0.0 <= domain["score"]["low"] <= domain["score"]["value"] <= domain["score"]["high"]
    rows = (tmp_path / "out" / "after.jsonl").read_bytes()
    assert len(load_saved(tmp_path / "out").rows) == 3
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()

    assert main(words) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["summary"] == first["summary"]
    assert (tmp_path / "out" / "after.jsonl").read_bytes() == rows
