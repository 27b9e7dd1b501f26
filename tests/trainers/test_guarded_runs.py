"""Runs that go wrong on purpose: an alarm names the cause, the run goes back and ends no worse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from educe.api import open_session, train
from educe.core.stopping import StopSignal
from educe.core.types import Split
from educe.evaluation.runner import Limits, evaluate
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe

LETTERS = "tests.trainers.letters:"


def quiet(_: str) -> None:
    pass


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / "rl" / "model.safetensors")


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def letters_recipe(
    model: Path, out: Path, domain: str = "DistinctLetters", /, **sections: Any
) -> Any:
    options: dict[str, Any] = {
        "stages": ["rl"],
        "run": {"mode": "fast"},
        "domains": {"letters": {"function": LETTERS + domain}},
        "rl": {"steps": 18, "prompts": 4, "group_size": 4, "updates": 1, "learning_rate": 5e-3},
        "checkpoint": {"every_steps": 0},
        "guards": {"anchor_every": 6, "window": 3},
    }
    for name, values in sections.items():
        options[name] = {**options.get(name, {}), **values}
    return tiny_recipe(model, out, **options)


def quality(model: Path, out: Path) -> float:
    """Mean held-out score of sampled answers."""
    recipe = letters_recipe(model, out)
    with open_session(str(model), recipe, announce=quiet) as session:
        limits = {"letters": Limits(max_completion_tokens=6, temperature=1.0)}
        result = evaluate(
            session,
            session.domains,
            tasks_per_domain=32,
            samples=4,
            split=Split.EVAL,
            limits=limits,
            label="q",
        )
    values = [r.value for r in result.rows if r.value is not None]
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def able(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learned to write some lower-case letters: it has something to lose."""
    out = tmp_path_factory.mktemp("able")
    recipe = tiny_recipe(
        tiny_folder,
        out,
        stages=["sft"],
        run={"mode": "fast"},
        domains={"letters": {"function": LETTERS + "DistinctLetters"}},
        sft={"steps": 24, "num_tasks": 64, "batch_size": 8, "learning_rate": 1e-2},
        checkpoint={"every_steps": 0},
    )
    return train(recipe, announce=quiet).folder / "models" / "sft"


@pytest.fixture(scope="module")
def start(able: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    found = quality(able, tmp_path_factory.mktemp("q"))
    assert 0.4 < found < 0.9, "something to lose, and something to gain"
    return found


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(e.payload) for e in RunStore.open(folder).events(kind)]


def check_ending(folder: Path, start: float, kinds: set[str], out: Path) -> list[dict[str, Any]]:
    """The alarm fired, the run went back, and what it ends with is no worse than its start."""
    alarms, rollbacks = events(folder, "alarm"), events(folder, "rollback")
    assert kinds & {a["kind"] for a in alarms}, (alarms, events(folder, "screen"))
    assert rollbacks and all(r["cause"] and r["to"] for r in rollbacks)
    end = quality(folder / "models" / "rl", out)
    assert end >= start - 0.08, (start, end)  # 128 samples: two standard errors
    return rollbacks


def test_a_learning_rate_times_30_goes_back_and_slows_down(
    able: Path, start: float, tmp_path: Path
) -> None:
    lines: list[str] = []
    recipe = letters_recipe(able, tmp_path, rl={"learning_rate": 30 * 5e-3})
    result = train(recipe, announce=lines.append)
    kinds = {"reward_collapse", "policy_collapse", "skipped_steps", "non_finite_weights"}
    rollbacks = check_ending(result.folder, start, kinds, tmp_path)
    scales = [r["rate_scale"] for r in rollbacks]
    assert scales == [pytest.approx(0.3**n) for n in range(1, len(scales) + 1)]
    assert any("Back to step-" in line for line in lines)
    rates = [r.values.get("rl/learning_rate") for r in RunStore.open(result.folder).metrics("rl")]
    assert min(r for r in rates if r) == pytest.approx(0.15 * min(scales), rel=0.01) or (
        rollbacks[-1].get("given_up")
    )


