"""Attention of training on matrix tiles: as the plain formula, for forests of all shapes."""

from __future__ import annotations

import pytest
import torch

from educe.core.forest import Span
from educe.models.attention import ForestContext, forest_mask
from educe.native.kernels import kernels
from educe.native.tables import TiledTable

pytestmark = pytest.mark.usefixtures("product_way")
FORESTS = {
    "one token": [Span(0, 1, 1)],
    "one block": [Span(0, 32, 32)],
    "one segment": [Span(0, 333, 333)],
    "two, alone": [Span(0, 45, 45), Span(45, 100, 100)],
    "a prompt and its answers": [
        Span(0, 150, 290), Span(150, 190, 190), Span(190, 191, 191), Span(191, 290, 290),
    ],
    "three deep, edges inside blocks": [
        Span(0, 33, 260), Span(33, 70, 200), Span(70, 135, 135), Span(135, 200, 200),
        Span(200, 260, 260), Span(260, 400, 400),
    ],
    "many short ones": [Span(i * 7, i * 7 + 7, i * 7 + 7) for i in range(40)],
    "a long one seen by few": [Span(0, 512, 530), Span(512, 530, 530), Span(530, 700, 700)],
}  # fmt: skip
SHAPES = [(1, 1, 32), (6, 2, 64), (9, 3, 64), (4, 4, 96), (4, 1, 128)]


def given_of(tokens: int, shape: tuple[int, int, int], seed: int = 0) -> list[torch.Tensor]:
    heads, kv_heads, width = shape
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, tokens, count, width, generator=generator).bfloat16().transpose(1, 2)
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def tiled(spans, given, scale):
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    context = ForestContext(spans)
    out = context.attend(0, *leaves, scale)
    assert isinstance(context._tiled, TiledTable)
    return out, torch.autograd.grad(out, leaves, given[3])


def right(spans, given, scale):
    leaves = [x.detach().double().requires_grad_() for x in given[:3]]
    repeats = leaves[0].shape[1] // leaves[1].shape[1]
    key, value = (x.repeat_interleave(repeats, 1) for x in leaves[1:])
    scores = (leaves[0] @ key.transpose(-1, -2)) * scale
    weights = scores.masked_fill(~forest_mask(spans), float("-inf")).softmax(-1)
    out = weights @ value
    return out, torch.autograd.grad(out, leaves, given[3].double())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spans", FORESTS.values(), ids=FORESTS)
def test_as_the_plain_formula(spans, shape):
    given = given_of(spans[-1].last, shape)
    scale = shape[2] ** -0.5
    out, grads = tiled(spans, given, scale)
    want, want_grads = right(spans, given, scale)
    # Shares are rounded to eight bits, inputs are not: errors of 2 ** -9 a product, at random.
    assert out.dtype == torch.bfloat16
    assert (out.double() - want).norm() < 6e-3 * want.norm()
    for got, wanted in zip(grads, want_grads, strict=True):
        assert got.dtype == torch.bfloat16
        assert (got.double() - wanted).norm() < 1e-2 * wanted.norm() + 1e-3


def test_scores_far_apart_and_all_alike():
    """The largest score moves from block to block; and weights that underflow are zeros."""
    spans = FORESTS["one segment"]
    given = given_of(333, (2, 2, 64))
    ramp = torch.linspace(-8, 8, 333).view(1, 1, 333, 1)
    for key in (given[1] * 0, (given[1].float() * 0 + ramp).bfloat16(), 30 * given[1]):
        case = [given[0], key, given[2], given[3]]
        (out, grads), (want, want_grads) = tiled(spans, case, 0.125), right(spans, case, 0.125)
        assert (out.double() - want).norm() < 1e-2 * want.norm()
        for got, wanted in zip(grads, want_grads, strict=True):
            assert torch.isfinite(got).all()
            # Keys of one direction: what is left of a query's sums is small beside their parts.
            assert (got.double() - wanted).norm() < 4e-2 * wanted.norm() + 1e-2


def test_what_no_token_sees_changes_nothing():
    """A key's gradient comes from its readers only, and a query's output from what it sees."""
    spans = FORESTS["three deep, edges inside blocks"]
    given = given_of(400, (6, 2, 64))
    out, _ = tiled(spans, given, 0.125)
    other = [x.clone() for x in given]
    other[1][:, :, 70:135] = 100.0  # a segment that its sisters and what comes later do not see
    other[2][:, :, 70:135] = -100.0
    changed, _ = tiled(spans, other, 0.125)
    differ = (changed != out).any(1).any(-1)[0]
    assert not differ[:70].any() and differ[70:135].all() and not differ[135:].any()


def test_threads_change_no_bit():
    spans = FORESTS["three deep, edges inside blocks"]
    given = given_of(400, (9, 3, 64))
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            out, grads = tiled(spans, given, 0.125)
            found.append([out, *grads])
    finally:
        torch.set_num_threads(before)
    for one in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, found[0], strict=True))


def test_the_log_sum_exp_is_kept_for_a_layer_that_is_computed_again():
    spans = FORESTS["a prompt and its answers"]
    given = given_of(290, (6, 2, 64))
    table = TiledTable([(s.start, s.end, s.last) for s in spans])
    parts = [x[0].transpose(0, 1).contiguous() for x in given[:3]]
    _, lse = kernels().tiled_forward(table, *parts, 0.125)
    query, key = given[0].double(), given[1].double().repeat_interleave(3, 1)
    scores = (query @ key.transpose(-1, -2) * 0.125).masked_fill(~forest_mask(spans), -torch.inf)
    assert torch.allclose(lse.double(), scores.logsumexp(-1)[0], atol=1e-4)


def test_other_types_and_widths_go_elsewhere():
    spans = FORESTS["one segment"]
    for given in (
        [x.float() for x in given_of(333, (6, 2, 64))],
        given_of(333, (6, 2, 48)),
        given_of(333, (2, 2, 160)),
    ):
        context = ForestContext(spans)
        context.attend(0, *given[:3], 0.125)
        assert context._tiled is None
