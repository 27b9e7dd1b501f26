"""Stops and kills at the awkward moments: what was left undone is done, nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from educe import pipeline, sources, training_stages
from educe.api import train
from educe.core.stopping import StopRequested, StopSignal
from educe.core.types import Split
from educe.observability.run_store import RunStore
from tests.trainers.letters import Letters
from tests.trainers.recipes import tiny_recipe, tools_recipe

GOAL = {"targets": {"arithmetic/add/tiny": 0.0}, "check_every": 2, "tasks": 2}


class Killed(BaseException):
    """Stands for a kill: nothing in the run catches it."""


def quiet(_: str) -> None:
    pass


def weights(folder: Path, stage: str = "rl") -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / stage / "model.safetensors")


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def first_time(raise_this: BaseException, then: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``then``, but the first call raises."""
    calls = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise raise_this
        return then(*arguments, **options)

    return call


def newest(folder: Path) -> dict[str, Any]:
    states = sorted((folder / "checkpoints").glob("step-*/state.json"))
    return json.loads(states[-1].read_text())["progress"]


def test_a_look_at_the_goal_that_a_stop_prevented_is_taken_on_resume(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(tiny_folder, tmp_path, stages=["rl"], goal=GOAL)
    measure = training_stages.screen_scores
    monkeypatch.setattr(
        training_stages, "screen_scores", first_time(StopRequested("in the look"), measure)
    )
    result = train(recipe, announce=quiet)
    assert result.status == "stopped"
    assert newest(result.folder)["stage_step"] == 2
    assert not RunStore.open(result.folder).events("goal")
    assert train(recipe, announce=quiet, resume=True).status == "done"
    store = RunStore.open(result.folder)
    assert [(e.payload["step"], e.payload["status"]) for e in store.events("goal")] == [
        (2, "reached")
    ]
    assert len(store.metrics("rl")) == 2


@pytest.mark.parametrize("budget", [{"goal": GOAL}, {"rl": {"tokens": 80}}])
def test_a_stage_that_had_enough_when_it_was_killed_takes_no_further_step(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any]
) -> None:
    recipe = tiny_recipe(tiny_folder, tmp_path, stages=["rl"], **budget)
    with monkeypatch.context() as patch:
        finish = pipeline.Pipeline._finish_stage
        patch.setattr(pipeline.Pipeline, "_finish_stage", first_time(Killed(), finish))
        with pytest.raises(Killed):
            train(recipe, announce=quiet)
    folder = tmp_path / "run"
    assert newest(folder)["stage_step"] == 2
    train(recipe, announce=quiet, resume=True)
    rows = RunStore.open(folder).metrics("rl")
    assert [row.step for row in rows] == [0, 1]
    assert "goal" not in budget or len(RunStore.open(folder).events("goal")) == 1


def best(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / "best.json").read_text())


def test_the_best_checkpoint_is_the_same_after_a_resume(tiny_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "stages": ["rl"],
        "rl": {"steps": 7, "group_size": 6},
        "checkpoint": {"every_steps": 3, "keep": 1},
    }
    whole = train(tiny_recipe(tiny_folder, tmp_path / "whole", **options), announce=quiet)
    stop = StopSignal()

    def halt(info: Any) -> None:
        if info.step in (0, 4) and not stop.reason:
            stop.request("test")

    cut = tiny_recipe(tiny_folder, tmp_path / "cut", **options)
    halts = 0
    while (
        train(cut, announce=quiet, resume=halts > 0, callbacks=[halt], stop=stop).status
        == "stopped"
    ):
        halts += 1
        stop.reason = ""
    assert halts == 2
    assert best(tmp_path / "cut" / "run") == best(whole.folder)
    assert same_bits(weights(tmp_path / "cut" / "run"), weights(whole.folder))


def test_a_mark_of_the_best_that_a_kill_prevented_is_set_on_resume(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from educe.trainers.checkpoint import CheckpointStore

    recipe = tiny_recipe(tiny_folder, tmp_path, stages=["rl"])
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "_mark_best", lambda *_: None)
        patch.setattr(pipeline.Pipeline, "_finish_stage", first_time(Killed(), lambda *_: None))
        with pytest.raises(Killed):
            train(recipe, announce=quiet)
    assert not (tmp_path / "run/checkpoints/best.json").exists()
    train(recipe, announce=quiet, resume=True)
    assert best(tmp_path / "run")["name"].startswith("step-0000000")


