"""Which architectures educe trains, told from ``config.json`` alone, before any tensor is made.

Supported is what the tests hold equal: engine = trainer = plain transformers on a seeded tiny
model. Everything else is refused by the name of the part that differs from plain causal attention.
Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from educe.core.errors import UnsupportedModelError, did_you_mean

SUPPORTED: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""``model_type`` of config.json: the class that transformers makes of it."""

# Positions scaled by the length seen so far: a token's key would change as the text grows.
_GROWING_ROPE = ("dynamic", "longrope", "su")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder, enough to count weights and bytes.

    Attributes:
        head_width: width of one head, D / N unless the config says otherwise.
        context_length: the longest sequence the model was made for, in tokens.
        num_biases: bias weights a layer.
        num_norms: normalisation weights a layer.
    """

    model_type: str
    num_layers: int
    width: int
    num_heads: int
    num_key_value_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    context_length: int
    is_tied: bool
    num_biases: int = 0
    num_norms: int = 0

    @property
    def num_parameters(self) -> int:
        """All weights of the model, tied ones counted once."""
        embeddings = self.vocabulary * self.width * (1 if self.is_tied else 2)
        return embeddings + self.num_layers * self._layer() + self.width

    @property
    def num_linear_weights(self) -> tuple[int, int]:
        """(sum of in + out widths, sum of in * out) over one layer's linear modules."""
        query, other = self.num_heads * self.head_width, self.num_key_value_heads * self.head_width
        pairs = [(self.width, query), (self.width, other), (self.width, other)]
        pairs += [(query, self.width)]
        pairs += [(self.width, self.intermediate)] * 2 + [(self.intermediate, self.width)]
        return sum(a + b for a, b in pairs), sum(a * b for a, b in pairs)

    @property
    def cache_values_per_token(self) -> int:
        """Numbers that the key/value cache keeps for one token."""
        return 2 * self.num_layers * self.num_key_value_heads * self.head_width

    def _layer(self) -> int:
        return self.num_linear_weights[1] + self.num_biases + self.num_norms


# The sizes of models that are fetched on first use, so that a recipe can be checked before that.
KNOWN_SHAPES: Mapping[str, ModelShape] = {
    "smollm2-135m-instruct": ModelShape(
        model_type="llama",
        num_layers=30,
        width=576,
        num_heads=9,
        num_key_value_heads=3,
        head_width=64,
        intermediate=1536,
        vocabulary=49152,
        context_length=8192,
        is_tied=True,
        num_norms=2 * 576,
    )
}


def read_shape(folder: Path) -> ModelShape:
    """Return the shape of a Hugging Face folder's model.

    Raises:
        UnsupportedModelError: no readable config.json, or an architecture that is not supported.
    """
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(
            f"{folder} is not a Hugging Face model folder: config.json cannot be read ({error})"
        ) from error
    if not isinstance(config, dict):
        raise UnsupportedModelError(f"{file}: expected a JSON object, got {type(config).__name__}")
    return shape_of(config, str(file))


def shape_of(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape that a config describes; ``source`` names it in errors.

    Raises:
        UnsupportedModelError: the architecture is refused, or a size is missing.
    """
    refuse_unsupported(config, source)
    try:
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        key_value_heads = int(config.get("num_key_value_heads") or heads)
        model_type = str(config["model_type"])
        head_width = int(config.get("head_dim") or _default_head_width(model_type, width, heads))
        query, other = heads * head_width, key_value_heads * head_width
        intermediate = int(config["intermediate_size"])
        qk_norms = 2 * head_width if model_type == "qwen3" else 0
        return ModelShape(
            model_type=model_type,
            num_layers=int(config["num_hidden_layers"]),
            width=width,
            num_heads=heads,
            num_key_value_heads=key_value_heads,
            head_width=head_width,
            intermediate=intermediate,
            vocabulary=int(config["vocab_size"]),
            context_length=int(config["max_position_embeddings"]),
            is_tied=bool(config.get("tie_word_embeddings", False)),
            num_biases=_num_biases(config, model_type, query, other, intermediate),
            num_norms=2 * width + qk_norms,
        )
    except KeyError as error:
        raise UnsupportedModelError(f"{source}: the size {error} is missing") from error


def refuse_unsupported(config: Mapping[str, Any], source: str) -> None:
    """Raise UnsupportedModelError unless the config is of a supported architecture."""
    model_type = str(config.get("model_type", ""))
    found = unsupported_parts(config)
    supported = ", ".join(sorted(SUPPORTED))
    if model_type not in SUPPORTED:
        hint = did_you_mean(model_type, SUPPORTED) if not found else ""
        why = f" (it has {', '.join(found)})" if found else ""
        raise UnsupportedModelError(
            f"{source}: the architecture '{model_type or 'none named'}'{why} is not supported."
            f"{hint} educe trains what its tests hold equal to plain transformers: {supported}."
        )
    if found:
        raise UnsupportedModelError(
            f"{source}: this {model_type} model has {', '.join(found)}, which educe does not "
            f"support. Take a plain model of one of: {supported}."
        )


def unsupported_parts(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that rule a model out, empty when there are none."""
    has = config.get
    kind = str(has("model_type", ""))
    layers = [str(t) for t in has("layer_types") or ()]
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    linear = ("linear_num_key_heads", "linear_attn_config", "ssm_cfg", "mamba_d_state", "rwkv")
    checks = {
        "a sliding window": _has_sliding_window(config, layers),
        "soft-capped logits": has("attn_logit_softcapping") or has("final_logit_softcapping"),
        "latent attention (MLA)": has("kv_lora_rank"),
        "mixture-of-experts layers": any((has(k) or 0) > 1 for k in experts) or "moe" in kind,
        "linear-attention or state-space layers": any(has(k) for k in linear)
        or any("linear" in t or "mamba" in t or "recurrent" in t for t in layers)
        or any(word in kind for word in ("mamba", "rwkv", "recurrent")),
        "attention sinks": kind == "gpt_oss",
        "layers without positions": any(v == 0 for v in has("no_rope_layers") or ()),
        f"'{_rope_type(config)}' rotary positions": _rope_type(config) in _GROWING_ROPE,
        "a vision or audio part": has("vision_config") or has("audio_config"),
        "an encoder": has("is_encoder_decoder"),
        "quantised weights": has("quantization_config"),
        "code of its own (auto_map), which educe never runs": has("auto_map"),
    }
    return [name for name, is_there in checks.items() if is_there]


def _has_sliding_window(config: Mapping[str, Any], layers: list[str]) -> bool:
    if any("sliding" in t or "chunked" in t for t in layers):
        return True
    kind = config.get("model_type")
    # transformers gives Mistral a window of 4096 unless its config says null.
    window = config.get("sliding_window", 4096 if kind == "mistral" else None)
    return bool(window) and bool(config.get("use_sliding_window", kind not in ("qwen2", "qwen3")))


def _rope_type(config: Mapping[str, Any]) -> str:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _default_head_width(model_type: str, width: int, heads: int) -> int:
    return 128 if model_type == "qwen3" else width // heads


def _num_biases(
    config: Mapping[str, Any], model_type: str, query: int, other: int, intermediate: int
) -> int:
    width = int(config["hidden_size"])
    count = 0
    if model_type == "qwen2":
        count += query + 2 * other
    elif model_type != "mistral" and config.get("attention_bias"):
        count += query + 2 * other + width
    if model_type == "llama" and config.get("mlp_bias"):
        count += 2 * intermediate + width
    return count
