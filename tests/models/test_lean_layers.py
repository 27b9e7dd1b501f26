"""Lean norms and gates are transformers' own functions, and keep less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from educe.core.forest import Span
from educe.models import lean_layers
from educe.models.attention import ForestContext
from educe.models.load import load
from educe.models.tiny import save_tiny


@pytest.fixture(params=["compiled", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled kernels, where there are any, and without."""
    if request.param == "torch":
        monkeypatch.setattr(lean_layers, "kernels", lambda: None)
    elif lean_layers.kernels() is None:
        pytest.skip("no compiled kernels here")
    return str(request.param)


TYPES = [(torch.float64, 1e-10), (torch.float32, 2e-5), (torch.bfloat16, 0.05)]


def rows(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm()) < tolerance


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("width", [24, 80])
@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
def test_a_norm_is_that_of_transformers(dtype: torch.dtype, tolerance: float, width: int) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(width, 1e-5).to(dtype)
    with torch.no_grad():
        module.weight.copy_(rows(dtype, width, seed=1) + 1)
    x, grad = rows(dtype, 3, 50, width), rows(dtype, 3, 50, width, seed=2).detach()
    want = module(x)
    want_grads = torch.autograd.grad(want, (x, module.weight), grad)
    got = lean_layers._norm(module, x)
    grads = torch.autograd.grad(got, (x, module.weight), grad)
    # transformers computes in fp32 whatever the type is.
    tolerance = max(tolerance, 1e-6)
    assert got.dtype == want.dtype and close(got, want, tolerance)
    for mine, right in zip(grads, want_grads, strict=True):
        assert mine.dtype == right.dtype and close(mine, right, tolerance)


@pytest.mark.parametrize("width", [7, 16, 4112])
@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
def test_a_gate_is_silu_times_up(
    path: str, dtype: torch.dtype, tolerance: float, width: int
) -> None:
    gate, up, grad = (rows(dtype, 7, width, seed=s) for s in range(3))
    with torch.no_grad():
        gate[0, :4] = torch.tensor([-300.0, -90.0, 90.0, 300.0])
    want = torch.nn.functional.silu(gate) * up
    got = lean_layers._Gated.apply(gate, up)
    assert close(got, want, tolerance / 10)
    if path == "torch":
        assert torch.equal(got, want)
    for mine, right in zip(
        torch.autograd.grad(got, (gate, up), grad),
        torch.autograd.grad(want, (gate, up), grad),
        strict=True,
    ):
        assert close(mine, right, tolerance)


@pytest.mark.usefixtures("path")
def test_a_norm_gives_autocasts_type_and_leaves_its_input_alone() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module, x = LlamaRMSNorm(32), rows(torch.float32, 4, 32)
    before = x.detach().clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = lean_layers._norm(module, x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, module(x).bfloat16()) or close(got, module(x), 0.01)
    got.sum().backward()
    assert torch.equal(x, before) and x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.usefixtures("path")
def test_frozen_weights_get_no_gradient() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module, x = LlamaRMSNorm(32).requires_grad_(False), rows(torch.float32, 4, 32)
    lean_layers._norm(module, x).sum().backward()
    assert module.weight.grad is None and x.grad is not None


def kept_bytes(model: Any, num_tokens: int, dtype: torch.dtype | None) -> int:
    """Bytes that a forward of the decoder keeps for its backward, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.causal.parameters()}
    seen: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held.append(tensor)  # an address that is freed could be counted for two
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(num_tokens)[None] % 250 + 4
    positions = torch.arange(num_tokens)[None]
    context = ForestContext([Span(0, num_tokens, num_tokens)])
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None),
    ):
        model.hidden(ids, positions, context)
    return sum(seen.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_forward_keeps_less(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None
) -> None:
    lean = kept_bytes(load(str(tiny_folder)), 200, dtype)
    monkeypatch.setattr("educe.models.load.make_lean", lambda causal: None)
    plain = kept_bytes(load(str(tiny_folder)), 200, dtype)
    assert lean < 0.85 * plain


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_every_architecture_runs_through_them(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen = {"norm": 0, "gate": 0}

    def counted(kind: str, inner: Any) -> Any:
        def call(*arguments: Any) -> Any:
            seen[kind] += 1
            return inner(*arguments)

        return call

    monkeypatch.setattr(lean_layers, "_norm", counted("norm", lean_layers._norm))
    monkeypatch.setattr(lean_layers, "_mlp", counted("gate", lean_layers._mlp))
    model = load(str(tiny_folders[name]))
    with torch.no_grad():
        model.hidden(
            torch.tensor([[5, 6, 7]]), torch.arange(3)[None], ForestContext([Span(0, 3, 3)])
        )
    layers = model.causal.config.num_hidden_layers
    assert seen == {"norm": 2 * layers + 1, "gate": layers}


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_attention_with_one_pass_of_rotation_is_transformers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype | None
) -> None:
    if lean_layers.kernels() is None:
        pytest.skip("no compiled kernels here")
    folder = save_tiny(tmp_path / "model", name, head_dim=64)
    ids, positions = torch.arange(60)[None] % 250 + 4, torch.arange(60)[None] + 5
    turned: list[bool] = []
    inner = lean_layers._turned

    def counted(*arguments: Any) -> torch.Tensor:
        turned.append(arguments[-1])
        return inner(*arguments)

    monkeypatch.setattr(lean_layers, "_turned", counted)

    def run() -> list[torch.Tensor]:
        model = load(str(folder))
        context = ForestContext([Span(0, 20, 60), Span(20, 45, 45), Span(45, 60, 60)])
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            out = model.hidden(ids, positions, context)
        (out.float() * torch.linspace(-1, 1, out.shape[-1])).sum().backward()
        return [out.detach(), *(p.grad for p in model.causal.parameters() if p.grad is not None)]

    mine = run()
    layers = 2 * sum(1 for back in turned if not back)
    assert layers and len(turned) == layers  # queries and keys, forwards and back
    turned.clear()
    monkeypatch.setattr(lean_layers, "_rotates", lambda *_: None)
    plain = run()
    assert not turned and len(mine) == len(plain)
    for got, want in zip(mine, plain, strict=True):
        assert close(got, want, 1e-4 if dtype is None else 0.02)
