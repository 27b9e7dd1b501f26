"""educe profile: phases add up to the step, floors and pictures are there, nothing is left over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from educe.cli.main import main
from educe.config.loader import load_recipe
from educe.observability.timing import SILENT, Timeline
from educe.profile import OTHER, profile


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(
        f"""stages = ["sft", "rl"]
[run]
name = "p"
out = "{tmp_path / "runs"}"
[model]
name = "{tiny_folder}"
[domains."arithmetic/add/tiny"]
[rl]
steps = 50
prompts = 2
group_size = 3
max_completion_tokens = 6
"""
    )
    return path


def test_a_timeline_keeps_phases_in_order():
    ticks = iter(range(10))
    timeline = Timeline(clock=lambda: float(next(ticks)))
    with timeline.measure("a", 3):
        pass
    with pytest.raises(ValueError), timeline.measure("b"):
        raise ValueError
    assert [tuple(p) for p in timeline.phases] == [("a", 1.0, 2.0, 3), ("b", 3.0, 4.0, 0)]
    with SILENT.measure("nothing", 1):
        pass


def test_phases_add_up_to_the_step(recipe: Path, tmp_path: Path):
    found = profile(load_recipe(str(recipe), []), num_steps=2, announce=lambda line: None)
    by_name = {p.name: p for p in found.phases}
    assert {"prefill", "decode", "sampling", "publish"} <= set(by_name)
    assert sum(p.seconds for p in found.phases) == pytest.approx(found.step_s)
    assert sum(p.share for p in found.phases) == pytest.approx(1.0)
    assert by_name[OTHER].seconds >= 0
    assert by_name["decode"].calls >= 1
    assert 1 <= by_name["decode"].mean_size <= 6
    assert by_name["decode"].floor_s is not None
    assert by_name["decode"].floor_s > 0
    assert by_name["sampling"].floor_s is None
    assert found.completion_tokens > 0
    assert list(found.domains) == ["arithmetic/add/tiny"]
    assert not (tmp_path / "runs").exists(), "a profile leaves no run"


def test_the_command_writes_a_table_and_a_picture(recipe: Path, tmp_path: Path, capsys):
    out = tmp_path / "p.png"
    assert main(["profile", str(recipe), "--steps", "1", "--no-floors", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "decode" in shown
    assert "slowest first" in shown
    assert out.read_bytes().startswith(b"\x89PNG")


def test_json_and_bad_input(recipe: Path, tmp_path: Path, capsys):
    out = str(tmp_path / "p.png")
    arguments = ["profile", str(recipe), "--steps", "1", "--no-floors", "--json", "--out", out]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_s"] > 0
    assert {"name", "seconds", "share", "floor_s"} <= set(found["phases"][0])
    assert main(["profile", str(recipe), "--steps", "0"]) == 2
    assert "--steps must be at least 1" in capsys.readouterr().err
