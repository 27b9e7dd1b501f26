"""A run folder is made, reopened or refused before anything heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from educe.config.loader import LoadedRecipe, load_recipe
from educe.config.settings import Recipe
from educe.core.errors import EduceError, RecipeError
from educe.run_folder import check_changes, prepare_folder

RECIPE = """\
stages = ["sft", "rl", "eval"]
[run]
out = "runs"
mode = "MODE"
[rl]
group_size = 4
steps = 10
"""


@pytest.fixture(params=["exact", "fast"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def recipe(folder: Path, mode: str, *overrides: str) -> LoadedRecipe:
    (folder / "r.toml").write_text(RECIPE.replace("MODE", mode))
    return load_recipe(folder / "r.toml", overrides)


def begin(folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch, **place: Any) -> None:
    """A run with a checkpoint, as far as can be told without tensors."""
    monkeypatch.chdir(folder)
    run, store = prepare_folder(recipe(folder, mode), resume=False)
    store.close()
    checkpoint = run / "checkpoints" / "step-00000004"
    checkpoint.mkdir(parents=True)
    progress = {"stage_index": 1, "stage_step": 2, **place}
    meta = {"format_version": 1, "trainer_step": 4, "progress": progress, "metric": None}
    (checkpoint / "state.json").write_text(json.dumps(meta))
    (checkpoint / "COMPLETE").write_text("")


def resume(folder: Path, mode: str, *overrides: str) -> None:
    """Reopen the run; what counts from then on is what was asked for now."""
    asked = recipe(folder, mode, *overrides)
    run, store = prepare_folder(asked, resume=True)
    store.close()
    attempts = sorted((run / "attempts").glob("*.json"))
    assert len(attempts) > 1, "a resume is an attempt of its own"
    kept = json.loads(attempts[-1].read_text())["recipe"]
    first = json.loads((run / "run.json").read_text())["recipe"]
    assert (first if kept is None else kept) == asked.recipe.model_dump(mode="json")


@pytest.mark.parametrize(
    "override",
    [
        'run.sinks=["tensorboard"]',
        "checkpoint.keep=5",
        "eval.tasks_per_domain=3",
        'goal.targets={"arithmetic/add/tiny" = 0.5}',
        "guards.action=alarm",
        "rl.minutes=3",
        "rl.tokens=1000",
        "rl.steps=20",
        'stages=["sft", "rl"]',
        'stages=["sft", "rl", "eval", "sft"]',
    ],
)
def test_what_a_resume_may_change(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    begin(tmp_path, mode, monkeypatch)
    resume(tmp_path, mode, override)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rl.group_size=8", "rl.group_size: was 4, is 8 (override rl.group_size=8)"),
        ("run.seed=3", "run.seed: was 0, is 3"),
        ("model.lora.rank=4", "model.lora.rank: was 0, is 4"),
        ("optimizer.name=sgd", 'optimizer.name: was "adamw", is "sgd"'),
        ('stages=["rl", "eval"]', 'stages: was ["sft", "rl", "eval"], is ["rl", "eval"]'),
        ("sft.batch_size=4", "sft.batch_size: was 16, is 4"),
        ("optimizer.schedule=linear", 'optimizer.schedule: was "constant", is "linear"'),
    ],
)
def test_what_a_resume_must_not_change(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, override: str, told: str
) -> None:
    begin(tmp_path, mode, monkeypatch)
    with pytest.raises(RecipeError) as caught:
        resume(tmp_path, mode, override)
    text = str(caught.value)
    assert told in text
    assert "Put them back, or start a new run" in text and "checkpoint.*" in text
    assert len(list((tmp_path / "runs/run/attempts").iterdir())) == 1, "no attempt was claimed"


def test_a_domain_may_come_in_rl_and_in_fast_mode_only(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = "domains.letters.weight=2"
    for stage_index in (0, 1):
        folder = tmp_path / str(stage_index)
        folder.mkdir()
        begin(folder, mode, monkeypatch, stage_index=stage_index)
        if (mode, stage_index) == ("fast", 1):
            resume(folder, mode, override)
            continue
        with pytest.raises(RecipeError, match=r"domains\.letters\.weight: was not set, is 2"):
            resume(folder, mode, override)


@pytest.mark.parametrize(
    "override",
    ["run.threads=1", "optimizer.micro_batch_tokens=99", "engine.max_rows=3", "rl.learning_rate=1"],
)
def test_last_bits_may_change_in_fast_mode_only(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    begin(tmp_path, mode, monkeypatch)
    if mode == "fast":
        resume(tmp_path, mode, override)
        return
    with pytest.raises(RecipeError, match=r"In exact mode a resume may change"):
        resume(tmp_path, mode, override)


def test_a_stage_that_has_not_begun_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, "exact", monkeypatch, stage_index=0)
    resume(tmp_path, "exact", "rl.group_size=8")
    with pytest.raises(RecipeError, match=r"sft\.batch_size"):
        resume(tmp_path, "exact", "sft.batch_size=4")


def test_a_run_without_a_checkpoint_may_change_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_folder(recipe(tmp_path, "fast"), resume=False)[1].close()
    resume(tmp_path, "fast", "rl.group_size=8")
    begin_again = prepare_folder(recipe(tmp_path, "fast"), resume=True)
    begin_again[1].close()


def test_the_newest_attempts_recipe_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, "fast", monkeypatch)
    resume(tmp_path, "fast", "rl.steps=20")
    resume(tmp_path, "fast", "rl.steps=30")


def test_one_file_by_two_names_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    before = Recipe.model_validate({"model": {"name": "model"}})
    same = Recipe.model_validate({"model": {"name": str(tmp_path / "model")}})
    check_changes(before, LoadedRecipe(same), stage_index=0)


def test_one_function_by_two_paths_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("")
    monkeypatch.chdir(tmp_path)
    known = "domains.x={path='r.toml', reward=['own.py:f', 'other:g']}"
    before = recipe(tmp_path, "exact", known).recipe
    same = known.replace("own.py", str(tmp_path / "own.py"))
    check_changes(before, recipe(tmp_path, "exact", same), stage_index=1)
    for other in (known.replace(":f", ":h"), known.replace("other", "another")):
        with pytest.raises(RecipeError, match="reward"):
            check_changes(before, recipe(tmp_path, "exact", other), stage_index=1)


def test_a_settled_folder_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, "fast", monkeypatch)
    with pytest.raises(EduceError, match="already holds a run"):
        prepare_folder(recipe(tmp_path, "fast"), resume=False)
    with pytest.raises(EduceError, match="holds no run"):
        prepare_folder(recipe(tmp_path, "fast", "run.name=other"), resume=True)


_REFUSED = """
import sys
from pathlib import Path
from educe.api import train
from educe.core.errors import EduceError
from tests.trainers.recipes import tiny_recipe
try:
    train(tiny_recipe(Path(sys.argv[1]), Path(sys.argv[2])), resume=len(sys.argv) > 3)
except EduceError as error:
    print(error)
print(sorted({"torch", "transformers", "scipy", "matplotlib"} & set(sys.modules)))
"""


def test_a_refusal_loads_nothing_heavy(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", _REFUSED, str(tiny_folder), str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "already holds a run" in done.stdout
    assert done.stdout.endswith("[]\n")
    command[-1] = str(tmp_path / "none")
    done = subprocess.run(
        [*command, "resume"], cwd=root, capture_output=True, text=True, check=True
    )
    assert "holds no run" in done.stdout
    assert done.stdout.endswith("[]\n")
