"""Chunked log-probabilities and entropies against the whole matrix, with gradients."""

from __future__ import annotations

import pytest
import torch

from educe.models import logprobs
from educe.models.logprobs import token_logprobs


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_values_and_gradients_equal_the_plain_formula(monkeypatch, chunk):
    monkeypatch.setattr(logprobs, "CHUNK_ROWS", chunk)
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


def test_no_rows_is_fine():
    out = token_logprobs(
        torch.zeros(0, 5), torch.zeros(11, 5), torch.zeros(0, dtype=torch.long), torch.zeros(0)
    )
    assert out.logprobs_N.shape == (0,)
