"""Whole runs on the tiny model: they learn, they stop, and they resume bitwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from educe.api import train
from educe.core.errors import EduceError
from educe.core.stopping import StopSignal
from educe.observability.run_store import RunStore
from tests.trainers.recipes import RECIPES, tiny_recipe


def quiet(_: str) -> None:
    pass


def weights(folder: Path, stage: str = "rl") -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / stage / "model.safetensors")


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    recipe = tiny_recipe(tiny_folder, tmp_path_factory.mktemp("whole"))
    return train(recipe, announce=quiet).folder


def test_a_run_leaves_metrics_samples_and_a_plain_model(finished):
    from transformers import AutoModelForCausalLM

    store = RunStore.open(finished)
    rows = store.metrics("rl")
    assert [row.step for row in rows] == [0, 1, 2, 3]
    for name in ("rl/reward", "rl/score", "rl/entropy", "rl/truncated", "rl/unscored"):
        assert name in rows[-1].values
    assert "domain/arithmetic/add/tiny/reward" in rows[-1].values
    assert len(list(store.samples())) == 4 * 2 * 4
    assert AutoModelForCausalLM.from_pretrained(finished / "models" / "rl") is not None


def test_trained_ids_are_the_sampled_ids(finished):
    from educe.core.types import Trajectory
    from educe.rollout.packing import trajectory_sequences

    for stored in RunStore.open(finished).samples():
        trajectory = Trajectory.from_json(stored.body)
        (sequence,) = trajectory_sequences(trajectory)
        tokens, mask, _, _ = sequence
        assert tuple(tokens[mask]) == trajectory.turns[0].completion_token_ids
        assert not mask[: len(trajectory.turns[0].context_token_ids)].any()


@pytest.mark.parametrize("stop_after", [("sft", 0), ("sft", 3), ("rl", 0), ("rl", 2)])
def test_a_stopped_run_resumes_bitwise(tiny_folder, tmp_path, finished, stop_after):
    stop = StopSignal()

    def halt(info):
        if (info.stage, info.step) == stop_after:
            stop.request("test")

    recipe = tiny_recipe(tiny_folder, tmp_path)
    result = train(recipe, announce=quiet, callbacks=[halt], stop=stop)
    assert result.status == "stopped"
    again = train(recipe, announce=quiet, resume=True)
    assert again.status == "done"
    assert same_bits(weights(again.folder), weights(finished))
    rows = RunStore.open(again.folder).metrics("rl")
    assert [row.step for row in rows] == [0, 1, 2, 3]


_CHILD = """
import sys
from educe.api import train
from tests.trainers.recipes import RECIPES
from pathlib import Path
make = RECIPES[sys.argv[4]]
train(make(Path(sys.argv[1]), Path(sys.argv[2])), resume=sys.argv[3] == "resume",
      announce=lambda line: print(line, flush=True))
