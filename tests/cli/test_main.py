"""The command line: verbs load alone, and errors are one plain line with a status."""

from __future__ import annotations

import errno
import importlib
import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import educe
from educe.cli import main as cli
from educe.cli.doctor import EXTRAS
from educe.cli.main import VERBS, main
from educe.core.errors import RecipeError
from educe.core.strict_json import strict_json


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "educe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version_and_help() -> None:
    assert run("--version").stdout == f"educe {educe.__version__}\n"
    text = run("--help").stdout
    assert all(f"    {verb}" in text for verb in VERBS)


def test_help_loads_no_verb() -> None:
    program = (
        "import sys; from educe.cli.main import build_parser; build_parser().format_help(); "
        "loaded = [m for m in sys.modules if m.startswith('educe.cli.') and m != 'educe.cli.main'];"
        "heavy = {'torch', 'transformers', 'pydantic', 'numpy'} & set(sys.modules);"
        "assert not loaded and not heavy, (loaded, heavy)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_its_file_and_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"educe.cli.{verb}")
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: educe {verb}")


def test_unknown_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["trian"])
    assert exit_.value.code == 2
    assert "invalid choice: 'trian'" in capsys.readouterr().err


def test_errors_are_plain_and_exit_2() -> None:
    done = run("explain", "no-such-recipe.toml")
    assert done.returncode == 2
    assert done.stderr.startswith("educe: recipe 'no-such-recipe.toml' does not exist.")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (RecipeError("wrong"), 2, "educe: wrong\n"),
        (KeyboardInterrupt(), 130, "educe: stopped\n"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "rows.txt"),
            2,
            "educe: cannot use rows.txt: No such file or directory\n",
        ),
    ],
)
def test_exit_status(
    error: BaseException,
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Parser:
        def parse_args(self, _: list[str]) -> Any:
            raise error

    monkeypatch.setattr(cli, "build_parser", lambda verb: Parser())
    assert main(["explain"]) == status
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("error", [OSError("nothing known"), OSError(errno.EIO, "broken", "disk")])
def test_a_fault_of_ours_keeps_its_traceback(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "build_parser", fail)
    with pytest.raises(OSError, match=str(error.strerror or error)):
        main(["explain"])


def test_values_are_replaced_before_and_behind_an_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["train", "r.toml", "rl.steps=1", "--resume", "rl.prompts=2"]
    parsed = cli.build_parser("train").parse_args(given)
    assert parsed.overrides == ["rl.steps=1", "rl.prompts=2"]
    for words in (["train", "r.toml", "--resume", "typo"], ["train", "r.toml", "--resmue=x"]):
        with pytest.raises(SystemExit):
            cli.build_parser("train").parse_args(words)
        assert words[-1] in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.build_parser("doctor").parse_args(["doctor", "a=b"])


@pytest.mark.parametrize("verb", ["train", "explain", "plan", "probe", "rollout", "profile", "eval",
                                  "forgetting", "quickstart"])  # fmt: skip
def test_every_verb_that_reads_a_recipe_replaces_values(verb: str) -> None:
    words = {
        "eval": ["m", "--recipe", "r.toml"],
        "forgetting": ["a", "b", "--recipe", "r.toml", "--out", "o"],
        "quickstart": [],
    }.get(verb, ["r.toml"])
    parsed = cli.build_parser(verb).parse_args([verb, *words, "rl.steps=1"])
    assert parsed.overrides == ["rl.steps=1"]


def test_no_verb_prints_what_json_has_no_word_for() -> None:
    folder = Path(cli.__file__).parent
    loose = [f.name for f in folder.glob("*.py") if "print(json.dumps(" in f.read_text()]
    assert set(loose) <= {"sandbox.py"}  # its numbers are measured and finite
    told = strict_json({"a": math.nan, "b": [math.inf, 1.5, None], 3: ("x",)})
    assert json.loads(told) == {"a": None, "b": [None, 1.5, None], "3": ["x"]}


def test_probing_tells_what_nobody_could_judge(capsys: pytest.CaptureFixture[str]) -> None:
    from educe.cli.probe import Probe, _show

    lost = Probe("lost", math.nan, math.nan, math.nan, math.nan, 5.0, 0.0, 8)
    _show("m", [lost, Probe("good", 0.25, 0.5, 0.5, 0.25, 5.0, 0.0, 0)], 4)
    text = capsys.readouterr().out
    assert "nan" not in text and text.index("good") < text.index("lost")
    assert "mean pass@1 25.0%, pass@4 50.0%" in text
    for words in (["--tasks", "0"], ["--samples", "-1"]):
        assert main(["probe", "quickstart", *words]) == 2
    assert main(["rollout", "quickstart", "--domains", "0"]) == 2
    assert "must be at least 1" in capsys.readouterr().err


def test_plain_and_json_choose_what_train_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    seen: list[object] = []
    done = SimpleNamespace(status="done", evaluation=None, folder="f", stages=(), report=None)
    monkeypatch.setattr("educe.api.train", lambda *_, live, **__: seen.append(live) or done)
    for words in ([], ["--plain"], ["--json"]):
        assert cli.main(["train", "r.toml", *words]) == 0
    assert seen == [True, "plain", False]


def test_a_group_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from educe.cli.rollout import show_group

    task = SimpleNamespace(task_id="a/b:train:0", gold="[red]")
    show_group(None, SimpleNamespace(group=SimpleNamespace(task=task, trajectories=[])))
    assert "a/b:train:0   gold: '[red]'" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    # With one domain and no other fault, all that explain prints goes to the closed pipe.
    (tmp_path / "r.toml").write_text('[domains.x]\nfunction = "collections:OrderedDict"\n')
    command = f"{sys.executable} -m educe explain r.toml --json | true"
    shell = ["bash", "-c", command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == ""


def test_explain_prints_problems_and_exits_2(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[rl]\ngroup_size = 1\n")
    done = run("explain", str(recipe))
    assert done.returncode == 2
    assert not done.stdout, "errors alone: a page of settings would hide them"
    assert f"educe: {recipe}:2: rl.group_size: a group of one has no baseline" in done.stderr
    told = json.loads(run("explain", str(recipe), "--json").stdout)
    assert len(told["problems"]) == 2


def test_doctor_knows_every_extra() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev"}
    for name, (package, _) in EXTRAS.items():
        assert any(line.startswith((package, package.replace("_", "-"))) for line in extras[name])


def test_what_a_callback_sees_prints_briefly() -> None:
    from educe.pipeline import StepInfo

    info = StepInfo("rl", 3, {"rl/reward": 0.5}, object())  # type: ignore[arg-type]
    assert str(info) == "StepInfo(stage='rl', step=3, metrics={'rl/reward': 0.5})"


def test_doctor_tells_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cores"] >= 1
    assert report["memory"]["total"] > 0
    assert report["packages"]["torch"]
    assert report["missing"] == []
    assert report["device"].startswith(("cpu", "cuda"))
    assert report["sandbox"].startswith(("level ", "none: "))
    main(["doctor"])
    text = capsys.readouterr().out
    assert "cores " in text
    assert "extra     lora (LoRA adapters)" in text
