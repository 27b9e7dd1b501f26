"""Per-token losses: values, gradients, the clip's bounds, and numbers of any size."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.algorithms.catalogue import BUNDLES
from educe.algorithms.losses import (
    Segments,
    build_loss,
    clipped_surrogate,
    geometric_mean,
    negative_sequences_masked,
    proximal_logprobs,
    reinforce,
    soft_adaptive,
    truncated_reinforce,
    value_loss,
)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def plain(name, **changes):
    """A bundle's loss without the engine correction."""
    return build_loss(replace(BUNDLES[name], importance_cap=0.0, **changes))


def right_values(like):
    """Streams of a critic that is right already: its loss is 0."""
    return {n: torch.zeros_like(like) for n in ("values", "old_values", "returns")}


def run(loss, log_ratio, advantage, sequence=None, policy=None, **streams):
    """Return (loss values, gradients in the policy's log-probabilities, diagnostics)."""
    log_ratio = torch.as_tensor(log_ratio, dtype=torch.float64)
    policy = torch.full_like(log_ratio, -1.0) if policy is None else tensor(*policy)
    policy = policy.requires_grad_()
    given_streams = {
        "advantage": torch.as_tensor(advantage, dtype=torch.float64),
        **right_values(log_ratio),
        "proximal_logprobs": policy.detach() - log_ratio,
        **streams,
    }
    ids = torch.as_tensor(sequence if sequence is not None else range(len(log_ratio)))
    out = loss(policy, torch.zeros_like(log_ratio), given_streams, Segments(ids, int(max(ids)) + 1))
    out.loss_N.sum().backward()
    return out.loss_N.detach(), policy.grad, out.diagnostics


def logs(*ratios):
    return [math.log(r) for r in ratios]


@pytest.mark.parametrize("name", sorted(BUNDLES))
def test_on_policy_every_loss_has_the_policy_gradient(name):
    """At ratio 1 all of them pull with -A."""
    advantage = [1.5, -0.5, 2.0, -2.0]
    behaviour = torch.full((4,), -1.0, dtype=torch.float64)
    _, gradient, _ = run(
        plain(name), [0.0] * 4, advantage, sequence=range(4), behaviour_logprobs=behaviour
    )
    assert torch.allclose(gradient, -tensor(*advantage))


@pytest.mark.parametrize("name", sorted(BUNDLES))
def test_without_a_proximal_stream_the_ratio_is_one(name):
    """By construction, so no difference in batching can move it (verl 2996)."""
    policy = tensor(-3.0, -0.1).requires_grad_()
    streams = {
        "advantage": tensor(1.0, -1.0),
        "behaviour_logprobs": tensor(-3.0, -0.1),
        **right_values(policy.detach()),
    }
    out = plain(name)(policy, torch.zeros(2), streams, Segments(torch.tensor([0, 1]), 2))
    if "ratio" in out.diagnostics:
        assert (out.diagnostics["ratio"] == 1).all()
    out.loss_N.sum().backward()
    assert torch.allclose(policy.grad, tensor(-1.0, 1.0))


def test_where_the_proximal_stream_is_unknown_it_is_the_policy():
    policy = tensor(-1.0, -2.0).requires_grad_()
    got = proximal_logprobs(policy, {"proximal_logprobs": tensor(math.nan, -5.0)})
    assert got.tolist() == [-1.0, -5.0] and not got.requires_grad


def test_clip_is_one_sided_by_the_advantage():
    ratios = [1.5, 1.5, 0.5, 0.5, 1.1, 0.9]
    advantage = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    values, gradient, told = run(plain("grpo"), logs(*ratios), advantage)
    assert values.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8, -1.1, 0.9])
    assert gradient.tolist() == pytest.approx([0, 1.5, -0.5, 0, -1.1, 0.9])
    assert told["clip_high"].tolist() == [1, 0, 0, 0, 0, 0]
    assert told["clip_low"].tolist() == [0, 0, 0, 1, 0, 0]


def test_clip_higher():
    _, gradient, _ = run(plain("dapo"), logs(1.25, 1.29), [1.0, 1.0])
    assert gradient.tolist() == pytest.approx([-1.25, 0])


