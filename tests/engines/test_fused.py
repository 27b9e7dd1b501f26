"""The fused forward is the module: for every architecture, type, and after every change."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from educe.core.forest import Span
from educe.engines.embedded.fused import FusedForward, has_fused_forward
from educe.models.attention import ForestContext
from educe.models.load import LoadedModel, load

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral"]


def both(model: LoadedModel, dtype: torch.dtype, length: int = 23) -> tuple[torch.Tensor, ...]:
    """Logits [T, V] by the module in its own type and by the fused forward in ``dtype``."""
    tokens = torch.randint(4, 260, (1, length), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(length)[None]
    context = ForestContext([Span(0, length, length)])
    with torch.no_grad():
        want = model.hidden(tokens, positions, context)[0] @ model.head_weight().T
    fused = FusedForward(model, dtype)
    return want, fused.logits(fused.hidden(tokens, positions, context)[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-7)])
def test_equal_to_the_module(tiny_folders, architecture, dtype, limit):
    model = load(str(tiny_folders[architecture]), dtype=dtype)
    # Norm weights of one would hide a fold that was forgotten.
    with torch.no_grad():
        for name, parameter in model.causal.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    want, got = both(model, getattr(torch, dtype))
    assert (want - got).abs().max() <= limit * want.abs().max()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_stays_near(tiny_folders, architecture):
    want, got = both(load(str(tiny_folders[architecture])), torch.bfloat16)
    assert got.dtype == torch.bfloat16
    assert (want - got.float()).norm() < 0.02 * want.norm()


def test_reads_the_weights_again(tiny_folder):
    model = load(str(tiny_folder))
    fused = FusedForward(model, torch.float32)
    tokens, positions = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
    context = ForestContext([Span(0, 3, 3)])
    before = fused.logits(fused.hidden(tokens, positions, context)[0])
    with torch.no_grad():
        for parameter in model.causal.parameters():
            parameter.mul_(1.1)
    stale = fused.logits(fused.hidden(tokens, positions, context)[0])
    assert torch.equal(stale, before)
    fused.load()
    with torch.no_grad():
        want = model.hidden(tokens, positions, context)[0] @ model.head_weight().T
    got = fused.logits(fused.hidden(tokens, positions, context)[0])
    assert torch.allclose(got, want, atol=1e-5)
    assert not torch.allclose(got, before, atol=1e-3)


def test_adapters_are_merged_in(tiny_folder):
    pytest.importorskip("peft")
    model = load(str(tiny_folder), lora={"rank": 4, "alpha": 8, "targets": "all-linear"})
    with torch.no_grad():
        for name, parameter in model.causal.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.1)
    want, got = both(model, torch.float32)
    assert torch.allclose(want, got, atol=1e-4)


def test_unknown_layers_are_not_fused(tiny_folder):
    model = load(str(tiny_folder))
    assert has_fused_forward(model)
    causal = copy.copy(model.causal)
    causal.config = copy.deepcopy(model.causal.config)
    causal.config.hidden_act = "gelu"
    other = replace(model, causal=causal)
    assert not has_fused_forward(other)
    with pytest.raises(ValueError, match="no fused forward"):
        FusedForward(other, torch.float32)


def test_packed_matrix_products_are_what_torch_says():
    """Pins the private operators: weight layout, SiLU and product done on the way out."""
    from educe.engines.embedded.matrices import Matrix

    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(48, 32, generator=generator), torch.randn(48, generator=generator)
    matrix = Matrix(weight, bias)
    for num_rows in (1, 2, 7, 64, 200):
        x = torch.randn(num_rows, 32, generator=generator)
        other = torch.randn(num_rows, 48, generator=generator)
        want = x @ weight.T + bias
        assert torch.allclose(matrix(x), want, atol=1e-4)
        assert torch.allclose(matrix.silu(x), torch.nn.functional.silu(want), atol=1e-4)
        assert torch.allclose(matrix.times(x, other), want * other, atol=1e-4)
