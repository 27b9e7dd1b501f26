"""The loader: provenance, overrides, and the text of each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from educe.config.loader import LoadedRecipe, load_recipe, recipe_from_values
from educe.config.render import diff_recipes, flatten_recipe, render_recipe
from educe.config.settings import Recipe
from educe.core.errors import RecipeError

RECIPE = """\
stages = ["rl"]

[rl]
steps = 5
learning_rate = 1

[domains."rg/gcd/tiny"]
weight = 2.0
options = { level = 3 }
"""


def write(folder: Path, text: str, name: str = "r.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(folder, text), overrides)
    return str(caught.value).replace(str(folder) + "/", "")


def origin(loaded: LoadedRecipe, key: str) -> str:
    return Path(str(loaded.origins[key])).name


def test_values_and_origins(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, RECIPE))
    assert loaded.recipe.stages == ("rl",)
    assert loaded.recipe.rl.learning_rate == 1.0
    assert loaded.recipe.domains["rg/gcd/tiny"].options == {"level": 3}
    assert origin(loaded, "rl.steps") == "r.toml:4"
    assert origin(loaded, 'domains."rg/gcd/tiny".weight') == "r.toml:8"
    assert origin(loaded, 'domains."rg/gcd/tiny".options.level') == "r.toml:9"
    assert "rl.prompts" not in loaded.origins
    assert str(loaded.where("rl.prompts")).endswith("r.toml:3")


def test_overrides_win_and_say_so(tmp_path: Path) -> None:
    loaded = load_recipe(
        write(tmp_path, RECIPE),
        [
            "rl.steps=7",
            "model.name=my/model",
            "run.name=2026",
            "domains.rg/gcd/tiny.weight=4",
            'domains."my.own".path=x.jsonl',
            'stages=["sft", "rl"]',
            "model.lora.rank = 8",
            "model.system_prompt=",
            "rl.drop_trivial=true",
        ],
    )
    recipe = loaded.recipe
    assert (recipe.rl.steps, recipe.model.name, recipe.run.name) == (7, "my/model", "2026")
    assert recipe.domains["rg/gcd/tiny"].weight == 4
    assert recipe.domains["rg/gcd/tiny"].options == {"level": 3}
    assert recipe.domains["my.own"].path == "x.jsonl"
    assert recipe.stages == ("sft", "rl")
    assert recipe.model.lora.rank == 8
    assert recipe.model.system_prompt == ""
    assert recipe.rl.drop_trivial is True
    assert str(loaded.origins["rl.steps"]) == "override rl.steps=7"
    assert origin(loaded, "rl.learning_rate") == "r.toml:5"
    assert origin(loaded, 'domains."rg/gcd/tiny"') == "r.toml:7"


def test_extends_keeps_each_values_own_file(tmp_path: Path) -> None:
    write(tmp_path, RECIPE)
    gpu = write(tmp_path, 'extends = "r.toml"\n[rl]\nprompts = 64\nsteps = 9\n', "gpu.toml")
    loaded = load_recipe(gpu)
    assert (loaded.recipe.rl.steps, loaded.recipe.rl.prompts) == (9, 64)
    assert loaded.recipe.domains["rg/gcd/tiny"].weight == 2
    assert origin(loaded, "rl.steps") == "gpu.toml:4"
    assert origin(loaded, "rl.learning_rate") == "r.toml:5"
    diff = diff_recipes(load_recipe(tmp_path / "r.toml").recipe, loaded.recipe)
    assert diff == {"rl.steps": (5, 9), "rl.prompts": (8, 64)}
    write(tmp_path, 'extends = "gpu.toml"\n')
    with pytest.raises(RecipeError, match="extend each other in a circle"):
        load_recipe(gpu)
    write(tmp_path, 'extends = "absent.toml"\n')
    with pytest.raises(RecipeError, match=r"r\.toml:1: extends: there is no recipe '.*absent"):
        load_recipe(tmp_path / "r.toml")


def test_unknown_key_names_line_and_nearest(tmp_path: Path) -> None:
    text = refusal(tmp_path, "[rl]\n\ngroupsize = 4\n")
    assert text == "r.toml:3: unknown key 'groupsize' in [rl]. Did you mean 'group_size'?"


def test_unknown_key_that_lives_elsewhere(tmp_path: Path) -> None:
    assert "There is a 'clip_high' in [algorithm]." in refusal(tmp_path, "[eval]\nclip_high = 1\n")


def test_unknown_section_and_free_table(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[algoritm]\nname = 'grpo'\n") == (
        "r.toml:1: unknown key 'algoritm' in the recipe. Did you mean 'algorithm'?"
    )
    text = refusal(tmp_path, '[domains."a/b"]\noptions = { any = 1 }\nwieght = 2\n')
    assert text.startswith("r.toml:3: unknown key 'wieght' in [domains.\"a/b\"]. Did you mean")


def test_unknown_key_in_override(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", "rl.stpes=4") == (
        "override rl.stpes=4: unknown key 'stpes' in [rl]. Did you mean 'steps'?"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[rl]\nsteps = "five"',
            'r.toml:2: rl.steps: expected an integer >= 0, got "five" (text). '
            "Rollout batches (each may take several updates). Default: 100.",
        ),
        ("[rl]\nsteps = 5.0", "r.toml:2: rl.steps: expected an integer >= 0, got 5 (number)."),
        ("[rl]\nprompts = 0", "rl.prompts: expected an integer > 0, got 0 (integer)."),
        ("[optimizer]\nbeta1 = 1", "optimizer.beta1: expected a number >= 0 and < 1, got 1"),
        ("[rl]\ndrop_trivial = 1", "expected true or false, got 1 (integer)."),
        ("rl = 5", "r.toml:1: rl: expected a table of settings, got 5 (integer)."),
        (
            "[algorithm]\nkl_estimator = 'k33'",
            'expected one of "k1", "k2", "k3", "k1+", "k3+", "rk3", got "k33" (text). Did you',
        ),
        ("stages = 'rl'", 'r.toml:1: stages: expected a list of "sft", "preference", '),
        ("stages = ['rl', 'test']", 'r.toml:1: stages: expected a list of "sft", "preference"'),
        ("[model]\nlora.targets = 3", "r.toml:2: model.lora.targets: expected text or a list of"),
        ("[goal.targets]\nx = 'y'", 'r.toml:2: goal.targets.x: expected a number, got "y"'),
        ("[rl]\nlearning_rate = inf", "r.toml:2: rl.learning_rate: a date, a time or an infinite"),
        ("[run]\nname = 2020-01-01", "r.toml:2: run.name: a date, a time or an infinite number"),
        ("[rl]\nsteps = \n", "r.toml:2: this is not TOML: Invalid value (at line 2"),
    ],
)
def test_wrong_values(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = refusal(tmp_path, "[rl]\nsteps = -1\n[run]\nseed = 'x'\n")
    assert text.startswith("2 problems in the recipe:\n")
    assert "  r.toml:2: rl.steps" in text
    assert "  r.toml:4: run.seed" in text


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rl.steps", "expected section.key=value, got 'rl.steps'"),
        ("=5", "expected section.key=value, got '=5'"),
        ("rl.steps=x", 'override rl.steps=x: rl.steps: expected an integer >= 0, got "x" (text)'),
        ("stages=[rl]", "'[rl]' is not a TOML value"),
        ("rl.drop_trivial=True", 'expected true or false, got "True" (text)'),
        ("stages.x=1", "stages.x: 'stages' holds [\"rl\"] (list), no table"),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in refusal(tmp_path, RECIPE, override)


def test_files_stand_beside_the_recipe_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("{}")
    text = '[domains.mine]\npath = "rows.jsonl"\n[domains.other]\npath = "elsewhere.jsonl"\n'
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe(write(folder, text), ["domains.third.path=rows.jsonl"])
    assert loaded.recipe.domains["mine"].path == str(folder / "rows.jsonl")
    assert loaded.recipe.domains["other"].path == "elsewhere.jsonl"
    assert loaded.recipe.domains["third"].path == "rows.jsonl"


def test_code_stands_beside_the_recipe_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "inner"
    (folder / "parts").mkdir(parents=True)
    for name in ("own.py", "here.py", "json.py", "parts/deep.py"):
        (folder / name).write_text("")
    (tmp_path / "here.py").write_text("")
    (folder / "words.txt").write_text("")
    text = """