def test_dual_clip_bounds_what_a_negative_advantage_can_cost():
    loss = plain("grpo", options=(("dual_clip", 3.0),))
    values, gradient, _ = run(loss, logs(10, 10, 2, 1.0), [-1.0, 1.0, -1.0, 1.0])
    assert values.tolist() == pytest.approx([3.0, -1.2, 2.0, -1.0])
    assert gradient.tolist() == pytest.approx([0, 0, 2.0, -1.0])


# CISPO: offsets, not bounds


def test_cispo_has_no_lower_bound_and_an_upper_one_of_five():
    """Ratio 0.5 must pass unchanged and the cap bind at 5 (SkyRL 553, 1928; TRL reads 0.2)."""
    values, gradient, told = run(plain("cispo"), logs(0.5, 4.9, 7.0, 1e-3), [1.0] * 4)
    assert gradient.tolist() == pytest.approx([-0.5, -4.9, -5.0, -1e-3])
    assert values.tolist() == pytest.approx([0.5, 4.9, 5.0, 1e-3])
    assert told["clip_high"].tolist() == [0, 0, 1, 0] and not told["clip_low"].any()


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    _, gradient, _ = run(plain("cispo"), logs(100.0), [-2.0])
    assert gradient.tolist() == pytest.approx([10.0])


# Sequence level


def test_gspo_takes_the_geometric_mean_and_reaches_every_token():
    log_ratio = [0.3, -0.1, 0.1, -0.4]
    sequence = [0, 0, 0, 1]
    loss = plain("gspo", clip_low=1.0, clip_high=9.0)
    values, gradient, _ = run(loss, log_ratio, [1.0, 1.0, 1.0, -1.0], sequence)
    s0, s1 = math.exp(0.1), math.exp(-0.4)
    assert values.tolist() == pytest.approx([-s0] * 3 + [s1])
    assert gradient.tolist() == pytest.approx([-s0] * 3 + [s1])


def test_gspo_equals_the_sequence_objective():
    """Weighted by 1 / |o|, the token form has value and gradient of -s A."""
    log_ratio, ids = tensor(0.3, -0.1, 0.1), torch.zeros(3, dtype=torch.int64)
    proximal = tensor(-1.0, -2.0, -0.5)
    policy = (proximal + log_ratio).requires_grad_()
    streams = {"advantage": torch.full((3,), 0.7).double(), "proximal_logprobs": proximal}
    loss = plain("gspo", clip_low=1.0, clip_high=9.0)
    token = (loss(policy, policy * 0, streams, Segments(ids, 1)).loss_N / 3).sum()
    whole = -0.7 * torch.exp((policy - proximal).mean())
    assert token.item() == pytest.approx(whole.item())
    a, b = torch.autograd.grad(token, policy), torch.autograd.grad(whole, policy)
    assert torch.allclose(a[0], b[0])


def test_gspo_clip_drops_whole_sequences():
    loss = plain("gspo")
    _, gradient, told = run(loss, [0.01, -0.002, 0.0001, 0.0], [1.0] * 4, [0, 0, 1, 1])
    assert gradient[:2].tolist() == [0, 0] and (gradient[2:] < -0.99).all()
    assert told["clip_high"].tolist() == [1, 1, 0, 0]


def test_gmpo_clips_each_token_before_the_mean():
    log_ratio = [1.0, -1.0, 0.2, 1.0, -1.0]
    values, gradient, told = run(plain("gmpo"), log_ratio, [1, 1, 1, -1, -1], [0, 0, 0, 1, 1])
    s0, s1 = math.exp((0.4 - 1.0 + 0.2) / 3), math.exp((1.0 - 0.4) / 2)
    assert values.tolist() == pytest.approx([-s0] * 3 + [s1] * 2)
    # Every token holds the sequence's value, so its gradient is |o| times the share 1 / |o|.
    assert gradient.tolist() == pytest.approx([0, -s0, -s0, s1, 0])
    assert told["clip_high"].tolist() == [1, 0, 0, 0, 0]
    assert told["clip_low"].tolist() == [0, 0, 0, 0, 1]


