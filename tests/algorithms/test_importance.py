"""Off-policy correction: weights, masks, bypass, denominators, and mismatch metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from educe.algorithms.aggregate import sequence_weights
from educe.algorithms.catalogue import BUNDLES
from educe.algorithms.importance import (
    CORRECTIONS,
    build_correction,
    composed,
    correction_weights,
    effective_sample_share,
    geometric_mask,
    mismatch_per_token,
    sequence_mask,
    token_truncated,
)
from educe.algorithms.losses import Segments, build_loss

RATIOS = [0.1, 1.0, 4.0, 6.0]
LOG = torch.tensor([math.log(r) for r in RATIOS], dtype=torch.float64)
ALONE = Segments(torch.arange(4), 4)
PAIRS = Segments(torch.tensor([0, 0, 1, 1]), 2)


def weights(name, low, high, segments=ALONE):
    return build_correction(name, low, high)(LOG, segments).tolist()


def test_token_level():
    assert weights("token_truncated", 0.0, 2.0) == pytest.approx([0.1, 1, 2, 2])
    assert weights("token_truncated", 0.5, 5.0) == pytest.approx([0.5, 1, 4, 5])
    assert weights("icepop", 0.5, 5.0) == pytest.approx([0, 1, 4, 0])


def test_sequence_level():
    assert weights("sequence_truncated", 0.0, 5.0, PAIRS) == pytest.approx([0.1, 0.1, 5, 5])
    assert weights("sequence_mask", 0.0, 3.0, PAIRS) == [1, 1, 0, 0]
    assert weights("sequence_mask", 0.5, 30.0, PAIRS) == [0, 0, 1, 1]
    # Geometric means: sqrt(0.1) = 0.32, sqrt(24) = 4.9.
    assert weights("geometric_mask", 0.3, 4.0, PAIRS) == [1, 1, 0, 0]


def test_corrections_compose_by_multiplying():
    both = composed(partial(token_truncated, cap=2.0), partial(sequence_mask, low=0.0, high=3.0))
    assert both(LOG, PAIRS).tolist() == pytest.approx([0.1, 1, 0, 0])
    assert composed()(LOG, PAIRS).tolist() == [1] * 4


def test_bounds_that_are_no_interval_are_refused():
    assert build_correction("icepop", 0.5, 0.0) is None
    with pytest.raises(ValueError, match="0 <= low < high, got 3"):
        build_correction("icepop", 3.0, 2.0)
    with pytest.raises(ValueError, match="correction must be one of"):
        build_correction("tis", 0.0, 2.0)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_equal_distributions_need_no_correction(name):
    correction = build_correction(name, 0.5, 2.0)
    same = torch.full((4,), -1.3)
    got = correction_weights(same, {"behaviour_logprobs": same}, PAIRS, correction)
    assert got.tolist() == [1] * 4


@pytest.mark.parametrize("name", CORRECTIONS)
def test_unknown_behaviour_weighs_one_and_moves_no_sibling(name):
    correction = build_correction(name, 0.01, 50.0)
    behaviour = -LOG.clone()
    behaviour[1] = math.nan
    got = correction_weights(
        torch.zeros(4).double(), {"behaviour_logprobs": behaviour}, PAIRS, correction
    )
    assert got[1] == 1 and got.isfinite().all()
    log = LOG.clone()
    log[1] = 0
    assert got[[0, 2, 3]].tolist() == pytest.approx(correction(log, PAIRS)[[0, 2, 3]].tolist())


def test_weights_carry_no_gradient():
    proximal = torch.zeros(4).double().requires_grad_()
    streams = {"behaviour_logprobs": -LOG}
    got = correction_weights(proximal, streams, PAIRS, build_correction("icepop", 0.5, 5.0))
    assert not got.requires_grad


def gradient(bundle, streams, policy):
    leaf = policy.clone().requires_grad_()
    out = build_loss(bundle)(leaf, leaf.detach() * 0, streams, PAIRS)
    (out.loss_N * streams["weight"]).sum().backward()
    return leaf.grad, out


def make_streams(policy, lengths=(2, 2)):
    weight = sequence_weights("token-mean", lengths, [0, 0])
    return {
        "advantage": torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64),
        "behaviour_logprobs": policy - LOG,
        "weight": torch.tensor([weight[0], weight[0], weight[1], weight[1]]),
    }


def test_rejected_tokens_do_not_inflate_the_others():
    """Denominators are counted before rejection; after it, gradients grow by N / kept."""
    policy = torch.full((4,), -1.0, dtype=torch.float64)
    streams = make_streams(policy)
    bundle = replace(BUNDLES["dapo"], correction="icepop", importance_floor=0.5, importance_cap=5.0)
    got, out = gradient(bundle, streams, policy)
    assert got.tolist() == pytest.approx([0, -1 / 4, 4 / 4, 0])
    assert out.diagnostics["rejected"].tolist() == [1, 0, 0, 1]
    assert out.diagnostics["correction"].tolist() == pytest.approx([0, 1, 4, 0])


@pytest.mark.parametrize("name", CORRECTIONS)
def test_bypass_corrects_nothing_twice(name):
    """With proximal = behaviour the policy's ratio does the work and w is exactly 1."""
    policy = torch.full((4,), -1.0, dtype=torch.float64)
    streams = make_streams(policy)
    streams["proximal_logprobs"] = streams["behaviour_logprobs"]
    bundle = replace(BUNDLES["cispo"], correction=name, importance_floor=0.5)
    corrected, _ = gradient(bundle, streams, policy)
    bare, _ = gradient(replace(bundle, importance_cap=0.0), streams, policy)
    assert torch.equal(corrected, bare)


