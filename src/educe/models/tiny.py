"""Seeded tiny models and a byte tokenizer: real architectures, milliseconds a step.

They stand in for nothing: tests train them, sample from them and save them like any other model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")


def byte_tokenizer() -> Any:
    """Return a fast tokenizer with one id per byte and ChatML's special tokens (V = 260)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|unused|>"]
    vocabulary = {token: i for i, token in enumerate(specials + alphabet)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_config(architecture: str, **overrides: Any) -> Any:
    """Return the transformers config of a two-layer model of one of ``ARCHITECTURES``."""
    from transformers import AutoConfig

    if architecture not in ARCHITECTURES:
        raise ValueError(f"tiny models exist for {ARCHITECTURES}, got {architecture!r}")
    sizes: dict[str, Any] = {
        "vocab_size": 260,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": architecture == "llama",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attention_dropout": 0.0,
    }
    if architecture == "mistral":
        sizes["sliding_window"] = None
    return AutoConfig.for_model(architecture, **{**sizes, **overrides})


def tiny_model(
    architecture: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **sizes: Any
) -> Any:
    """Return a randomly initialised model; equal arguments give bitwise equal weights."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(architecture, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    return model.to(dtype)


def save_tiny(
    folder: Path | str,
    architecture: str = "llama",
    seed: int = 0,
    dtype: str = "float32",
    **sizes: Any,
) -> Path:
    """Write a tiny model and its tokenizer as an ordinary Hugging Face folder; return it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model(architecture, seed, getattr(torch, dtype), **sizes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
