"""Shapes are counted right, and what is not supported is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from educe.core.errors import UnsupportedModelError
from educe.models.architectures import (
    KNOWN_SHAPES,
    SUPPORTED,
    read_shape,
    refuse_unsupported,
    shape_of,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"num_key_value_heads": 1}),
        ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
        ("qwen3", {"attention_bias": True}),
        ("mistral", {"head_dim": 4}),
    ],
)
def test_parameters_are_counted_as_transformers_makes_them(
    architecture: str, sizes: dict[str, Any]
) -> None:
    from educe.models.tiny import tiny_config, tiny_model

    shape = shape_of(tiny_config(architecture, **sizes).to_dict(), "test")
    model = tiny_model(architecture, **sizes)
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert shape.context_length == 1024


def test_every_tiny_architecture_is_supported_and_the_other_way_round() -> None:
    from educe.models.tiny import ARCHITECTURES

    assert set(SUPPORTED) == set(ARCHITECTURES)


def test_the_known_model_has_its_published_size() -> None:
    assert KNOWN_SHAPES["smollm2-135m-instruct"].num_parameters == 134_515_008


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model_type": "mistral"}, "a sliding window"),
        ({"model_type": "mistral", "sliding_window": 4096}, "a sliding window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}, "a sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "a sliding window"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "soft-capped logits"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "latent attention (MLA)"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture-of-experts layers"),
        ({"model_type": "qwen3_moe"}, "mixture-of-experts layers"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "linear-attention"),
        ({"model_type": "mamba2"}, "linear-attention or state-space layers"),
        ({"model_type": "gpt_oss"}, "attention sinks"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' rotary positions"),
        ({"vision_config": {"a": 1}}, "a vision or audio part"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "code of its own (auto_map)"),
    ],
)
def test_refused_by_the_name_of_the_part(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        refuse_unsupported({**LLAMA, **changes}, "config.json")
    assert part in str(caught.value)
    assert "llama, mistral, qwen2, qwen3" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"layer_types": ["full_attention"] * 2},
    ],
)
def test_plain_models_pass(changes: dict[str, Any]) -> None:
    assert shape_of({**LLAMA, **changes}, "config.json").num_layers == 2


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'lama' is not supported\. Did you mean"):
        refuse_unsupported({**LLAMA, "model_type": "lama"}, "config.json")


def test_folders_without_a_usable_config(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is not a Hugging Face model folder"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UnsupportedModelError, match="expected a JSON object, got list"):
        read_shape(tmp_path)
    broken = {k: v for k, v in LLAMA.items() if k != "vocab_size"}
    (tmp_path / "config.json").write_text(json.dumps(broken))
    with pytest.raises(UnsupportedModelError, match="the size 'vocab_size' is missing"):
        read_shape(tmp_path)
