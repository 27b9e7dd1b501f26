"""Whole RL runs of the algorithms that need more than a group: they run, remember and resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from educe.api import train
from educe.core.stopping import StopSignal
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe

LETTERS = {"letters": {"function": "tests.trainers.letters:domain"}}
JUDGED = {"judged": {"function": "tests.trainers.judged:domain"}}


def quiet(_: str) -> None:
    pass


def run(folder, out, algorithm, *, rl=None, domains=LETTERS, **sections):
    recipe = tiny_recipe(
        folder,
        out,
        stages=["rl"],
        domains=domains,
        algorithm=algorithm,
        rl={"steps": 3, "group_size": 3, "max_completion_tokens": 4, **(rl or {})},
        **{"checkpoint": {"every_steps": 1}, **sections},
    )
    return recipe, lambda **options: train(recipe, announce=quiet, **options)


def stopped_then_resumed(folder, out, *arguments, **sections):
    """Return (an uninterrupted run, one that stopped after its first step and was resumed)."""
    _, whole = run(folder, out / "whole", *arguments, **sections)
    _, halted = run(folder, out / "halted", *arguments, **sections)
    stop = StopSignal()

    def halt(info):
        if info.step == 0:
            stop.request("test")

    assert halted(callbacks=[halt], stop=stop).status == "stopped"
    again = halted(resume=True)
    assert again.status == "done"
    return whole(), again


def tensors(result, file="model") -> dict[str, torch.Tensor]:
    newest = sorted((result.folder / "checkpoints").glob("step-*"))[-1]
    return load_file(newest / f"{file}.safetensors")


def same_bits(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def last(result) -> dict[str, float]:
    return RunStore.open(result.folder).metrics("rl")[-1].values


STEERED = {
    "name": "ppo",
    "kl_coefficient": 0.05,
    "kl": {"target": 0.001, "horizon": 10},
    "value": {"learning_rate": 0.01},
}


@pytest.mark.parametrize("lora", [{}, {"rank": 4}], ids=["full", "lora"])
def test_ppo_with_everything_that_is_remembered_resumes_bitwise(tiny_folder, tmp_path, lora):
    """Value head and its moments, adaptive KL, entropy target, running reward statistics."""
    whole, again = stopped_then_resumed(
        tiny_folder,
        tmp_path,
        STEERED,
        rl={"epochs": 2, "exploration": {"entropy_target": 9.0}},
        model={"lora": lora},
        shaping={"normalise": True, "length": 0.1},
    )
    saved = tensors(whole)
    assert {n for n in saved if n.startswith("value_head.")} == {
        f"value_head.{layer}.{kind}" for layer in ("inner", "outer") for kind in ("weight", "bias")
    }
    assert saved["value_head.outer.weight"].any()
    assert same_bits(saved, tensors(again))
    assert same_bits(tensors(whole, "optimizer"), tensors(again, "optimizer"))
    values = last(whole)
    assert values == {**last(again), **{k: v for k, v in values.items() if "time/" in k}}
    for name in ("values", "returns", "value_loss", "value_grad_norm", "kl_k3"):
        assert f"rl/{name}" in values
    assert values["rl/kl_coefficient"] != 0.05
    assert values["rl/entropy_coefficient"] > 0
    # The saved model is a plain one: the critic stays in the checkpoints.
    exported = load_file(whole.folder / "models" / "rl" / "model.safetensors")
    assert not any("value_head" in name for name in exported)


def test_a_refreshed_reference_comes_back_with_its_checkpoint(tiny_folder, tmp_path):
    algorithm = {"name": "grpo", "kl_coefficient": 0.1, "kl": {"refresh_steps": 1}}
    whole, again = stopped_then_resumed(tiny_folder, tmp_path, algorithm)
    assert same_bits(tensors(whole), tensors(again))
    assert len(RunStore.open(whole.folder).events("reference")) == 3
    # A fresh reference is the policy itself: nothing to measure before the first update.
    folder = sorted((whole.folder / "checkpoints").glob("step-*"))
    assert not (folder[-1] / "frozen.safetensors").exists()  # the stage is over


def test_the_reference_is_refreshed_after_as_many_batches_as_named(tiny_folder, tmp_path):
    algorithm = {"name": "grpo", "kl_coefficient": 0.1, "kl": {"refresh_steps": 2}}
    rl = {"steps": 3, "prompts": 4, "group_size": 6, "updates": 1}
    _, start = run(tiny_folder, tmp_path, algorithm, rl=rl)
    store = RunStore.open(start().folder)
    assert [e.payload["step"] for e in store.events("reference")] == [1]
    far = [row.values.get("rl/kl_k3", 0.0) for row in store.metrics("rl")]
    # Before its first update a batch is measured against the reference of the batch before.
    assert far[0] < 1e-9 and far[1] > 1e-9 and far[2] < 1e-9


def test_remax_samples_a_greedy_completion_for_each_prompt(tiny_folder, tmp_path):
    _, start = run(tiny_folder, tmp_path, {"name": "remax"}, rl={"group_size": 1})
    result = start()
    samples = [s.body for s in RunStore.open(result.folder).samples()]
    assert len(samples) == 3 * 2 * 2
    greedy = [s for s in samples if s["sample_index"] == 1]
    assert len(greedy) == 6 and not any(s["in_loss"] for s in greedy)
    for sample in samples:
        is_greedy = sample["sample_index"] == 1
        assert {t["temperature"] for t in sample["turns"]} == {0.0 if is_greedy else 1.0}
    assert "rl/greedy_reward" in last(result)


def test_updates_end_early_when_the_policy_has_gone_far(tiny_folder, tmp_path):
    algorithm = {"name": "grpo", "kl": {"stop_update": 1e-9}}
    _, start = run(tiny_folder, tmp_path, algorithm, rl={"epochs": 4, "steps": 2, "group_size": 6})
    result = start()
    store = RunStore.open(result.folder)
    # The second update sees the KL of the first one; the third is not taken.
    assert {row.values["rl/updates"] for row in store.metrics("rl")} <= {0.0, 2.0}
    assert store.events("updates_ended")


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_the_ratio_is_one_at_a_batchs_first_update_and_against_its_start_after(
    tiny_folder, tmp_path, name
):
    """Of several updates each has its own prompts: their start must have been measured before."""
    told = {}
    for updates in (1, 2):
        rl = {"steps": 1, "group_size": 6, "prompts": 4, "updates": updates}
        _, start = run(tiny_folder, tmp_path / str(updates), {"name": name}, rl=rl)
        told[updates] = last(start())
    assert told[1]["rl/max_ratio"] == 1.0 and told[1]["rl/update_k3"] == 0.0
    assert told[2]["rl/updates"] == 2.0  # the figures are those of the last update
    assert told[2]["rl/max_ratio"] > 1.0 and told[2]["rl/update_k3"] > 0.0


def test_the_stage_ends_when_the_reference_is_far(tiny_folder, tmp_path):
    algorithm = {"name": "grpo", "kl_coefficient": 1e-6, "kl": {"stop": 1e-7}}
    _, start = run(tiny_folder, tmp_path, algorithm, rl={"steps": 9, "group_size": 6})
    assert len(RunStore.open(start().folder).metrics("rl")) < 9


def test_the_temperature_follows_its_schedule_in_each_domain(tiny_folder, tmp_path):
    domains = {
        "letters": LETTERS["letters"],
        "arithmetic/add/tiny": {"temperature": 2.0},
    }
    _, start = run(
        tiny_folder,
        tmp_path,
        {"name": "grpo"},
        rl={"exploration": {"temperature": 0.5, "steps": 2}},
        domains=domains,
    )
    seen: dict[str, dict[int, set[float]]] = {}
    for sample in RunStore.open(start().folder).samples():
        for turn in sample.body["turns"]:
            steps = seen.setdefault(sample.body["domain"], {})
            steps.setdefault(sample.step, set()).add(turn["temperature"])
    for step, temperature in enumerate((1.0, 0.75, 0.5)):
        assert seen["letters"][step] == {temperature}
        assert seen["arithmetic/add/tiny"][step] == {2 * temperature}


def test_steps_are_credited_where_they_are(tiny_folder, tmp_path):
    algorithm = {"name": "process_grpo"}
    _, start = run(tiny_folder, tmp_path, algorithm, domains=JUDGED, rl={"steps": 1})
    result = start()
    for sample in RunStore.open(result.folder).samples():
        tokens = sum(len(t["completion_token_ids"]) for t in sample.body["turns"])
        places = [place for place, _ in sample.body["step_scores"]]
        assert len(places) == 2 and places == sorted(places) and places[-1] < tokens
    assert last(result)["rl/updates"] > 0


def test_several_rewards_by_name(tiny_folder, tmp_path):
    shaping = {"parts": {"short": 0.5}, "overlong": 0.1}
    _, start = run(
        tiny_folder, tmp_path, {"name": "gdpo"}, domains=JUDGED, rl={"steps": 1}, shaping=shaping
    )
    values = last(start())
    assert values["rl/shaped"] != values["rl/reward"]


def test_a_domain_with_values_trains_beside_one_without(tiny_folder, tmp_path):
    domains = {
        "letters": {**LETTERS["letters"], "algorithm": "ppo"},
        "arithmetic/add/tiny": {"algorithm": "rloo"},
    }
    _, start = run(
        tiny_folder, tmp_path, {"name": "grpo"}, domains=domains, rl={"prompts": 4, "steps": 2}
    )
    values = last(start())
    assert "domain/letters/value_loss" in values
    assert "domain/arithmetic/add/tiny/value_loss" not in values


def test_a_checkpoint_with_values_is_refused_by_a_state_without(tiny_folder, tmp_path):
    from educe.config.settings import OptimizerSettings
    from educe.core.errors import CheckpointError
    from educe.models.load import load
    from educe.trainers.checkpoint import load_checkpoint
    from educe.trainers.step import TrainerState

    _, start = run(tiny_folder, tmp_path, {"name": "ppo"}, rl={"steps": 1})
    newest = sorted((start().folder / "checkpoints").glob("step-*"))[-1]
    state = TrainerState.create(load(str(tiny_folder)), OptimizerSettings(), 1e-3)
    with pytest.raises(CheckpointError, match=r"its tensors differ, e\.g\. value_head"):
        load_checkpoint(newest, state)


def test_progress_says_what_credit_remembers(tiny_folder, tmp_path):
    _, start = run(tiny_folder, tmp_path, STEERED, shaping={"normalise": True})
    stop = StopSignal()
    result = start(callbacks=[lambda info: stop.request("test")], stop=stop)
    newest: Path = sorted((result.folder / "checkpoints").glob("step-*"))[-1]
    loop = json.loads((newest / "state.json").read_text())["progress"]["loop"]
    assert loop["credit"]["rewards"]["letters"]["weight"] > 0
    assert loop["credit"]["coefficients"]["kl"]["ppo"]["target"] == 0.001
