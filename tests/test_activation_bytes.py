"""What a layer keeps for its backward is what the memory plan says, in shapes of every kind."""

from __future__ import annotations

import pytest
import torch

from educe.core.forest import Span
from educe.models.architectures import ModelShape
from educe.models.attention import ForestContext
from educe.models.blank import blank_model
from educe.preflight.activations import BYTES, layer_bytes

TOKENS = 61
SHAPES = {
    "as smollm2": ("llama", 72, 9, 3, 8, 192, 2 * 72),
    "wide heads": ("mistral", 48, 4, 4, 32, 64, 2 * 48),
    "wide inside": ("qwen2", 64, 4, 1, 16, 320, 2 * 64),
    "normed heads": ("qwen3", 64, 4, 2, 32, 96, 2 * 64 + 2 * 32),
}


def shape_of(name: str, num_layers: int) -> ModelShape:
    kind, width, heads, others, head_width, inner, norms = SHAPES[name]
    return ModelShape(
        kind, num_layers, width, heads, others, head_width, inner, 60, 512, True, num_norms=norms
    )


def kept_bytes(shape: ModelShape, master: str, compute: torch.dtype | None) -> int:
    """Bytes that a forward saves; weights and autocast's copies of them left out."""
    model = blank_model(shape, dtype=master)
    weights = {tuple(p.shape) for p in model.causal.parameters() if p.ndim == 2}
    weights |= {(b, a) for a, b in weights}
    known = {p.untyped_storage().data_ptr() for p in model.causal.parameters()}
    seen: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held.append(tensor)  # an address that is freed could be counted for two
        if storage.data_ptr() not in known and tuple(tensor.shape) not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    positions = torch.arange(TOKENS)[None]
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        torch.autocast("cpu", dtype=compute or torch.bfloat16, enabled=compute is not None),
    ):
        model.hidden(positions % 50, positions, ForestContext([Span(0, TOKENS, TOKENS)]))
    return sum(seen.values())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("master", "compute"),
    [("float32", None), ("float32", torch.bfloat16), ("bfloat16", None)],
    ids=["fp32", "autocast", "bf16"],
)
def test_a_layer_keeps_what_is_planned(name: str, master: str, compute: torch.dtype | None) -> None:
    sizes = [kept_bytes(shape_of(name, n), master, compute) for n in (1, 3)]
    counted = (sizes[1] - sizes[0]) / 2 / TOKENS
    width = BYTES[master] if compute is None else 2
    planned = layer_bytes(shape_of(name, 1), master=BYTES[master], compute=width)
    assert planned == pytest.approx(counted, rel=0.02)
