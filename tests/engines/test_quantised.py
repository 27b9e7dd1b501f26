"""8-bit products: the same function as the module but for rounding, and log-probabilities of it."""

from __future__ import annotations

import pytest
import torch

from educe.core.errors import UnsupportedModelError
from educe.core.forest import Span
from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine, quantised
from educe.engines.embedded.quantised import QuantisedForward, quantise
from educe.models.attention import ForestContext
from educe.models.load import load

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral"]


def logits_of(forward, tokens: torch.Tensor) -> torch.Tensor:
    length = tokens.shape[1]
    positions = torch.arange(length)[None]
    context = ForestContext([Span(0, length, length)])
    return forward.logits(forward.hidden(tokens, positions, context)[0])


def some_tokens(length: int = 23) -> torch.Tensor:
    return torch.randint(4, 260, (1, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("has_kernel", [True, False])
def test_stays_near_the_module(tiny_folders, architecture, has_kernel, monkeypatch):
    if not has_kernel:
        monkeypatch.setattr(quantised, "has_integer_kernel", lambda device: False)
    model = load(str(tiny_folders[architecture]))
    with torch.no_grad():
        for name, parameter in model.causal.named_parameters():
            # Norm weights of one would hide a fold that was forgotten; one channel is huge.
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            if name.endswith("input_layernorm.weight"):
                parameter[3] = 30.0
    tokens = some_tokens()
    with torch.no_grad():
        positions = torch.arange(tokens.shape[1])[None]
        context = ForestContext([Span(0, tokens.shape[1], tokens.shape[1])])
        want = model.hidden(tokens, positions, context)[0] @ model.head_weight().T
    got = logits_of(QuantisedForward(model, torch.bfloat16), tokens)
    assert got.dtype == torch.float32
    error = (want - got).norm() / want.norm()
    assert 1e-4 < error < 0.06


def test_kernel_and_plain_sums_agree(tiny_folder, monkeypatch):
    model = load(str(tiny_folder))
    with_kernel = logits_of(QuantisedForward(model, torch.float32), some_tokens())
    monkeypatch.setattr(quantised, "has_integer_kernel", lambda device: False)
    plain = logits_of(QuantisedForward(model, torch.float32), some_tokens())
    assert torch.allclose(with_kernel, plain, atol=2e-3 * float(plain.abs().max()))


def test_rows_have_scales_of_their_own():
    x = torch.tensor([[0.001, -0.002, 0.0], [100.0, 50.0, -25.0], [0.0, 0.0, 0.0]])
    rows, scales = quantise(x)
    assert rows.dtype == torch.int8
    assert rows[1].tolist() == [127, 64, -32]
    assert torch.allclose(rows * scales, x, atol=0.5)
    assert torch.allclose((rows * scales)[0], x[0], atol=1e-5)


def test_reads_the_weights_again(tiny_folder):
    model = load(str(tiny_folder))
    forward = QuantisedForward(model, torch.bfloat16)
    before = logits_of(forward, some_tokens())
    with torch.no_grad():
        for parameter in model.causal.parameters():
            parameter.mul_(1.2)
    assert torch.equal(logits_of(forward, some_tokens()), before)
    forward.load()
    fresh = logits_of(QuantisedForward(model, torch.bfloat16), some_tokens())
    again = logits_of(forward, some_tokens())
    assert (again - fresh).norm() < 0.05 * fresh.norm()
    assert (again - before).norm() > 0.1 * before.norm()


def test_engine_samples_and_tells_its_own_logprobs(tiny_folder):
    model = load(str(tiny_folder))
    engine = EmbeddedEngine(
        model, stop_token_ids=[2], decode=model.tokenizer.decode, dtype=torch.int8
    )
    asked = [
        GenerateRequest(str(i), (5, 6, 7 + i), SamplingParameters(max_tokens=8, seed_key=i))
        for i in range(6)
    ]
    for done in engine.generate(asked):
        number = int(done.request_id)
        tokens = torch.tensor([[5, 6, 7 + number, *done.token_ids]])
        logprobs = logits_of(engine._runner.forward, tokens).log_softmax(-1)
        own = [float(logprobs[2 + i, t]) for i, t in enumerate(done.token_ids)]
        assert done.logprobs == pytest.approx(own, abs=0.02)


@pytest.mark.parametrize("options", [{"exact": True}, {"forward": "module"}])
def test_refused_where_the_module_itself_is_asked_for(tiny_folder, options):
    model = load(str(tiny_folder))
    with pytest.raises(UnsupportedModelError, match="8-bit sampling needs the fused forward"):
        EmbeddedEngine(model, stop_token_ids=[2], decode=str, dtype=torch.int8, **options)