def test_the_four_distributions_are_not_confused():
    """Ratio against the proximal policy, correction proximal / behaviour, KL to the reference."""
    policy = torch.tensor([-1.0], dtype=torch.float64)
    streams = {
        "advantage": torch.ones(1).double(),
        "proximal_logprobs": policy - math.log(1.1),
        "behaviour_logprobs": policy - math.log(1.1) - math.log(1.5),
        "reference_logprobs": policy - 0.25,
        "weight": torch.ones(1).double(),
    }
    bundle = replace(BUNDLES["grpo"], kl_coefficient=0.5, kl_estimator="k2")
    leaf = policy.clone().requires_grad_()
    out = build_loss(bundle)(leaf, leaf * 0, streams, Segments(torch.tensor([0]), 1))
    assert out.loss_N.item() == pytest.approx(-1.1 * 1.5 + 0.5 * 0.25**2 / 2)
    out.loss_N.sum().backward()
    assert leaf.grad.item() == pytest.approx(-1.1 * 1.5 + 0.5 * 0.25)


def test_what_a_mask_and_a_correction_reject_is_told_together():
    policy = torch.log(torch.tensor([0.7, 0.4], dtype=torch.float64))
    streams = {
        "advantage": torch.ones(2).double(),
        "behaviour_logprobs": torch.log(torch.tensor([0.4, 0.1], dtype=torch.float64)),
        "proximal_logprobs": policy,
    }
    bundle = replace(BUNDLES["dppo_tv"], correction="icepop", importance_cap=3.0, clip_high=0.31)
    both = Segments(torch.tensor([0, 1]), 2)
    out = build_loss(bundle)(policy, policy * 0, streams, both)
    assert out.diagnostics["rejected"].tolist() == [0, 1]  # w = 4 is over the cap
    out = build_loss(replace(bundle, clip_high=0.2))(policy, policy * 0, streams, both)
    assert out.diagnostics["rejected"].tolist() == [1, 1]  # and both moved by 0.3


def test_mismatch_metrics():
    same = torch.tensor([-0.5, -3.0])
    told = mismatch_per_token(same, same)
    assert told["mismatch"].tolist() == [0, 0] and told["mismatch_ratio"].tolist() == [1, 1]
    assert told["mismatch_k1"].tolist() == [0, 0] and told["mismatch_k3"].tolist() == [0, 0]
    p, q = torch.tensor([0.5, 0.2]).log(), torch.tensor([0.4, 0.25]).log()
    told = mismatch_per_token(p, q)
    assert told["mismatch"].tolist() == pytest.approx([0.1, 0.05])
    assert told["mismatch_ratio"].tolist() == pytest.approx([1.25, 1.25])


def test_mismatch_estimates_the_kl_of_the_engine_from_the_trainer():
    torch.manual_seed(0)
    behaviour, proximal = torch.randn(2, 50, dtype=torch.float64).mul(0.1).log_softmax(-1)
    told = mismatch_per_token(proximal, behaviour)
    kl = (behaviour.exp() * (behaviour - proximal)).sum()
    for name in ("mismatch_k1", "mismatch_k3"):
        assert (behaviour.exp() * told[name]).sum().item() == pytest.approx(kl.item())


def test_mismatch_of_unknown_and_of_far_tokens():
    told = mismatch_per_token(torch.tensor([-1.0, -900.0]), torch.tensor([math.nan, -1.0]))
    assert all(v[0].isnan() for v in told.values())
    assert all(v[1].isfinite() for v in told.values())


def test_effective_sample_share():
    assert effective_sample_share(4.0, 4.0, 4) == 1
    assert effective_sample_share(1.0, 1.0, 4) == 0.25
    assert effective_sample_share(0.0, 0.0, 4) == 0


def test_geometric_mask_forgives_length():
    """Many small steps multiply to something large; their mean says that each was small."""
    log = torch.full((200,), 0.009)
    segments = Segments(torch.zeros(200, dtype=torch.int64), 1)
    assert geometric_mask(log, segments, low=0.99, high=1.01).all()
    assert not sequence_mask(log, segments, low=0.5, high=2.0).any()