[domains.a]
path = "rows.jsonl"
reward = ["own:f", "own.py:g", "here:f", "here.py:f", "json:loads", "none:f", "none.py:f"]
[domains.b]
function = "parts.deep:create"
[review]
words = "words.txt"
"""
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(write(folder, text)).recipe
    # A file lies beside the recipe first; a module is what is installed, or in the working folder.
    assert recipe.domains["a"].reward == (
        f"{folder}/own.py:f", f"{folder}/own.py:g", "here:f", f"{folder}/here.py:f",
        "json:loads", "none:f", "none.py:f",
    )  # fmt: skip
    assert recipe.domains["b"].function == f"{folder}/parts/deep.py:create"
    assert recipe.review.words == str(folder / "words.txt")
    overridden = load_recipe(folder / "r.toml", ["domains.b.function=parts.deep:create"]).recipe
    assert overridden.domains["b"].function == "parts.deep:create"


def test_missing_recipe_names_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"does not exist\..*shipped recipes"):
        load_recipe("no-such-recipe")
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)


def test_python_values(tmp_path: Path) -> None:
    loaded = recipe_from_values({"rl": {"steps": 3}}, ["rl.prompts=2"])
    assert (loaded.recipe.rl.steps, loaded.recipe.rl.prompts) == (3, 2)
    assert str(loaded.origins["rl.steps"]) == "python"
    with pytest.raises(RecipeError, match="notebook: unknown key 'step' in"):
        recipe_from_values({"rl": {"step": 3}}, source="notebook")


def test_rendered_recipe_loads_back_equal(tmp_path: Path) -> None:
    extra = RECIPE + '[model.lora]\nrank = 4\ntargets = ["q_proj"]\n[goal.targets]\n"a/b" = 0.5\n'
    extra += '[domains."q\\"uote"]\noptions = { a = [1, { b = "x\\n" }] }\n'
    recipe = load_recipe(write(tmp_path, extra)).recipe
    again = load_recipe(write(tmp_path, render_recipe(recipe), "again.toml")).recipe
    assert again == recipe
    default = Recipe()
    assert load_recipe(write(tmp_path, render_recipe(default), "d.toml")).recipe == default
    assert flatten_recipe(recipe)['domains."rg/gcd/tiny".options.level'] == 3
