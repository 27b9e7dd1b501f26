"""Flex attention's view of a forest: blocks and tokens as the dense mask has them.

The fused kernel needs a CUDA device; here torch's unfused implementation of the same call runs.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from educe.core.forest import Span
from educe.models import attention, flex
from educe.models.attention import ForestContext, forest_mask

FORESTS = {
    "one segment": [Span(0, 300, 300)],
    "a prompt and answers": [
        Span(0, 200, 500), Span(200, 290, 290), Span(290, 300, 300), Span(300, 500, 500),
    ],
    "turns below turns": [
        Span(0, 40, 400), Span(40, 170, 300), Span(170, 260, 260), Span(260, 300, 300),
        Span(300, 400, 400), Span(400, 401, 640), Span(401, 640, 640),
    ],
    "many small ones": [Span(i * 7, i * 7 + 7, i * 7 + 7) for i in range(40)],
    "blocks to the token": [Span(0, 128, 384), Span(128, 256, 256), Span(256, 384, 384)],
}  # fmt: skip


@pytest.mark.parametrize("spans", FORESTS.values(), ids=FORESTS)
def test_blocks_are_those_of_the_dense_mask(spans):
    want = forest_mask(spans)
    last = flex.last_readers(spans, torch.device("cpu"))
    found = flex.block_mask(last)
    length = len(last)
    places = torch.arange(length)
    seen = found.mask_mod(None, None, places[:, None], places[None, :])
    assert torch.equal(seen, want)
    count = -(-length // flex.BLOCK)
    for row in range(count):
        queries = want[row * flex.BLOCK : (row + 1) * flex.BLOCK]
        for column in range(count):
            part = queries[:, column * flex.BLOCK : (column + 1) * flex.BLOCK]
            whole, partly = (
                column in indices[0, 0, row, : numbers[0, 0, row]].tolist()
                for numbers, indices in (
                    (found.full_kv_num_blocks, found.full_kv_indices),
                    (found.kv_num_blocks, found.kv_indices),
                )
            )
            assert not (whole and partly)
            if whole:
                assert part.all()
            elif not partly:
                assert not part.any()
            if column == row:
                assert partly


@pytest.mark.parametrize("spans", FORESTS.values(), ids=FORESTS)
def test_attention_and_gradients_are_those_of_the_forest(spans, monkeypatch):
    # torch refuses gradients on a CPU for the sake of its fused kernel, which is not what runs.
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(torch_flex, "_WARNINGS_SHOWN", _Everything())
    monkeypatch.setattr(flex, "_kernel", lambda: torch_flex.flex_attention)
    generator = torch.Generator().manual_seed(0)
    total = spans[-1].last
    given = [
        torch.randn(1, heads, total, 16, generator=generator, requires_grad=True)
        for heads in (6, 2, 2)
    ]
    grad = torch.randn(1, 6, total, 16, generator=generator)
    blocks = flex.block_mask(flex.last_readers(spans, torch.device("cpu")))
    got = flex.flex_forest(given[0], given[1], given[2], blocks, 0.25)
    assert got is not None
    want = ForestContext(spans).attend(0, given[0], given[1], given[2], 0.25)
    assert torch.allclose(got, want, atol=1e-5)
    for mine, right in zip(
        torch.autograd.grad(got, given, grad), torch.autograd.grad(want, given, grad), strict=True
    ):
        assert torch.allclose(mine, right, atol=1e-4)


class _Everything(set):  # type: ignore[type-arg]
    def __contains__(self, _: object) -> bool:
        return True


def test_a_kernel_that_cannot_be_made_is_told_once(monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(flex, "_kernel", lambda: broken)
    monkeypatch.setattr(flex, "_is_broken", False)
    spans = FORESTS["one segment"]
    tensor = torch.zeros(1, 2, 300, 16)
    blocks = flex.block_mask(flex.last_readers(spans, torch.device("cpu")))
    assert flex.flex_forest(tensor, tensor, tensor, blocks, 1.0) is None
    assert "dense mask" in caplog.text and flex._is_broken
    assert not flex.serves(tensor)
    assert attention.flex is flex


def test_a_backward_that_cannot_be_made_is_found_before_it_is_needed(monkeypatch, caplog):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query):
            return query.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no compiler for the backward")

    monkeypatch.setattr(flex, "_kernel", lambda: lambda query, *_, **__: Broken.apply(query))
    monkeypatch.setattr(flex, "_is_broken", False)
    spans = FORESTS["one segment"]
    blocks = flex.block_mask(flex.last_readers(spans, torch.device("cpu")))
    # A head width that no other test uses: what worked once is not tried again.
    plain = torch.zeros(1, 2, 300, 48)
    assert flex.flex_forest(plain, plain, plain, blocks, 1.0) is not None
    assert not flex._is_broken
    trained = plain.clone().requires_grad_()
    assert flex.flex_forest(trained, plain, plain, blocks, 1.0) is None
    assert "no compiler for the backward" in caplog.text and flex._is_broken


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_fused_kernel_on_a_device():
    spans = [Span(0, 900, 2000), Span(900, 1500, 1500), Span(1500, 2000, 2000)]
    generator = torch.Generator("cuda").manual_seed(0)
    given = [
        torch.randn(1, h, 2000, 64, generator=generator, device="cuda", requires_grad=True)
        for h in (6, 2, 2)
    ]
    assert flex.serves(given[0])
    got = ForestContext(spans).attend(0, given[0], given[1], given[2], 0.125)
    assert not flex._is_broken
    mask = forest_mask(spans, "cuda")
    want = torch.nn.functional.scaled_dot_product_attention(
        given[0], given[1], given[2], mask, scale=0.125, enable_gqa=True
    )
    grad = torch.randn(want.shape, generator=generator, device="cuda")
    assert torch.allclose(got, want, atol=2e-3)
    for mine, right in zip(
        torch.autograd.grad(got, given, grad), torch.autograd.grad(want, given, grad), strict=True
    ):
        assert torch.allclose(mine, right, atol=2e-2)