def test_sequence_losses_ignore_how_sequences_are_packed():
    """Two sequences apart and together, and with tokens of one out of order."""
    torch.manual_seed(0)
    log_ratio, advantage = torch.randn(7) * 0.3, torch.tensor([1.0] * 3 + [-1.0] * 4)
    sequence = [0, 0, 0, 1, 1, 1, 1]
    order = [3, 0, 5, 1, 6, 2, 4]
    for name in ("gspo", "gmpo"):
        together = run(plain(name), log_ratio, advantage, sequence)[1]
        apart = [
            run(plain(name), log_ratio[part], advantage[part], [0] * len(log_ratio[part]))[1]
            for part in (slice(0, 3), slice(3, 7))
        ]
        assert torch.allclose(together, torch.cat(apart))
        mixed = run(plain(name), log_ratio[order], advantage[order], [sequence[i] for i in order])
        assert torch.allclose(mixed[1], together[order])


# Soft gates and masks


def test_sapo_values():
    values, gradient, _ = run(plain("sapo"), logs(2.0, 2.0), [1.0, -1.0])

    def gate(tau, r):
        return 4 / tau / (1 + math.exp(-tau * (r - 1)))

    assert values.tolist() == pytest.approx([-gate(1.0, 2), gate(1.05, 2)])
    slope = [4 * s * (1 - s) for s in (gate(1.0, 2) / 4, gate(1.05, 2) * 1.05 / 4)]
    assert gradient.tolist() == pytest.approx([-2 * slope[0], 2 * slope[1]])


@pytest.mark.parametrize("name, shift", [("dppo_tv", 0.25), ("dppo_kl", 0.25)])
def test_dppo_drops_only_what_moves_away(name, shift):
    mu = tensor(0.4, 0.4, 0.4, 0.4, 0.4)
    pi = mu + tensor(shift, shift, -shift, -shift, 0.01)
    policy = pi.log().tolist()
    advantage = [1.0, -1.0, 1.0, -1.0, 1.0]
    _, gradient, told = run(
        plain(name),
        (pi / mu).log(),
        advantage,
        policy=policy,
        behaviour_logprobs=mu.log(),
    )
    ratio = (pi / mu).tolist()
    assert gradient.tolist() == pytest.approx([0, ratio[1], -ratio[2], 0, -ratio[4]])
    assert told["rejected"].tolist() == [1, 0, 0, 1, 0]


def test_dppo_lets_rare_tokens_move_and_caps_their_weight():
    """A clip at ratio 1.2 would stop a token that went from 0.0001 to 0.01; its TV is tiny."""
    mu, pi = tensor(1e-4), tensor(1e-2)
    _, gradient, _ = run(
        plain("dppo_tv"),
        (pi / mu).log(),
        [1.0],
        policy=pi.log().tolist(),
        behaviour_logprobs=mu.log(),
    )
    assert gradient.tolist() == pytest.approx([-20.0])


def test_negative_sequences_left_behind_are_dropped():
    loss = negative_sequences_masked(reinforce, limit=0.5)
    _, gradient, _ = run(loss, [-1.0, -0.2, -1.0, -0.2, 0.0], [-1, -1, 1, 1, -1], [0, 0, 1, 1, 2])
    assert gradient.tolist() == [0, 0, -1, -1, 1]


def test_a_long_sequence_is_not_left_behind_for_its_length():
    """The mean counts, not the sum: 0.2 a token is near, however many tokens there are."""
    loss = negative_sequences_masked(reinforce, limit=0.5)
    _, gradient, _ = run(loss, [-0.2] * 6 + [-0.9, 0.1], [-1] * 8, [0] * 6 + [1] * 2)
    assert gradient.tolist() == [1] * 8
    _, gradient, _ = run(loss, [-0.9, -0.3], [-1] * 2, [0] * 2)
    assert gradient.tolist() == [0] * 2


# Value loss


def test_value_loss_and_its_clip():
    values = tensor(1.0, 1.0, 0.1).requires_grad_()
    out = value_loss(values, tensor(0.0, 0.9, 0.0), tensor(2.0, 2.0, 2.0), clip=0.2)
    assert out.loss_N.tolist() == pytest.approx([0.5 * 1.8**2, 0.5, 0.5 * 1.9**2])
    out.loss_N.sum().backward()
    assert values.grad.tolist() == pytest.approx([0, -1.0, -1.9])
    assert out.diagnostics["value_clip"].tolist() == [1, 0, 0]
    assert value_loss(values, values, tensor(2.0, 2, 2), clip=0).loss_N[0].item() == 0.5


# KL and entropy terms


