"""Forest attention against the dense oracle: values, gradients, log-sum-exp, both dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from educe.core.forest import Span
from educe.models.attention import (
    ForestContext,
    attention_function,
    flash_forward,
    forest_mask,
    plain_attention,
)
from educe.native.kernels import kernels

# A shared prompt with three completions (one of which branches), and a lone sequence.
SPANS = (
    Span(0, 7, 21),
    Span(7, 12, 12),
    Span(12, 16, 20),
    Span(16, 18, 18),
    Span(18, 20, 20),
    Span(20, 21, 21),
    Span(21, 30, 30),
)


# Segments of one length: one after the other (a shared prompt among them), and apart.
EVEN = (Span(0, 6, 18), Span(6, 12, 12), Span(12, 18, 18), Span(18, 24, 24), Span(24, 30, 30))
APART = (Span(0, 6, 6), Span(6, 16, 22), Span(16, 22, 22), Span(22, 24, 24), Span(24, 30, 30))


def inputs(dtype: torch.dtype, heads: int = 4, kv_heads: int = 2, width: int = 8):
    generator = torch.Generator().manual_seed(0)
    make = lambda n: torch.randn(1, n, 30, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return [make(n).to(dtype).requires_grad_() for n in (heads, kv_heads, kv_heads)]


def dense(query, key, value, scale, spans=SPANS):
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = (query @ key.transpose(-1, -2)) * scale
    return scores.masked_fill(~forest_mask(spans), float("-inf")).softmax(-1) @ value


@pytest.mark.parametrize("spans", [SPANS, EVEN, APART])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_values_and_gradients_equal_the_dense_mask(dtype, tolerance, spans):
    query, key, value = inputs(dtype)
    weight = torch.randn(1, 4, 30, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = ForestContext(spans).attend(0, query, key, value, 0.3)
    got_grads = torch.autograd.grad((got * weight).sum(), (query, key, value))
    want = dense(query, key, value, 0.3, spans)
    want_grads = torch.autograd.grad((want * weight).sum(), (query, key, value))
    assert torch.allclose(got, want, atol=tolerance)
    for mine, right in zip(got_grads, want_grads, strict=True):
        assert torch.allclose(mine, right, atol=10 * tolerance)


def test_bfloat16_stays_close():
    query, key, value = inputs(torch.bfloat16)
    got = ForestContext(SPANS).attend(0, query, key, value, 0.3)
    got.float().sum().backward()
    want = dense(*(x.detach().double() for x in (query, key, value)), 0.3)
    assert (got.double() - want).abs().max() < 0.05
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (query, key, value))


@pytest.mark.parametrize("causal", [True, False])
def test_the_private_kernel_returns_what_the_formula_gives(causal):
    """Pins torch's private CPU operator: output, log-sum-exp, grouped heads."""
    query, key, value = (x.detach() for x in inputs(torch.float64))
    out, lse = flash_forward(query, key, value, causal, 0.5)
    want, want_lse = plain_attention(query, key, value, causal, 0.5)
    assert torch.allclose(out, want, atol=1e-12)
    assert torch.allclose(lse, want_lse, atol=1e-12)


def test_a_module_without_context_and_with_dropout_is_refused():
    query, key, value = inputs(torch.float32)
    with pytest.raises(ValueError, match="educe_context"):
        attention_function(None, query, key, value, None, 1.0)
    with pytest.raises(ValueError, match="dropout 0"):
        attention_function(
            None, query, key, value, None, 1.0, dropout=0.1, educe_context=ForestContext(SPANS)
        )


def drawn_forest(seed: int, total: int) -> tuple[Span, ...]:
    """Random segments of a pack, depth first, some of them long, some of one token."""
    random = np.random.default_rng(seed)
    spans: list[Span] = []

    def grow(start: int, limit: int, depth: int) -> int:
        end = min(limit, start + int(random.choice([1, 2, 15, 16, 17, 40, 90])))
        place = len(spans)
        spans.append(Span(start, end, end))
        at = end
        for _ in range(int(random.integers(0, 4)) if depth < 3 else 0):
            if at < limit:
                at = grow(at, limit, depth + 1)
        spans[place] = Span(start, end, at)
        return at

    at = 0
    while at < total:
        at = grow(at, total, 0)
    return tuple(spans)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", [(3, 1, 64), (4, 2, 16), (2, 2, 32), (6, 3, 80), (8, 2, 128)])
@pytest.mark.parametrize(
    ("dtype", "tiles"), [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)]
)
def test_compiled_kernels_equal_the_dense_mask(dtype, tiles, sizes, seed, monkeypatch):
    if kernels() is None:
        pytest.skip("no compiled kernels here")
    if not tiles:
        monkeypatch.setattr(kernels(), "has_blocks", False)
    heads, kv_heads, width = sizes
    total = 330
    spans = drawn_forest(seed, total)
    random = torch.Generator().manual_seed(seed)
    given = [
        torch.randn(1, n, total, width, generator=random).to(dtype).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    ]
    weight = torch.randn(1, heads, total, width, generator=random).to(dtype)
    context = ForestContext(spans)
    got = context.attend(0, *given, 0.2)
    on_tiles = dtype == torch.bfloat16 and kernels().can_tile(sizes[2])
    assert (context._tiled if on_tiles else context._table) is not None
    grads = torch.autograd.grad((got * weight).sum(), given)
    exact = [x.detach().double().requires_grad_() for x in given]
    want = dense(*exact, 0.2, spans)
    want_grads = torch.autograd.grad((want * weight).sum(), exact)
    limit = 2e-6 if dtype == torch.float32 else 6e-3
    for mine, right in zip([got, *grads], [want, *want_grads], strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - right).norm() < limit * right.norm()
