"""Models of a given shape with random weights: for measuring speed and memory without files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from educe.models.activations import recompute_layers, shelf_for
from educe.models.architectures import ModelShape
from educe.models.attention import ATTENTION_NAME
from educe.models.lean_layers import make_lean
from educe.models.load import LoadedModel, add_lora, pick_device
from educe.models.tiny import byte_tokenizer, tiny_config


def blank_model(
    shape: ModelShape,
    *,
    num_layers: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    lora: dict[str, Any] | None = None,
    checkpointing: bool = False,
    offload: bool = False,
) -> LoadedModel:
    """Return a model of these sizes, its parts as :func:`educe.models.load.load` makes them; what
    it says means nothing.

    Args:
        num_layers: replaces the shape's; 0 keeps it.
        lora, checkpointing, offload: as of ``load``.
    """
    from transformers import AutoModelForCausalLM

    config = tiny_config(
        shape.model_type,
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=num_layers or shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_width,
        max_position_embeddings=shape.context_length,
        tie_word_embeddings=shape.is_tied,
    )
    place = pick_device(device)
    causal = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation=ATTENTION_NAME
    ).to(place)
    causal.train(False)
    make_lean(causal)
    adapter = add_lora(causal, lora) if lora and lora["rank"] else None
    shelf = shelf_for(place, offload=offload) if checkpointing else None
    if shelf is not None:
        recompute_layers(causal, shelf)
    return LoadedModel("blank", Path(), causal, byte_tokenizer(), place, adapter, shelf)