def test_adapters_with_a_reference_resume_bitwise(tiny_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "model": {"lora": {"rank": 4}},
        "algorithm": {"kl_coefficient": 0.1},
        "sft": {"steps": 2},
        "rl": {"group_size": 6, "updates": 1},
    }
    whole = train(tiny_recipe(tiny_folder, tmp_path / "whole", **options), announce=quiet)
    rows = RunStore.open(whole.folder).metrics("rl")
    # The reference is the policy at the stage's start, adapters merged: equal up to rounding.
    assert rows[0].values["rl/kl_k3"] < 1e-6
    assert any(row.values.get("rl/kl_k3", 0.0) > 1e-7 for row in rows[1:])
    stop = StopSignal()

    def halt(info: Any) -> None:
        if (info.stage, info.step) == ("rl", 1):
            stop.request("test")

    cut = tiny_recipe(tiny_folder, tmp_path / "cut", **options)
    assert train(cut, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    again = train(cut, announce=quiet, resume=True)
    assert same_bits(weights(again.folder), weights(whole.folder))
    resumed = RunStore.open(again.folder).metrics("rl")
    assert [r.values.get("rl/kl_k3") for r in resumed] == [r.values.get("rl/kl_k3") for r in rows]


class SignalledLetters(Letters):
    """Sends a signal to the run when the third held-out task is asked for, once."""

    def __init__(self, marker: str = "", number: int = signal.SIGTERM) -> None:
        self.marker, self.number = Path(marker), number

    def task(self, split: Split, index: int) -> Any:
        if split is Split.EVAL and index == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.number)
        return super().task(split, index)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_evaluation_stops_it_and_a_resume_goes_on(
    tiny_folder: Path, tmp_path: Path, number: int
) -> None:
    options = {"marker": str(tmp_path / "sent"), "number": int(number)}
    domain = {"function": "tests.trainers.test_resume:SignalledLetters", "options": options}
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl", "eval"],
        domains={"letters": domain},
        rl={"steps": 1, "updates": 1},
        eval={"tasks_per_domain": 6, "baseline": "none"},
        engine={"max_rows": 1},
    )
    result = train(recipe, announce=quiet)
    assert result.status == "stopped"
    rows = (result.folder / "eval" / "after.jsonl").read_text().splitlines()
    assert 1 <= len(rows) < 7, "a header, and what was finished"
    done = train(recipe, announce=quiet, resume=True)
    assert done.status == "done"
    after = (done.folder / "eval" / "after.jsonl").read_text().splitlines()
    assert after[: len(rows)] == rows
    assert sorted(json.loads(line)["index"] for line in after[1:]) == list(range(6))
    assert len(RunStore.open(done.folder).metrics("rl")) == 1


def test_a_signal_while_weights_are_published_loses_nothing(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"stages": ["rl"], "rl": {"steps": 3}}
    whole = train(tiny_recipe(tiny_folder, tmp_path / "whole", **options), announce=quiet)
    publish = sources.LocalSource.publish

    def signalled(self: sources.LocalSource, version: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        publish(self, version)

    cut = tiny_recipe(tiny_folder, tmp_path / "cut", **options)
    with monkeypatch.context() as patch:
        patch.setattr(sources.LocalSource, "publish", signalled)
        result = train(cut, announce=quiet)
    assert result.status == "stopped"
    assert newest(result.folder)["stage_step"] == 1
    again = train(cut, announce=quiet, resume=True)
    assert same_bits(weights(again.folder), weights(whole.folder))


def test_a_signal_while_weights_are_written_for_workers_loses_nothing(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from educe.models import load

    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        engine={"workers": 1},
        rl={"steps": 2},
    )
    merged, calls = load.merged_state, []

    def signalled(model: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # after the first step
            os.kill(os.getpid(), signal.SIGTERM)
        return merged(model)

    with monkeypatch.context() as patch:
        patch.setattr(load, "merged_state", signalled)
        assert train(recipe, announce=quiet).status == "stopped"
    (tmp_path / "run/published/v7.part").mkdir(parents=True)  # as a kill would have left it
    assert train(recipe, announce=quiet, resume=True).status == "done"
    store = RunStore.open(tmp_path / "run")
    assert [row.step for row in store.metrics("rl")] == [0, 1]
    keys = [(s.body["request_id"], s.body["sample_index"]) for s in store.samples()]
    assert len(keys) == len(set(keys)) == 2 * 2 * 4


def test_what_tools_and_scorers_said_is_not_asked_again(tiny_folder: Path, tmp_path: Path) -> None:
    """A kill between checkpoints; asked again on another day, this world answers otherwise."""

    def run(name: str, **options: Any) -> Path:
        world = tmp_path / f"world-{name}"
        world.mkdir(exist_ok=True)
        (world / "day").write_text("2" if "resume" in options else "1")
        recipe = tools_recipe(tiny_folder, tmp_path / name, str(world))
        return train(recipe, announce=quiet, **options).folder

    def killed(info: Any) -> None:
        if (info.stage, info.step) == ("rl", 2):
            raise Killed

    whole = run("whole")
    turns = [len(s.body["turns"]) for s in RunStore.open(whole).samples()]
    assert max(turns) == 3 and sum(t > 1 for t in turns) >= 8, "tools were really used"
    with pytest.raises(Killed):
        run("cut", callbacks=[killed])
    num_calls = len(list((tmp_path / "world-cut").iterdir()))
    again = run("cut", resume=True)
    assert num_calls > 20
    assert same_bits(weights(again), weights(whole))
    said = [[(s.body["messages"], s.body["reward"]) for s in RunStore.open(f).samples()]
            for f in (again, whole)]  # fmt: skip
    assert said[0] == said[1]
