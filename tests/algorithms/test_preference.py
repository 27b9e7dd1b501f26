"""Preference and distillation losses: published values, gradients, numbers of any size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.algorithms.losses.distillation import generalised_divergence, on_policy_distillation
from educe.algorithms.losses.policy import reinforce
from educe.algorithms.losses.preference import (
    dpo,
    ipo,
    kto,
    kto_reference_point,
    orpo,
    sequence_coefficients,
    simpo,
)
from educe.algorithms.streams import Segments


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


PAIR = tensor(-10.0), tensor(-14.0), tensor(-11.0), tensor(-12.0)  # h = 1 - (-2) = 3


def test_dpo():
    assert dpo(*PAIR, beta=0.5).item() == pytest.approx(-log_sigmoid(1.5))
    smooth = dpo(*PAIR, beta=0.5, label_smoothing=0.1).item()
    assert smooth == pytest.approx(-0.9 * log_sigmoid(1.5) - 0.1 * log_sigmoid(-1.5))


def test_at_the_reference_dpo_is_log_two():
    assert dpo(tensor(-5.0), tensor(-7.0), tensor(-5.0), tensor(-7.0)).item() == pytest.approx(
        math.log(2)
    )


def test_ipo():
    assert ipo(*PAIR, beta=0.25).item() == pytest.approx((3 - 2) ** 2)
    assert ipo(*PAIR, beta=1 / 6).item() == pytest.approx(0)  # the margin it aims at


def test_kto():
    values = kto(
        tensor(-3.0, -3.0),
        tensor(-5.0, -5.0),
        torch.tensor([True, False]),
        0.5,
        beta=0.2,
        desirable_weight=1.5,
    )
    up, down = 1 / (1 + math.exp(0.3)), 1 / (1 + math.exp(-0.3))
    assert values.tolist() == pytest.approx([1.5 * up, down])
    assert kto_reference_point(-3.0, 4) == 0 and kto_reference_point(2.0, 4) == 0.5
    assert kto_reference_point(0.0, 0) == 0


def test_orpo():
    c, r = math.log(0.5), math.log(0.2)
    want = -c - 0.1 * log_sigmoid(math.log(1.0) - math.log(0.25))
    assert orpo(tensor(c), tensor(r), weight=0.1).item() == pytest.approx(want)


def test_simpo():
    value = simpo(tensor(-0.5), tensor(-0.8), beta=2.0, margin=0.4).item()
    assert value == pytest.approx(-log_sigmoid(0.2))


finite = st.floats(-1e5, 1e5, width=32)


@settings(max_examples=60, deadline=None)
@given(a=finite, b=finite, c=finite, d=finite)
def test_finite_at_any_log_ratio(a, b, c, d):
    policy = torch.tensor([[a], [b]], dtype=torch.float32).requires_grad_()
    other = torch.tensor([[c], [d]], dtype=torch.float32)
    losses = [
        dpo(policy[0], policy[1], other[0], other[1], label_smoothing=0.1),
        ipo(policy[0], policy[1], other[0], other[1]),
        kto(policy[:, 0], other[:, 0], torch.tensor([True, False]), 0.3),
        orpo(-policy[0].abs(), -policy[1].abs()),
        simpo(policy[0], policy[1]),
    ]
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss.sum(), policy)
        assert loss.isfinite().all() and gradient.isfinite().all()


def test_orpo_is_finite_where_the_model_is_certain():
    certain = torch.zeros(1, requires_grad=True)
    (gradient,) = torch.autograd.grad(orpo(certain, torch.full((1,), -1e5)).sum(), certain)
    assert gradient.isfinite().all()


def test_a_pair_loss_through_token_streams_has_the_same_gradient():
    """So a step that only sums streams can train on preferences."""
    torch.manual_seed(0)
    tokens = torch.randn(9, dtype=torch.float64, requires_grad=True)
    sequence = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])  # a pair, and a lone third
    segments = Segments(sequence, 3)
    sums = torch.zeros(3, dtype=torch.float64).index_add(0, sequence, tokens)

    def loss(chosen, rejected):
        return dpo(chosen, rejected, tensor(-0.3), tensor(0.2), beta=0.7)

    (want,) = torch.autograd.grad(loss(sums[0:1], sums[1:2]).sum(), tokens)
    value, (of_chosen, of_rejected) = sequence_coefficients(loss, sums[0:1], sums[1:2])
    assert value.item() == pytest.approx(loss(sums[0:1], sums[1:2]).item())
    advantage = -torch.cat([of_chosen, of_rejected, torch.zeros(1)])[sequence]
    out = reinforce(tokens, tokens.detach() * 0, {"advantage": advantage}, segments)
    (got,) = torch.autograd.grad(out.loss_N.sum(), tokens)
    assert torch.allclose(got, want)


# Distillation


def logits():
    torch.manual_seed(1)
    policy, teacher = torch.randn(2, 6, dtype=torch.float64)
    return policy.requires_grad_(), teacher.log_softmax(-1)


def kl(p, q):
    return (p.exp() * (p - q)).sum()


def test_on_policy_distillation_has_the_gradient_of_the_reverse_kl():
    policy, teacher = logits()
    logp = policy.log_softmax(-1)
    (want,) = torch.autograd.grad(kl(logp, teacher), policy)
    logp = policy.log_softmax(-1)
    segments = Segments(torch.arange(6), 6)
    out = on_policy_distillation(logp, logp * 0, {"teacher_logprobs": teacher}, segments)
    (got,) = torch.autograd.grad((logp.detach().exp() * out.loss_N).sum(), policy)
    assert torch.allclose(got, want)
    assert (logp.detach().exp() * out.diagnostics["teacher_gap"]).sum().item() == pytest.approx(
        kl(logp, teacher).item()
    )


def test_distillation_weighs_by_a_capped_ratio_and_bounds_the_gap():
    """r = policy / proximal at most 5, log teacher - log policy within the limit."""
    policy = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    streams = {
        "teacher_logprobs": policy.detach() + torch.tensor([2.0, 2.0, -90.0]).double(),
        "proximal_logprobs": policy.detach() - torch.tensor([3.0, 100.0, 1.0]).double().log(),
    }
    segments = Segments(torch.arange(3), 3)
    out = on_policy_distillation(policy, policy * 0, streams, segments, coefficient=0.5)
    out.loss_N.sum().backward()
    # d loss / d log p = -r A: towards what the teacher likes better, away from what it does not.
    assert policy.grad.tolist() == pytest.approx([-3 * 0.5 * 2, -5 * 0.5 * 2, 0.5 * 20])


def test_tokens_the_teacher_did_not_judge_are_left_out():
    policy = tensor(-1.0, -1.0, -1.0).requires_grad_()
    streams = {"teacher_logprobs": tensor(math.nan, -0.5, -1e9)}
    out = on_policy_distillation(policy, policy * 0, streams, Segments(torch.arange(3), 3))
    out.loss_N.sum().backward()
    assert policy.grad.tolist() == pytest.approx([0, -0.5, 20])


def test_divergences():
    policy, teacher = logits()
    logp = policy.log_softmax(-1)[None]
    rows = teacher[None]
    assert generalised_divergence(logp, rows, mixture=0.0).item() == pytest.approx(
        kl(rows, logp).item()
    )
    assert generalised_divergence(logp, rows, mixture=1.0).item() == pytest.approx(
        kl(logp, rows).item()
    )
    b = 0.3
    middle = (b * rows.exp() + (1 - b) * logp.exp()).log()
    want = b * kl(rows, middle) + (1 - b) * kl(logp, middle)
    assert generalised_divergence(logp, rows, mixture=b).item() == pytest.approx(want.item())
    assert generalised_divergence(logp, logp, mixture=b).item() == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        generalised_divergence(logp, rows, mixture=1.5)


@pytest.mark.parametrize("mixture", [0.0, 0.5, 1.0])
def test_divergence_is_finite_where_a_distribution_has_holes(mixture):
    policy = torch.tensor([[0.0, -math.inf, -1.0]]).log_softmax(-1).requires_grad_()
    teacher = torch.tensor([[-math.inf, 0.0, 1.0]]).log_softmax(-1)
    value = generalised_divergence(policy, teacher, mixture=mixture)
    (gradient,) = torch.autograd.grad(value.sum(), policy)
    assert value.isfinite().all() and gradient.isfinite().all()
