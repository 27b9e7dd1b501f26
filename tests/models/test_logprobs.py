"""Chunked log-probabilities and entropies against the whole matrix, with gradients."""

from __future__ import annotations

import pytest
import torch

from educe.models import logprobs
from educe.models.logprobs import token_logprobs


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_values_and_gradients_equal_the_plain_formula(monkeypatch, chunk):
    monkeypatch.setattr(logprobs, "CHUNK_ROWS", chunk)
    monkeypatch.setattr(logprobs, "_HEAD_ROWS", 4)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(0, 11, (7,), generator=generator)
    temperature = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)
    mix = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    got = token_logprobs(hidden, weight, targets, temperature)
    got_grads = torch.autograd.grad(
        (mix[0] * got.logprobs_N + mix[1] * got.entropy_N).sum(), (hidden, weight)
    )
    logp = (hidden @ weight.T / temperature[:, None]).log_softmax(-1)
    want = logp.gather(1, targets[:, None])[:, 0]
    entropy = -(logp.exp() * logp).sum(-1)
    want_grads = torch.autograd.grad((mix[0] * want + mix[1] * entropy).sum(), (hidden, weight))
    assert torch.allclose(got.logprobs_N, want)
    assert torch.allclose(got.entropy_N, entropy)
    for mine, right in zip(got_grads, want_grads, strict=True):
        assert torch.allclose(mine, right)


def test_a_wide_head_gets_a_wide_gradient_of_narrow_rows(monkeypatch):
    """Summed over chunks in fp32, and not rounded to the rows' type at the end."""
    monkeypatch.setattr(logprobs, "CHUNK_ROWS", 8)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 16, generator=generator).bfloat16()
    weight = torch.randn(40, 16, generator=generator).requires_grad_()
    targets = torch.randint(0, 40, (64,), generator=generator)
    token_logprobs(hidden, weight, targets, torch.ones(64)).logprobs_N.sum().backward()
    wide = weight.detach().bfloat16().double().requires_grad_()
    token_logprobs(hidden.double(), wide, targets, torch.ones(64)).logprobs_N.sum().backward()
    assert weight.grad is not None and wide.grad is not None
    assert weight.grad.dtype is torch.float32
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())
    assert (weight.grad - wide.grad).norm() <= 0.01 * wide.grad.norm()


def test_no_rows_is_fine():
    out = token_logprobs(
        torch.zeros(0, 5), torch.zeros(11, 5), torch.zeros(0, dtype=torch.long), torch.zeros(0)
    )
    assert out.logprobs_N.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [11, 4_096, 49_157])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_compiled_kernels_compute_the_same(monkeypatch, dtype, vocabulary, with_entropy):
    if logprobs.kernels() is None:
        pytest.skip("no compiled kernels here")
    monkeypatch.setattr(logprobs, "CHUNK_ROWS", 9)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 8, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, 8, generator=generator) * 2).to(dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (20,), generator=generator)
    temperature = torch.linspace(0.5, 2.0, 20)
    mix = torch.randn(2, 20, generator=generator)

    def run() -> list[torch.Tensor]:
        found = token_logprobs(hidden, weight, targets, temperature)
        loss = (mix[0] * found.logprobs_N).sum()
        if with_entropy:
            loss = loss + (mix[1] * found.entropy_N).sum()
        grads = torch.autograd.grad(loss, (hidden, weight))
        return [*(x.detach() for x in found), *grads]

    mine = run()
    monkeypatch.setattr(logprobs, "kernels", lambda: None)
    limits = (1e-6, 1e-5, 1e-5, 1e-5) if dtype == torch.float32 else (1e-6, 1e-5, 0.01, 0.01)
    for got, want, limit in zip(mine, run(), limits, strict=True):
        assert (got.float() - want.float()).norm() <= limit * want.float().norm()


def test_what_is_no_number_shows():
    """A weight or a state gone wrong must not become an ordinary probability."""
    hidden, weight = torch.randn(2, 32), torch.randn(300, 32)
    hidden[1, 5] = float("nan")
    found = token_logprobs(hidden, weight, torch.tensor([0, 0]), torch.ones(2))
    assert found.logprobs_N[0].isfinite()
    assert found.logprobs_N[1].isnan()