def test_reference_kl_and_entropy_are_added():
    bundle = replace(
        BUNDLES["grpo"], importance_cap=0.0, kl_coefficient=0.1, entropy_coefficient=0.01
    )
    policy = tensor(-1.0, -2.0).requires_grad_()
    entropy = tensor(0.5, 1.5).requires_grad_()
    streams = {"advantage": tensor(1.0, 0.0), "reference_logprobs": tensor(-1.5, -1.5)}
    out = build_loss(bundle)(policy, entropy, streams, Segments(torch.tensor([0, 0]), 1))
    k3 = [math.exp(-d) - 1 + d for d in (0.5, -0.5)]
    want = [-1 + 0.1 * k3[0] - 0.005, 0.1 * k3[1] - 0.015]
    assert out.loss_N.tolist() == pytest.approx(want)
    out.loss_N.sum().backward()
    assert entropy.grad.tolist() == pytest.approx([-0.01, -0.01])


def test_steered_coefficients_are_read_from_streams():
    """The loss is built once; its numbers change from step to step and by token."""
    bundle = replace(
        BUNDLES["grpo"],
        importance_cap=0.0,
        kl_coefficient=0.1,
        kl_estimator="k2",
        options=(("kl_target", 0.1), ("entropy_target", 0.5)),
    )
    policy, entropy = tensor(-1.0, -2.0), tensor(0.5, 1.5)
    streams = {
        "advantage": tensor(1.0, 0.0),
        "reference_logprobs": tensor(-1.5, -1.5),
        "kl_coefficient": tensor(0.2, 0.4),
        "entropy_coefficient": tensor(0.0, 0.01),
    }
    out = build_loss(bundle)(policy, entropy, streams, Segments(torch.tensor([0, 0]), 1))
    want = [-1 + 0.2 * 0.125, 0.4 * 0.125 - 0.015]
    assert out.loss_N.tolist() == pytest.approx(want)


def test_ratio_weighted_kl_sees_the_proximal_policy():
    bundle = replace(BUNDLES["grpo"], importance_cap=0.0, kl_coefficient=1.0, kl_estimator="rk3")
    policy = tensor(-1.0).requires_grad_()
    streams = {
        "advantage": tensor(0.0),
        "proximal_logprobs": tensor(-1.2),
        "reference_logprobs": tensor(-1.5),
    }
    out = build_loss(bundle)(policy, tensor(0.0), streams, Segments(torch.tensor([0]), 1))
    assert out.loss_N.item() == pytest.approx(math.exp(0.2) * (math.exp(-0.5) - 1 + 0.5))


def test_the_sequence_drop_of_a_bundle():
    bundle = replace(BUNDLES["grpo"], importance_cap=0.0, options=(("sequence_drop", 0.5),))
    loss, _, told = run(build_loss(bundle), [-0.6, -0.6, -0.4, -0.6], [-1.0] * 3 + [1.0])
    assert told["rejected"].tolist() == [1, 1, 0, 0] and (loss[:2] == 0).all()


def test_the_value_loss_is_a_term_of_its_own():
    """Its gradient reaches the values only, and the correction does not weigh it."""
    loss = build_loss(BUNDLES["ppo"])
    policy, values = tensor(-1.0, -1.0).requires_grad_(), tensor(0.3, 0.0).requires_grad_()
    streams = {
        "advantage": tensor(1.0, -1.0),
        "behaviour_logprobs": tensor(-2.0, -9.0),
        "values": values,
        "old_values": tensor(0.0, 0.0),
        "returns": tensor(1.0, -2.0),
    }
    out = loss(policy, tensor(0.0, 0.0), streams, Segments(torch.tensor([0, 1]), 2))
    # Beyond the clip of 0.2 the clipped error is the larger one: 0.2 - 1, and no gradient.
    assert out.diagnostics["value_loss"].tolist() == pytest.approx([0.5 * 0.8**2, 2.0])
    assert out.diagnostics["value_clip"].tolist() == [1, 0]
    out.loss_N.sum().backward()
    assert values.grad.tolist() == pytest.approx([0.0, 0.1 * 2.0])
    assert policy.grad.tolist() == pytest.approx([-2.0, 2.0])  # the correction is cut at 2


# Numbers of any size