"""


def _spawn(model: Path, out: Path, how: str, kind: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[2]
    with (out / f"{how}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(model), str(out), how, kind],
            cwd=root,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed"),
    [*(("plain", s) for s in range(3)), *(("tools", s) for s in range(3)), ("time-outs", 0)],
)
def test_kill_9_at_any_moment_resumes_bitwise(tiny_folder, tmp_path, kind, seed):
    """Kill at random moments of the training, again and again, until a run gets through."""
    import random

    whole = train(RECIPES[kind](tiny_folder, tmp_path / "whole"), announce=quiet).folder
    if kind == "time-outs":
        unscored = [r.values["rl/unscored"] for r in RunStore.open(whole).metrics("rl")]
        assert 0 < max(unscored) < 1
    out = tmp_path / "cut"
    out.mkdir()
    rng = random.Random(seed)
    kills, how = 0, "start"
    for _ in range(12):
        child = _spawn(tiny_folder, out, how, kind)
        kills += _killed(child, out / "run", rng.uniform(0, 2.5) if kills < 4 else None)
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, (out / f"{how}.log").read_text()[-2000:]
        if (out / "run" / "run.json").exists():
            how = "resume"
    assert kills >= 2
    assert same_bits(weights(out / "run"), weights(whole))
    rows = [RunStore.open(f).metrics("rl") for f in (out / "run", whole)]
    assert [r.step for r in rows[0]] == [r.step for r in rows[1]]


def _killed(child: subprocess.Popen[bytes], run: Path, after_s: float | None) -> bool:
    """Kill the child so long after its first step; return whether it was still running."""
    before = _num_steps(run)
    while child.poll() is None and after_s is not None:
        if _num_steps(run) > before:  # loading libraries is no moment of a run
            try:
                child.wait(timeout=after_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                return True
        time.sleep(0.02)
    child.wait(timeout=600)
    return False


def _num_steps(run: Path) -> int:
    """Return how many steps all attempts have recorded, one done twice counted twice."""
    segments = (run / "segments").glob("*.jsonl")
    return sum(segment.read_bytes().count(b'"k":"metrics"') for segment in segments)


def test_sigterm_stops_and_keeps_everything(tiny_folder, tmp_path):
    recipe = tiny_recipe(tiny_folder, tmp_path)

    def terminate(info):
        if (info.stage, info.step) == ("sft", 1):
            os.kill(os.getpid(), signal.SIGTERM)

    result = train(recipe, announce=quiet, callbacks=[terminate])
    assert result.status == "stopped"
    progress = json.loads(
        sorted((result.folder / "checkpoints").glob("step-*/state.json"))[-1].read_text()
    )
    assert progress["progress"]["stage_step"] == 2


def test_a_second_run_of_a_name_and_a_resume_of_none_are_refused(tiny_folder, tmp_path, finished):
    recipe = tiny_recipe(tiny_folder, finished.parent)
    with pytest.raises(EduceError, match="already holds a run"):
        train(recipe, announce=quiet)
    with pytest.raises(EduceError, match="holds no run"):
        train(tiny_recipe(tiny_folder, tmp_path / "none"), announce=quiet, resume=True)


def test_one_batch_can_be_overfitted(tiny_folder, tmp_path):
    losses = []
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["sft"],
        sft={"steps": 60, "num_tasks": 4, "batch_size": 4, "learning_rate": 1e-2},
        checkpoint={"every_steps": 0},
    )
    train(recipe, announce=quiet, callbacks=[lambda i: losses.append(i.metrics["sft/loss"])])
    assert losses[-1] < 0.1 < losses[0]


def test_reinforcement_raises_the_reward_it_is_paid_for(tiny_folder, tmp_path):
    """GRPO on the tiny model, rewarded for bytes of one kind, soon writes them."""
    rewards = []
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        domains={"letters": {"function": "tests.trainers.letters:domain"}},
        rl={"steps": 25, "prompts": 2, "group_size": 8, "updates": 1, "learning_rate": 5e-3},
        checkpoint={"every_steps": 0},
    )
    train(recipe, announce=quiet, callbacks=[lambda i: rewards.append(i.metrics["rl/reward"])])
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_a_non_finite_gradient_is_skipped_and_kept(tiny_folder, tmp_path):
    def poison(info):
        if (info.stage, info.step) == ("rl", 0):
            head = info.session.model.head_weight()
            head.register_hook(lambda grad: grad * float("nan"))

    recipe = tiny_recipe(tiny_folder, tmp_path, stages=["rl"], rl={"steps": 3, "group_size": 8})
    result = train(recipe, announce=quiet, callbacks=[poison])
    store = RunStore.open(result.folder)
    events = store.events("non_finite")
    assert events
    assert (result.folder / "non_finite" / events[0].payload["batch"]).exists()
    assert all(t.isfinite().all() for t in weights(result.folder).values())


def test_a_goal_that_is_reached_ends_the_stage(tiny_folder, tmp_path):
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        goal={"targets": {"arithmetic/add/tiny": 0.0}, "check_every": 2, "tasks": 2},
    )
    result = train(recipe, announce=quiet)
    store = RunStore.open(result.folder)
    assert [e.payload["status"] for e in store.events("goal")] == ["reached"]
    assert len(store.metrics("rl")) == 2


def test_lora_trains_adapters_only_and_exports_merged(tiny_folder, tmp_path):
    from transformers import AutoModelForCausalLM

    recipe = tiny_recipe(
        tiny_folder, tmp_path, stages=["sft"], model={"lora": {"rank": 4}}, run={"mode": "fast"}
    )
    result = train(recipe, announce=quiet)
    merged = AutoModelForCausalLM.from_pretrained(result.folder / "models" / "sft")
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    changed = {
        n for (n, a), (_, b) in zip(base.named_parameters(), merged.named_parameters(), strict=True)
        if not torch.equal(a, b)
    }  # fmt: skip
    assert any("q_proj" in n for n in changed)
    assert not any("norm" in n or "embed" in n for n in changed)
