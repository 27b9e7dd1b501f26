"""The value head: nothing at the start, the same for a seed, and it learns what it is shown."""

from __future__ import annotations

import pytest
import torch

from educe.models.value_head import ValueHead

WIDTH = 24


def rows(count=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator)


def test_it_starts_at_exactly_nothing_and_equal_for_a_seed():
    head, again, other = (
        ValueHead(WIDTH, seed=1),
        ValueHead(WIDTH, seed=1),
        ValueHead(WIDTH, seed=2),
    )
    assert not head(rows()).any()
    assert torch.equal(head.inner.weight, again.inner.weight)
    assert not torch.equal(head.inner.weight, other.inner.weight)
    assert [n for n, _ in head.trainable()] == [
        f"value_head.{n}" for n in ("inner.weight", "inner.bias", "outer.weight", "outer.bias")
    ]


@pytest.mark.parametrize("trunk", [False, True])
def test_gradients_reach_the_model_only_when_they_shall(trunk):
    head = ValueHead(WIDTH, trunk=trunk)
    torch.nn.init.ones_(head.outer.weight)
    hidden = rows().requires_grad_()
    head(hidden).sum().backward()
    assert (hidden.grad is not None and bool(hidden.grad.any())) is trunk
    assert head.inner.weight.grad.any()


def test_weights_are_wide_enough_for_small_steps():
    head = ValueHead(WIDTH, dtype=torch.bfloat16)
    assert head.inner.weight.dtype == torch.float32
    assert head(rows().to(torch.bfloat16)).dtype == torch.float32
    assert ValueHead(WIDTH, dtype=torch.float64)(rows().double()).dtype == torch.float64


def test_the_models_own_scale_does_not_matter():
    head = ValueHead(WIDTH)
    torch.nn.init.normal_(head.outer.weight)
    assert torch.allclose(head(rows()), head(100 * rows() + 3.0), atol=1e-4)


def test_it_learns():
    head, hidden = ValueHead(WIDTH), rows()
    target = torch.sin(2 * hidden[:, 0]) + hidden[:, 1]
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(150):
        error = head(hidden) - target
        optimizer.zero_grad()
        (0.5 * error**2).mean().backward()
        optimizer.step()
    assert float(error.detach().var() / target.var()) < 0.2
