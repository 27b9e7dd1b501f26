"""``educe eval MODEL --suite standard`` on a real tiny model: the whole road, twice."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

from educe.cli import suite_command
from educe.cli.eval import ProgressLine, add_parser, handler
from educe.config.settings import Recipe
from educe.core.errors import EduceError
from educe.evaluation.dimensions import load_dimension
from educe.evaluation.dimensions.options import checked_options


def command(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["eval", *words])


def test_a_tiny_model_before_and_after(
    tiny_folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path / "cache"))
    models = [str(tiny_folders[name]) for name in ("llama", "qwen2")]
    words = [
        models[0], "--suite", "standard", "--dimensions", "completion,stability",
        "--option", "completion.domains=arithmetic/percent/tiny",
        "--option", "completion.tasks=2", "--option", "stability.tasks=1",
        "--option", "stability.domains=arithmetic/percent/tiny",
        "--out", str(tmp_path / "out"), "--against", models[1], "--json",
    ]  # fmt: skip
    assert handler(command(*words)) == 0
    shown = capsys.readouterr()
    raw = json.loads(shown.out)
    assert [d["name"] for d in raw["dimensions"]] == ["completion", "stability"]
    total = sum(raw["after"]["dimensions"][0]["counts"][k] for k in ("right", "total"))
    assert total >= 2 and "left" in shown.err
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["after.json", "after.jsonl", "before.json", "before.jsonl", "report.html",
                     "report.json", "report.md"]  # fmt: skip
    first = (tmp_path / "out" / "after.jsonl").read_bytes()
    again = [w if w != str(tmp_path / "out") else str(tmp_path / "again") for w in words]
    assert handler(command(*again)) == 0
    # From the cache: nothing was sampled, so no progress line for tasks done here.
    assert "left" not in capsys.readouterr().err
    assert (tmp_path / "again" / "after.jsonl").read_bytes() == first


def test_options_are_read_as_json_or_text():
    read = suite_command.parse_option
    assert read("stability.samples=16") == ("stability", "samples", 16)
    assert read("completion.sets=mmlu,boolq") == ("completion", "sets", ["mmlu", "boolq"])
    assert read('completion.sets=["mmlu"]') == ("completion", "sets", ["mmlu"])
    assert read("completion.domains=rg/*/tiny") == ("completion", "domains", "rg/*/tiny")
    assert read("long_context.lengths=512, 1024") == ("long_context", "lengths", [512, 1024])
    assert read("long_context.depths=0,0.5") == ("long_context", "depths", [0, 0.5])
    for wrong in ("samples=3", "a.b", "a.b=", ".b=1"):
        with pytest.raises(EduceError, match="DIMENSION"):
            read(wrong)


def test_options_of_the_pages_are_accepted():
    """What the documentation shows can be typed."""
    docs = Path(__file__).parents[2] / "docs"
    shown = [o for page in sorted(docs.glob("*.md"))
             for o in re.findall(r"--option (\w+\.\w+=[^\s`]+)", page.read_text())]  # fmt: skip
    assert len(shown) >= 6
    for text in shown:
        dimension, name, value = suite_command.parse_option(text)
        known = importlib.import_module(type(load_dimension(dimension)).__module__).OPTIONS
        assert checked_options(dimension, {name: value}, known)


def test_the_command_line_replaces_the_recipe():
    recipe = Recipe.model_validate(
        {"eval": {"tier": "large", "strategy": "cot", "suite_options": {"stability": {"tasks": 3}}}}
    )
    plan, strategies = suite_command.plan_from(
        command("m", "--suite", "standard", "--option", "stability.samples=2"), recipe
    )
    assert plan.tier == "large" and strategies == ["cot"]
    assert plan.options == {"stability": {"tasks": 3, "samples": 2}}
    plan, _ = suite_command.plan_from(
        command("m", "--suite", "standard", "--dimensions", "safety"), recipe
    )
    assert plan.dimensions == ("safety",) and "stability" in plan.options
    plan, strategies = suite_command.plan_from(
        command("m", "--suite", "standard", "--tier", "small", "--strategy", "direct,reflect"),
        recipe,
    )
    assert plan.tier == "small" and strategies == ["direct", "reflect"]


def test_what_does_not_fit_together_is_told():
    with pytest.raises(EduceError, match="add --suite"):
        handler(command("m", "--strategy", "cot"))
    with pytest.raises(EduceError, match="give --recipe"):
        handler(command("m"))
    with pytest.raises(EduceError, match=r"--option completion\.tasks=5"):
        suite_command.run_command(
            command("m", "--suite", "standard", "--tasks", "5"), lambda *_: None, ProgressLine
        )
    for words, message in (
        (["--suite", "standart"], "Did you mean 'standard'"),
        (["--suite", "standard", "--dimensions", "saftey"], "Did you mean 'safety'"),
        (["--suite", "standard", "--option", "stabilty.samples=4"], "Did you mean 'stability'"),
        (["--suite", "standard", "--dimensions", "safety", "--option", "stability.tasks=4"],
         "does not ask; it asks safety"),
    ):  # fmt: skip
        with pytest.raises(EduceError, match=message):
            suite_command.plan_from(command("m", *words), Recipe())
    with pytest.raises(EduceError, match="no strategy"):
        suite_command.plan_from(
            command("m", "--suite", "standard", "--strategy", "magic"), Recipe()
        )
