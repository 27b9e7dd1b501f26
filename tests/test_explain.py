"""What ``educe explain`` tells: formulas, batch algebra, and the origin of every value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from educe.config.loader import load_recipe
from educe.config.render import flatten_recipe
from educe.explain import explain, render
from educe.models.architectures import KNOWN_SHAPES
from educe.preflight import make_plan
from educe.preflight.estimate import estimate_run, gigabytes, num_trained
from tests.echo_module import ECHO

MODULE = ECHO.replace("LIMIT", "10")

RECIPE = """\
[domains.one]
function = "explain_echo:Echo"
weight = 3

[domains.two]
function = "explain_echo:Echo"
max_turns = 2
algorithm = "dapo"

[rl]
steps = 10
prompts = 8
group_size = 4
updates = 2

[algorithm]
clip_high = 0.25
kl_coefficient = 0.01
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "explain_echo.py").write_text(MODULE)
    (tmp_path / "r.toml").write_text(RECIPE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found, problems = explain(load_recipe("r.toml", ["sft.num_tasks=100"]))
    assert not problems
    return found


def test_batch_algebra(told: dict[str, Any]) -> None:
    rl = told["batch"]["rl"]
    assert rl["completions"] == 8 * 4
    assert rl["optimizer_steps"] == 10 * 2
    assert rl["prompts_an_optimizer_step"] == 4
    # Three quarters of the prompts take one turn of 10 tokens, a quarter takes two.
    assert rl["completion_tokens_at_most"] == 32 * (0.75 * 10 + 0.25 * 20)
    assert told["batch"]["sft"]["optimizer_steps"] == 7  # ceil(100 / 16)
    assert told["batch"]["eval"]["tasks_at_most"] == 100
    shares = {d["name"]: (d["share"], d["prompts_a_batch"]) for d in told["domains"]}
    assert shares == {"one": (0.75, 6.0), "two": (0.25, 2.0)}


def test_formulas_and_their_changes(told: dict[str, Any]) -> None:
    losses = {loss["name"]: loss for loss in told["loss"]}
    assert "clip(r, 0.8, 1.25)" in losses["grpo"]["formula"]
    assert "0.01 * k3(policy || reference)" in losses["grpo"]["formula"]
    assert losses["grpo"]["domains"] == ["one"]
    assert losses["dapo"]["domains"] == ["two"]
    assert losses["grpo"]["changed"]["clip_high"] == [0.2, 0.25, "r.toml:17"]
    # The numbers of [algorithm] belong to the run's algorithm; another one is as published.
    assert losses["dapo"]["changed"] == {}
    assert "clip(r, 0.8, 1.28)" in losses["dapo"]["formula"]
    assert told["model"]["reference"] is True


def test_every_value_has_an_origin(told: dict[str, Any]) -> None:
    settings = told["settings"]
    assert set(settings) == set(flatten_recipe(load_recipe("r.toml").recipe))
    assert settings["rl.steps"] == {"value": 10, "origin": "r.toml:11"}
    assert settings["domains.two.max_turns"]["origin"] == "r.toml:7"
    assert settings["rl.learning_rate"]["origin"] == "default"
    assert settings["algorithm.clip_low"] == {"value": 0.2, "origin": "default of grpo"}
    assert settings["sft.num_tasks"]["origin"] == "override sft.num_tasks=100"


def test_text_and_json(told: dict[str, Any]) -> None:
    json.dumps(told)
    text = render(told)
    assert "r.toml: sft -> rl -> eval, into runs/run" in text
    assert "8 prompts x 4 completions = 32 completions, at most 400 tokens" in text
    assert "but clip_high = 0.25 instead of 0.2  (r.toml:17)" in text
    assert "as in Shao et al. 2024, arXiv 2402.03300" in text
    assert "with a reference copy" in text
    assert "rl.steps = 10" in text
    assert "Memory (estimate): " in text
    assert "Disk (estimate): " in text


def test_problems_do_not_hide_the_rest(told: dict[str, Any]) -> None:
    found, problems = explain(load_recipe("r.toml", ["rl.group_size=1"]))
    assert "a group of one has no baseline" in str(problems[0])
    assert found["problems"] == [str(problems[0])]
    assert "Settings" in render(found)


def test_an_empty_recipe_has_no_tables(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    found, problems = explain(load_recipe(tmp_path / "empty.toml"))
    assert "names no domain" in str(problems[0])
    text = render(found)
    assert "Batches" not in text and "Domains" not in text


def test_memory_follows_the_settings(told: dict[str, Any]) -> None:
    def memory(*overrides: str) -> dict[str, int]:
        estimate = estimate_run(make_plan(load_recipe("r.toml", overrides))[0])
        assert estimate is not None
        return estimate.memory

    parameters = KNOWN_SHAPES["smollm2-135m-instruct"].num_parameters
    full = memory()
    assert full["weights"] == full["gradients"] == full["reference"] == 4 * parameters
    assert full["optimizer"] == 8 * parameters
    assert memory("optimizer.name=sgd")["optimizer"] == 4 * parameters
    assert memory("optimizer.name=sgd", "optimizer.beta1=0")["optimizer"] == 0
    assert memory("optimizer.name=adamw_8bit")["optimizer"] < 2.1 * parameters
    tables = 4 * 49152 * 576
    assert memory("optimizer.name=muon")["optimizer"] == 4 * parameters + tables
    lora = memory("model.lora.rank=8")
    shape = KNOWN_SHAPES["smollm2-135m-instruct"]
    assert lora["gradients"] == 4 * num_trained(shape, 8)
    # The reference is the SFT model: only the untrained base is adapters switched off.
    assert lora["reference"] == full["reference"]
    assert "reference" not in memory("model.lora.rank=8", "algorithm.kl.reference=base")
    assert memory("model.gradient_checkpointing=true")["activations"] < full["activations"] / 3
    assert "gradients" not in memory('stages=["eval"]')
    assert "engine weights" in memory("engine.dtype=bfloat16")


def test_lora_counts_two_factors_of_each_linear_module() -> None:
    shape = KNOWN_SHAPES["smollm2-135m-instruct"]
    d, q, k, i = 576, 576, 192, 1536
    a_layer = (d + q) + 2 * (d + k) + (q + d) + 3 * (d + i)
    assert num_trained(shape, 16) == 16 * 30 * a_layer


def test_gigabytes() -> None:
    assert gigabytes(1.5 * 1024**3) == "1.5 GB"
    assert gigabytes(20 * 1024**2) == "20 MB"
