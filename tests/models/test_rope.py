"""Scaled positions: one config, read alike by trainer, engine, fused forward and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from educe.config.loader import load_recipe
from educe.core.errors import UnsupportedModelError
from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine
from educe.explain import explain, render
from educe.models.architectures import read_shape
from educe.models.load import chat_format, load, save
from educe.models.rope import scaled_config
from educe.models.tiny import save_tiny
from educe.preflight import make_plan
from educe.rollout.packing import TrainingSample, pack_samples
from educe.trainers.step import forward_pack

KINDS = ("linear", "yarn", "llama3")
CONTEXT = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rope")
    # A small base, so that some positions turn slowly within a short context and are scaled.
    parameters = {"rope_type": "default", "rope_theta": 100.0}
    return save_tiny(
        place, "qwen3", seed=2, max_position_embeddings=CONTEXT, rope_parameters=parameters
    )


def sample(tokens: np.ndarray, prompt: int) -> TrainingSample:
    size = len(tokens)
    streams = {"temperature": np.ones(size), "weight": np.ones(size)}
    return TrainingSample(tokens, np.arange(size) >= prompt, streams, 0, 0, "cross_entropy")


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_engine_and_transformers_read_the_same_positions(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    from transformers import AutoModelForCausalLM

    model = load(str(folder), rope={"kind": kind, "factor": 4.0})
    assert model.context_length == 4 * CONTEXT
    assert model.tokenizer.model_max_length == 4 * CONTEXT
    save(model, tmp_path / "saved")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert plain.config.max_position_embeddings == 4 * CONTEXT

    prompt = np.random.default_rng(0).integers(4, 260, 2 * CONTEXT)
    chat = chat_format(model)
    request = GenerateRequest(
        "0", tuple(int(t) for t in prompt), SamplingParameters(8, 1.0, seed_key=5, ignore_end=True)
    )
    told = {}
    for forward in ("module", "auto"):
        engine = EmbeddedEngine(
            model, stop_token_ids=chat.stop_token_ids, decode=chat.decode, forward=forward
        )
        (told[forward],) = engine.generate([request])
    assert told["module"].token_ids == told["auto"].token_ids
    tokens = np.concatenate([prompt, told["auto"].token_ids])
    (pack,) = pack_samples([sample(tokens, len(prompt))], 10_000)
    with torch.no_grad():
        mine = forward_pack(model, pack).logprobs_N
        logits = plain(torch.as_tensor(tokens)[None]).logits[0, len(prompt) - 1 : -1]
    want = logits.log_softmax(-1).gather(1, torch.as_tensor(tokens[len(prompt) :, None]))[:, 0]
    assert torch.allclose(mine, want, atol=1e-4)
    for completion in told.values():
        assert np.allclose(completion.logprobs, want.numpy(), atol=1e-4)
    # And it is not what the model says without scaling.
    with torch.no_grad():
        unscaled = forward_pack(load(str(folder)), pack).logprobs_N
    assert (unscaled - want).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_folder_is_not_scaled_twice(folder: Path, tmp_path: Path, kind: str) -> None:
    rope = {"kind": kind, "factor": 2.0}
    save(load(str(folder), rope=rope), tmp_path / "saved")
    again = load(str(tmp_path / "saved"), rope=rope)
    assert again.context_length == 2 * CONTEXT
    assert read_shape(tmp_path / "saved").context_length == 2 * CONTEXT
    assert load(str(tmp_path / "saved")).context_length == 2 * CONTEXT
    with pytest.raises(UnsupportedModelError, match=r"already scaled .*factor 2.*factor 3"):
        load(str(tmp_path / "saved"), rope={"kind": kind, "factor": 3.0})


def test_own_changes_nothing() -> None:
    assert scaled_config({}, kind="own", factor=1.0, source="x") == {}


def recipe(folder: Path, tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "r.toml"
    text = [
        'stages = ["rl"]',
        "[domains]",
        '"rg/gcd/tiny" = {}',
        "[run]",
        f"out = {json.dumps(str(tmp_path / 'runs'))}",
        "[model]",
        f"name = {json.dumps(str(folder))}",
        *lines,
    ]
    file.write_text("\n".join(text))
    return file


def test_preflight_scales_the_context_and_explain_tells(folder: Path, tmp_path: Path) -> None:
    file = recipe(folder, tmp_path, "context_length = 400", 'rope = {kind = "yarn", factor = 4}')
    told, problems = explain(load_recipe(str(file)))
    assert not problems
    assert told["model"]["context_length"] == 400 and told["model"]["positions"] == "yarn x4"
    assert "(positions yarn x4)" in render(told)
    assert any("grows from 128 to 512 tokens" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["context_length = 400"], r"at most 128 .*model\.rope of factor 4 makes room"),
        (['rope = {kind = "yarn", factor = 2}', "context_length = 400"], "at most 256"),
        (['rope = {kind = "yarn"}'], "factor of 1 changes nothing"),
        (["rope = {factor = 2}"], r'needs a way to scale: set model\.rope\.kind = "yarn"'),
    ],
)
def test_preflight_refuses_what_does_not_fit(
    folder: Path, tmp_path: Path, lines: list[str], message: str
) -> None:
    _, problems = make_plan(load_recipe(str(recipe(folder, tmp_path, *lines))))
    import re

    assert any(re.search(message, str(p)) for p in problems), problems
