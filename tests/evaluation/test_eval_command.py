"""``educe eval`` end to end, with a scripted session in place of a model."""

from __future__ import annotations

import argparse
import io
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripted_domain import Scripted, Sums

from educe.cli.eval import ProgressLine, add_parser, clock, run_command
from educe.core.errors import EduceError
from educe.evaluation.runner import Limits, Progress


class Session(Scripted):
    """A scripted sampler with what a session must tell about itself."""

    def __init__(self, name: str, right_below: int) -> None:
        super().__init__(
            {"sums": Sums(), "more": Sums("more")},
            lambda t, k: t.gold if t.index < right_below else "0",
        )
        self.label = self.identity = name
        self.limits = {"sums": Limits(max_completion_tokens=9)}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text("[eval]\ntasks_per_domain = 20\ninterval = 0.9\n")
    return path


def command(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["eval", *words])


def opener(opened: list[Session]):
    @contextmanager
    def open_session(model: str, recipe: str):
        session = Session(model, {"base": 2, "run": 18}.get(model, 10))
        opened.append(session)
        yield session

    return open_session


def test_two_models_are_compared_and_resumed(recipe: Path, tmp_path: Path, capsys):
    opened: list[Session] = []
    out = tmp_path / "out"
    words = ("run", "--recipe", str(recipe), "--against", "base", "--out", str(out), "--json")
    assert run_command(command(*words), opener(opened)) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["comparison"]["findings"]["better"] == 2
    assert raw["comparison"]["macro_difference"]["value"] == pytest.approx(0.8)
    assert raw["comparison"]["level"] == 0.9
    assert opened[0].requests[0].max_completion_tokens == 9
    assert sorted(p.name for p in out.iterdir()) == [
        "after.json", "after.jsonl", "before.json", "before.jsonl", "report.html", "report.json",
        "report.md",
    ]  # fmt: skip
    run_command(command(*words), opener(opened))
    assert json.loads(capsys.readouterr().out)["comparison"] == raw["comparison"]
    assert [len(s.requests) for s in opened] == [40, 40, 0, 0]
    worse = ("base", "--recipe", str(recipe), "--against", "run")
    assert run_command(command(*worse), opener(opened)) == 0
    assert "| sums | worse |" in capsys.readouterr().out


def test_one_model_and_what_the_command_line_replaces(recipe: Path, capsys):
    opened: list[Session] = []
    words = ("some", "--recipe", str(recipe), "--tasks", "12", "--samples", "2",
             "--temperature", "0.8")  # fmt: skip
    assert run_command(command(*words), opener(opened)) == 0
    text = capsys.readouterr().out
    assert "# some on small" in text and "Macro score 83.3 [" in text
    assert {(r.num_samples, r.temperature) for r in opened[0].requests} == {(2, 0.8)}
    assert len(opened[0].requests) == 24
    words = ("some", "eval.tasks_per_domain=7", "--recipe", str(recipe))
    assert run_command(command(*words), opener(opened)) == 0
    assert len(opened[1].requests) == 14


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "0"), "must be at least 1"),
        (("--samples", "3"), "3 times the same text"),
        (("--temperature", "-1"), "got 20, 1 and -1"),
    ],
)
def test_impossible_numbers_are_refused_before_anything_is_loaded(recipe, words, message):
    opened: list[Session] = []
    with pytest.raises(EduceError, match=message):
        run_command(command("base", "--recipe", str(recipe), *words), opener(opened))
    assert opened == []


def test_the_same_label_on_both_sides_is_told_apart(recipe: Path, capsys):
    words = ("base", "--recipe", str(recipe), "--against", "base", "--json")
    run_command(command(*words), opener([]))
    raw = json.loads(capsys.readouterr().out)["comparison"]
    assert (raw["before"]["label"], raw["after"]["label"]) == ("base (before)", "base (after)")


def test_progress_is_one_line_on_a_terminal_and_few_elsewhere():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    live, plain = Terminal(), io.StringIO()
    for line in (ProgressLine("base", live), ProgressLine("base", plain)):
        for done in (1, 2, 3, 4):
            line(Progress(done, 4, 0, 1.0, 4.0 - done, "sums"))
        line.close()
    assert live.getvalue().endswith("\n") and live.getvalue().count("\n") == 1
    assert plain.getvalue().splitlines()[-1] == "base: 4/4 tasks, 0:00 left"
    assert len(plain.getvalue().splitlines()) <= 2
    assert clock(3723) == "1:02:03"
