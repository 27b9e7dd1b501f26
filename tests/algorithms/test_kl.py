"""KL estimators: values, gradients, and numbers of any size; the controller and its state."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.algorithms.kl import ESTIMATORS, kl_per_token, ratio_weighted_k3
from educe.algorithms.kl_control import AdaptiveKL, FixedKL


def value_and_gradient(estimator, d, dtype=torch.float64):
    policy = torch.tensor([float(d)], dtype=dtype, requires_grad=True)
    value = kl_per_token(policy, torch.zeros(1, dtype=dtype), estimator)
    value.sum().backward()
    return value.item(), policy.grad.item()


@pytest.mark.parametrize("d", [-5.0, -0.3, 0.0, 0.3, 5.0])
def test_values_and_gradients(d):
    right = {
        "k1": (d, 1.0),
        "k2": (d * d / 2, d),
        "k3": (math.exp(-d) - 1 + d, 1 - math.exp(-d)),
        "k1+": (d, d),
        "k3+": (math.exp(-d) - 1 + d, d),
    }
    for estimator in ESTIMATORS:
        assert value_and_gradient(estimator, d) == pytest.approx(right[estimator]), estimator


@settings(max_examples=80, deadline=None)
@given(
    d=st.floats(allow_nan=False, width=32),
    estimator=st.sampled_from(ESTIMATORS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_finite_at_any_log_ratio(d, estimator, dtype):
    value, gradient = value_and_gradient(estimator, d, dtype)
    assert math.isfinite(value) and math.isfinite(gradient)


@pytest.mark.parametrize("gap", [100.0, 1000.0])
@pytest.mark.parametrize("estimator", ["k2", "k3", "k1+", "k3+"])
def test_far_from_the_reference_the_gradient_points_back(gap, estimator):
    """exp overflowed in k3 (TRL 3015); a clamped exponent is finite but turns the gradient."""
    value, gradient = value_and_gradient(estimator, -gap, torch.float32)
    assert gradient < 0 and math.isfinite(value)
    _, gradient = value_and_gradient(estimator, gap, torch.float32)
    assert gradient > 0


@pytest.mark.parametrize("estimator", [*ESTIMATORS, "rk3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [20.0, 1e2, 1e4, 1e30, math.inf])
def test_both_ends_are_finite(estimator, dtype, gap):
    """Either side may be the one that is far below: a token that one of the two never writes."""
    for policy, other in ((-gap, -1.0), (-1.0, -gap)):
        leaf = torch.tensor([policy], dtype=dtype, requires_grad=True)
        reference = torch.tensor([other], dtype=dtype)
        if estimator == "rk3":
            value = ratio_weighted_k3(leaf, torch.tensor([-2.0], dtype=dtype), reference)
        else:
            value = kl_per_token(leaf, reference, estimator)
        value.sum().backward()
        assert value.isfinite().all() and leaf.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("d", [-math.inf, -1e4, -25.0, -20.0, -1.5, 0.0, 2.5, 25.0, 1e4, math.inf])
def test_in_the_reward_the_value_is_that_of_the_loss(estimator, d):
    from educe.algorithms.advantages import kl_values

    want, _ = value_and_gradient(estimator, d)
    got = kl_values(np.array([d]), estimator)
    assert np.isfinite(got).all() and got[0] == pytest.approx(want, rel=1e-12)


def test_k3_is_monotone_across_its_edge():
    values = [value_and_gradient("k3", d)[0] for d in (-19.9, -20.0, -20.1, -25, -100)]
    assert values == sorted(values)


def test_unknown_estimator():
    with pytest.raises(ValueError, match="must be one of"):
        kl_per_token(torch.zeros(1), torch.zeros(1), "k4")


# Over a whole vocabulary the expected values and gradients can be computed exactly.


def distributions():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, dtype=torch.float64, generator=generator)
    return logits[0].requires_grad_(), logits[1].log_softmax(-1), logits[2].log_softmax(-1)


def reverse_kl_gradient(logits, reference):
    logp = logits.log_softmax(-1)
    kl = (logp.exp() * (logp - reference)).sum()
    return kl.item(), torch.autograd.grad(kl, logits)[0]


def expected(logits, sampler, per_token):
    """Sum over the vocabulary of P(sampled) * estimator(token), the samples held fixed."""
    logp = logits.log_softmax(-1)
    value = (sampler.detach().exp() * per_token(logp)).sum()
    return value.item(), torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("estimator", ["k1", "k3", "k1+", "k3+"])
def test_unbiased_values(estimator):
    logits, reference, _ = distributions()
    want, _ = reverse_kl_gradient(logits, reference)
    sampler = logits.log_softmax(-1)
    got, _ = expected(logits, sampler, lambda logp: kl_per_token(logp, reference, estimator))
    assert got == pytest.approx(want)


@pytest.mark.parametrize("estimator, is_right", [("k2", True), ("k1+", True), ("k3+", True)])
def test_expected_gradient_is_that_of_the_kl(estimator, is_right):
    logits, reference, _ = distributions()
    _, want = reverse_kl_gradient(logits, reference)
    sampler = logits.log_softmax(-1)
    _, got = expected(logits, sampler, lambda logp: kl_per_token(logp, reference, estimator))
    assert torch.allclose(got, want) is is_right


def test_as_losses_k1_pulls_nowhere_and_k3_another_way():
    logits, reference, _ = distributions()
    _, want = reverse_kl_gradient(logits, reference)
    sampler = logits.log_softmax(-1)
    _, k1 = expected(logits, sampler, lambda logp: kl_per_token(logp, reference, "k1"))
    _, k3 = expected(logits, sampler, lambda logp: kl_per_token(logp, reference, "k3"))
    assert torch.allclose(k1, torch.zeros_like(k1), atol=1e-12)
    assert not torch.allclose(k3, want, rtol=1e-2)
    logp = logits.log_softmax(-1)  # it is the gradient of KL(reference || policy)
    forward = (reference.exp() * (reference - logp)).sum()
    assert torch.allclose(k3, torch.autograd.grad(forward, logits)[0])


def test_ratio_weighted_k3_is_right_off_policy():
    logits, reference, proximal = distributions()
    value, want = reverse_kl_gradient(logits, reference)
    got = expected(logits, proximal, lambda logp: ratio_weighted_k3(logp, proximal, reference))
    assert got[0] == pytest.approx(value)
    assert torch.allclose(got[1], want)


# Controllers


def test_adaptive_controller():
    control = AdaptiveKL(coefficient=0.001, target=0.1, horizon=10_000)
    assert control.update(0.11, 500) == pytest.approx(0.001 * (1 + 0.1 * 500 / 10_000))
    control = AdaptiveKL(coefficient=1.0, target=0.1, horizon=100)
    assert control.update(50.0, 10) == pytest.approx(1 + 0.2 * 0.1)
    control = AdaptiveKL(coefficient=1.0, target=0.1, horizon=100)
    assert control.update(0.0, 10) == pytest.approx(1 - 0.2 * 0.1)
    assert control.update(0.1, 10) == pytest.approx(0.98)


def test_the_controller_settles_at_the_target():
    control, kl = AdaptiveKL(coefficient=1e-3, target=0.1, horizon=500), 0.0
    for _ in range(3000):
        kl = 0.05 / control.coefficient**0.5  # more penalty, less KL
        control.update(kl, 64)
    assert kl == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_skipped_step_does_not_move_the_controller(kl):
    control = AdaptiveKL(coefficient=0.5)
    assert control.update(kl, 64) == 0.5


@settings(max_examples=40, deadline=None)
@given(kls=st.lists(st.floats(-1e6, 1e6), max_size=30), n=st.integers(0, 10**6))
def test_the_coefficient_stays_positive_and_finite(kls, n):
    control = AdaptiveKL(coefficient=0.1, target=0.1, horizon=100)
    for kl in kls:
        assert 0 < control.update(kl, n) <= control.highest


def test_state_round_trips_through_json():
    control = AdaptiveKL(coefficient=0.3, target=0.2, horizon=77)
    control.update(0.5, 10)
    again = AdaptiveKL()
    again.restore(json.loads(json.dumps(control.state())))
    assert again == control and again.update(0.1, 5) == control.update(0.1, 5)
    fixed, other = FixedKL(0.25), FixedKL(1.0)
    other.restore(json.loads(json.dumps(fixed.state())))
    assert other.update(9.0, 9) == 0.25


def test_bad_controller_settings_are_refused():
    with pytest.raises(ValueError, match=r"AdaptiveKL\.target"):
        AdaptiveKL(target=0)