# A log-softmax over finite logits of fp32 cannot leave this range by much.
sizes = st.one_of(st.floats(-30, 30, width=32), st.floats(-(2.0**100), 2.0**100, width=32))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(BUNDLES)),
    estimator=st.sampled_from(["k1", "k2", "k3", "k1+", "k3+", "rk3"]),
    rows=st.lists(st.tuples(sizes, sizes, sizes, st.floats(-50, 50)), min_size=1, max_size=5),
    correction=st.sampled_from(
        ["token_truncated", "sequence_truncated", "icepop", "sequence_mask", "geometric_mask"]
    ),
)
def test_finite_at_any_log_ratio(name, estimator, rows, correction):
    bundle = replace(
        BUNDLES[name],
        kl_coefficient=0.1,
        kl_estimator=estimator,
        correction=correction,
        importance_cap=2.0,
        importance_floor=0.5,
    )
    proximal, behaviour, reference, advantage = (
        torch.tensor([float(r[i]) for r in rows]) for i in range(4)
    )
    policy = torch.full_like(proximal, -1.0).requires_grad_()
    streams = {
        "advantage": advantage,
        "proximal_logprobs": proximal,
        "behaviour_logprobs": behaviour,
        "reference_logprobs": reference,
        **right_values(proximal),
    }
    ids = torch.arange(len(rows)) // 2
    out = build_loss(bundle)(policy, policy * 0, streams, Segments(ids, int(ids.max()) + 1))
    out.loss_N.sum().backward()
    assert out.loss_N.isfinite().all() and policy.grad.isfinite().all()
    assert all(v.isfinite().all() for v in out.diagnostics.values())


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=4))
def test_value_loss_is_finite(rows):
    values, old, returns = (torch.tensor([float(r[i]) for r in rows]) for i in range(3))
    values.requires_grad_()
    out = value_loss(values, old, returns)
    out.loss_N.sum().backward()
    assert out.loss_N.isfinite().all() and values.grad.isfinite().all()


# Stale samples


def largest_move(loss, staleness, steps=30, rate=1.0):
    """Largest KL(policy || the stale policy it was trained on) of a bandit of four arms.

    Every arm appears, weighted by how often the stale policy takes it: no sampling noise.
    """
    score = torch.tensor([1.0, 0.9, 0.0, -1.0])
    logits = torch.zeros(4, requires_grad=True)
    history = [logits.detach().log_softmax(-1)]
    moves = []
    for _ in range(steps):
        behaviour = history[max(0, len(history) - 1 - staleness)]
        policy = logits.log_softmax(-1)
        moves.append((policy.exp() * (policy - behaviour)).sum().item())
        streams = {
            "advantage": score - (behaviour.exp() * score).sum(),
            "proximal_logprobs": behaviour,
        }
        out = loss(policy, policy * 0, streams, Segments(torch.arange(4), 4))
        (gradient,) = torch.autograd.grad((behaviour.exp() * out.loss_N).sum(), logits)
        logits = (logits - rate * gradient).detach().requires_grad_()
        history.append(logits.detach().log_softmax(-1))
    return max(moves)


def test_clipping_holds_stale_updates_back():
    """Unclipped ratios on stale samples run away, clipped ones do not (tinker-cookbook 822)."""

    def unclipped(policy, entropy, streams, segments):
        return clipped_surrogate(policy, entropy, streams, segments, clip_low=1.0, clip_high=1e9)

    clipped = plain("grpo")
    free = [largest_move(unclipped, staleness) for staleness in (1, 3, 4)]
    held = [largest_move(clipped, staleness) for staleness in (1, 3, 4)]
    assert free[0] < free[1] < free[2]
    assert held[1] < free[1] / 2 and held[2] < free[2] / 2
    assert held[2] == pytest.approx(held[1], rel=0.05)  # more staleness moves it no further


def test_losses_take_bare_keywords():
    """The parts can be used without a bundle."""
    streams = {"advantage": tensor(1.0)}
    segments = Segments(torch.tensor([0]), 1)
    policy = tensor(-1.0)
    zero = torch.zeros(1)
    assert soft_adaptive(
        policy, zero, streams, segments, tau_positive=1.0, tau_negative=1.0
    ).loss_N.tolist() == pytest.approx([-2.0])
    for loss in (truncated_reinforce, geometric_mean):
        out = loss(policy, zero, streams, segments, clip_low=0.2, clip_high=0.2)
        assert out.loss_N.isfinite().all()