def test_a_flipped_reward_is_caught_by_the_screen_tasks(
    able: Path, start: float, tmp_path: Path
) -> None:
    recipe = letters_recipe(
        able, tmp_path, "FlippedLetters", guards={"screen_every": 3, "screen_tasks": 64}
    )
    result = train(recipe, announce=quiet)
    rollbacks = check_ending(result.folder, start, {"screen_drop"}, tmp_path)
    rewards = [r.values["rl/reward"] for r in RunStore.open(result.folder).metrics("rl")]
    assert max(rewards) > rewards[0], "what was paid for rose all the while"
    assert len(rollbacks) >= 1


def test_a_reward_times_100_ends_the_stage_at_its_start(
    able: Path, start: float, tmp_path: Path
) -> None:
    lines: list[str] = []
    recipe = letters_recipe(
        able, tmp_path, "LoudLetters", algorithm={"name": "dr_grpo"}, optimizer={"max_grad_norm": 0}
    )
    result = train(recipe, announce=lines.append)
    rollbacks = check_ending(result.folder, start, {"max_advantage"}, tmp_path)
    assert [r["number"] for r in rollbacks] == [1, 2, 3, 4]
    assert "given_up" in rollbacks[-1]
    assert len(RunStore.open(result.folder).metrics("rl")) < 12, "it does not loop"
    assert any("the stage ends there" in line for line in lines)
    assert same_bits(weights(result.folder), load_file(able / "model.safetensors"))


@pytest.mark.parametrize("smoothing", [{"normalise": True}, {"limit": 2.0}])
def test_smoothing_lets_a_reward_times_100_train_on(
    able: Path, tmp_path: Path, smoothing: dict[str, Any]
) -> None:
    """What the guard must end without it (above) runs through, and learns."""
    recipe = letters_recipe(
        able, tmp_path, "LoudLetters", algorithm={"name": "dr_grpo"}, shaping=smoothing,
        rl={"steps": 8},
    )  # fmt: skip
    result = train(recipe, announce=quiet)
    assert not events(result.folder, "rollback")
    assert "max_advantage" not in {a["kind"] for a in events(result.folder, "alarm")}
    rows = RunStore.open(result.folder).metrics("rl")
    assert len(rows) == 8
    assert max(r.values["rl/max_advantage"] for r in rows) < 5
    assert not same_bits(weights(result.folder), load_file(able / "model.safetensors"))


def test_nan_weights_are_put_back(able: Path, start: float, tmp_path: Path) -> None:
    def poison(info: Any) -> None:
        if info.step == 8:
            next(info.session.model.causal.parameters()).data[3, 2] = float("nan")

    recipe = letters_recipe(able, tmp_path, rl={"steps": 12})
    result = train(recipe, announce=quiet, callbacks=[poison])
    (rollback,) = check_ending(result.folder, start, {"non_finite_weights"}, tmp_path)
    assert rollback["step"] == 8
    assert len(RunStore.open(result.folder).metrics("rl")) == 12
    assert all(t.isfinite().all() for t in weights(result.folder).values())


def test_gradients_that_stay_nan_end_the_stage_at_its_start(
    able: Path, start: float, tmp_path: Path
) -> None:
    def poison(info: Any) -> None:
        if info.step == 0:
            info.session.model.head_weight().register_hook(lambda grad: grad * float("nan"))

    recipe = letters_recipe(able, tmp_path)
    result = train(recipe, announce=quiet, callbacks=[poison])
    rollbacks = check_ending(result.folder, start, {"skipped_steps"}, tmp_path)
    assert "given_up" in rollbacks[-1]
    rows = RunStore.open(result.folder).metrics("rl")
    skipped = [r.values["rl/skipped"] for r in rows if "rl/skipped" in r.values]
    assert sum(skipped) == 4 * 3


def test_action_alarm_says_so_and_changes_nothing(able: Path, tmp_path: Path) -> None:
    recipe = letters_recipe(
        able, tmp_path, rl={"learning_rate": 0.15, "steps": 12}, guards={"action": "alarm"}
    )
    result = train(recipe, announce=quiet)
    assert any("collapse" in a["kind"] for a in events(result.folder, "alarm"))
    assert not events(result.folder, "rollback")
    rows = RunStore.open(result.folder).metrics("rl")
    rates = {r.values["rl/learning_rate"] for r in rows if "rl/learning_rate" in r.values}
    assert rates <= {0.075, 0.15}, "warm-up and peak, never lowered"


def test_a_healthy_run_is_left_alone(tiny_folder: Path, tmp_path: Path) -> None:
    result = train(letters_recipe(tiny_folder, tmp_path), announce=quiet)
    assert not events(result.folder, "rollback") and not events(result.folder, "back_off")
    rows = RunStore.open(result.folder).metrics("rl")
    assert all(r.values["rl/update_norm"] > 0 for r in rows if "rl/loss" in r.values)


def test_limits_of_a_step_are_kept(able: Path, tmp_path: Path) -> None:
    recipe = letters_recipe(
        able, tmp_path, rl={"steps": 3}, guards={"grad_norm": 1e-9, "max_skipped": 0}
    )
    result = train(recipe, announce=quiet)
    assert same_bits(weights(result.folder), load_file(able / "model.safetensors"))
    reasons = [e["reason"] for e in events(result.folder, "non_finite")]
    assert reasons and all("over guards.grad_norm = 1e-09" in r for r in reasons)
    small = letters_recipe(able, tmp_path / "small", rl={"steps": 1}, guards={"update_norm": 1e-3})
    before, after = (
        load_file(able / "model.safetensors"),
        weights(train(small, announce=quiet).folder),
    )
    moved = sum((before[k] - after[k]).pow(2).sum() for k in before) ** 0.5
    assert 0.9e-3 < float(moved) < 1.1e-3


@pytest.mark.parametrize("stop_at", [1, 4, 6, 9])
def test_a_rollback_replays_bitwise_after_a_stop_at_any_step(
    able: Path, tmp_path: Path, stop_at: int, guarded: tuple[Path, Callable[[Path], Any]]
) -> None:
    whole, make = guarded
    stop = StopSignal()

    def halt(info: Any) -> None:
        poison(info)
        if info.step == stop_at:
            stop.request("test")

    recipe = make(tmp_path)
    assert train(recipe, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    again = train(recipe, announce=quiet, resume=True, callbacks=[poison])
    assert same_bits(weights(again.folder), weights(whole))
    for kind in ("rollback", "back_off"):
        told = {e["step"]: e["cause"] for e in events(again.folder, kind)}
        assert told == {e["step"]: e["cause"] for e in events(whole, kind)}


def poison(info: Any) -> None:
    """Break the weights once, after step 5: what follows is a rollback to the anchor of step 2."""
    if info.step == 5:
        next(info.session.model.causal.parameters()).data[3, 2] = float("nan")


@pytest.fixture(scope="module")
def guarded(
    able: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Callable[[Path], Any]]:
    """An uninterrupted exact run with a rollback, and its recipe."""

    def make(out: Path) -> Any:
        return letters_recipe(
            able,
            out,
            run={"mode": "exact"},
            rl={"steps": 11, "prompts": 2},
            guards={"anchor_every": 2, "window": 2, "screen_every": 4, "screen_tasks": 2},
            checkpoint={"every_steps": 3, "keep": 1},
        )

    folder = train(
        make(tmp_path_factory.mktemp("guarded")), announce=quiet, callbacks=[poison]
    ).folder
    assert [e["step"] for e in events(folder, "rollback")] == [5]
    return folder, make


def test_the_anchor_outlives_newer_checkpoints(
    guarded: tuple[Path, Callable[[Path], Any]], tmp_path: Path
) -> None:
    """With ``keep = 1`` every checkpoint on disk still finds the ones that it may go back to."""
    _, make = guarded
    seen: list[set[str]] = []

    def look(info: Any) -> None:
        folder = tmp_path / "run" / "checkpoints"
        whole = {f.parent.name for f in folder.glob("step-*/COMPLETE")}
        needed: set[str] = set()
        for name in sorted(whole)[-1:]:
            needed |= set(json.loads((folder / name / "state.json").read_text())["needs"])
        assert needed <= whole
        seen.append(needed)

    train(make(tmp_path), announce=quiet, callbacks=[look])
    assert len(set().union(*seen)) >= 3, "anchors moved on"
