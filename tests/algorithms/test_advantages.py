"""Credit: the right advantages for every shape of group, and for token-level returns."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.algorithms.advantages import (
    ADVANTAGES,
    RoleBaselines,
    best_of_k,
    centred_then_whitened,
    discounted_returns,
    explained_variance,
    gdpo,
    generalised_advantages,
    group_normalised,
    has_spread,
    length_adaptive_lambda,
    length_weighted_baseline,
    multi_reward,
    over_greedy,
    penalised_score,
    process_rewards,
    reinforce_plus_plus,
    token_rewards,
    whitened,
    with_kl_penalty,
)

NAN = float("nan")
GROUP_BASELINES = sorted(set(ADVANTAGES) - {"score"})


def credit(name, scores, mask=None, eps=1e-6):
    scores = np.array([NAN if s is None else s for s in scores], float)
    mask = np.isfinite(scores) if mask is None else np.array(mask)
    return ADVANTAGES[name](scores, mask, eps)


# The right values, from the formulas with numbers worked out by hand.
RIGHT = {
    "group_normalised": [math.sqrt(3) / 2, -math.sqrt(3) / 2, -math.sqrt(3) / 2, math.sqrt(3) / 2],
    "group_centred": [0.5, -0.5, -0.5, 0.5],
    "leave_one_out": [2 / 3, -2 / 3, -2 / 3, 2 / 3],
    "mean_scaled": [1.0, -1.0, -1.0, 1.0],
    "best_over_second": [0.0, 0.0, 0.0, 0.0],
    "score": [1.0, 0.0, 0.0, 1.0],
}


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_values_of_a_group(name):
    assert credit(name, [1, 0, 0, 1], eps=0.0) == pytest.approx(RIGHT[name], abs=1e-12)


def test_values_of_graded_scores():
    assert credit("group_normalised", [1, 2, 3], eps=0.0) == pytest.approx([-1, 0, 1])
    assert credit("best_over_second", [0.25, 1.0, 0.5]) == pytest.approx([0, 0.5, 0])
    assert credit("mean_scaled", [0, 0, 0, 1]) == pytest.approx([-1, -1, -1, 3])


@pytest.mark.parametrize("name", GROUP_BASELINES)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, 0.1 + 0.2, -3.0, 1e300, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
def test_equal_scores_give_exactly_zero(name, value, size):
    assert not credit(name, [value] * size).any()


@pytest.mark.parametrize("name", GROUP_BASELINES)
def test_equal_up_to_rounding_is_equal(name):
    assert not credit(name, [0.3, 0.1 + 0.2, 0.3, 0.1 * 3]).any()
    assert not has_spread(np.array([0.3, 0.1 + 0.2]), np.array([True, True]))


@pytest.mark.parametrize("spread", [1e-9, 1e-7, 1e-4])
def test_a_tiny_spread_is_damped_by_eps_not_blown_up(spread):
    got = credit("group_normalised", [0.5, 0.5 + spread], eps=1e-6)
    want = (spread / 2) / (spread / math.sqrt(2) + 1e-6)
    assert got == pytest.approx([-want, want], rel=1e-6)
    assert abs(got).max() < 1 / math.sqrt(2) + 1e-12


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_unscored_siblings_change_nothing_and_get_zero(name):
    """A missing reward counted as 0 would shift its siblings (TRL 5902)."""
    got = credit(name, [1, 0, None, 1])
    assert got[2] == 0
    assert got[[0, 1, 3]] == pytest.approx(credit(name, [1, 0, 1]), abs=0)


@pytest.mark.parametrize("name", GROUP_BASELINES)
def test_one_scored_sibling_or_none_gives_zeros(name):
    """Its deviation would be NaN (TRL 5773)."""
    assert not credit(name, [None] * 7 + [1]).any()
    assert not credit(name, [None] * 8).any()
    assert not credit(name, [1]).any()
    assert len(credit(name, [])) == 0


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_bad_number_inside_the_mask_is_left_out_all_the_same(name, bad):
    got = credit(name, [1, 0, bad, 1], mask=[True] * 4)
    assert got == pytest.approx(credit(name, [1, 0, None, 1]), abs=0)


@pytest.mark.parametrize("sizes", [(4, 3, 4), (1, 2, 5), (3, 3, 1)])
def test_groups_of_different_sizes_are_normalised_with_themselves_only(sizes):
    """Slicing at a fixed stride mixes neighbours once a group has lost members (AReaL 1419)."""
    rng = np.random.default_rng(0)
    for size in sizes:
        got = credit("group_normalised", rng.normal(size=size))
        assert abs(got.sum()) < 1e-9
        if size > 1:
            assert got.std(ddof=1) == pytest.approx(1, rel=1e-5)


def test_a_remainder_row_is_bounded():
    """Three rows in groups of two: the third is alone and has no credit (AReaL 1673: 3e5)."""
    groups = [[1.0, 2.0], [3.0]]
    values = np.concatenate([credit("group_normalised", g) for g in groups])
    assert abs(values).max() < 1 and values[2] == 0


def test_huge_scores_do_not_overflow():
    got = credit("group_normalised", [1e300, -1e300, 1e300])
    assert got == pytest.approx(credit("group_normalised", [1, -1, 1], eps=0.0))


def test_constant_rewards_have_no_spread_whatever_they_are():
    """A filter by mean keeps half-right groups without a signal (OpenRLHF 1270)."""
    ones = np.ones(8, bool)
    for value in (0.0, 0.5, 1.0):
        assert not has_spread(np.full(8, value), ones)
    assert has_spread(np.array([0.5] * 7 + [0.6]), ones)
    assert not has_spread(np.array([0.5] * 7 + [0.6]), np.array([True] * 7 + [False]))


finite = st.floats(-1e6, 1e6, allow_nan=False)
groups = st.lists(st.one_of(st.none(), finite), min_size=0, max_size=9)


@settings(max_examples=60, deadline=None)
@given(scores=groups)
def test_advantages_are_finite_bounded_and_centred(scores):
    count = sum(s is not None for s in scores)
    for name in ADVANTAGES:
        got = credit(name, scores)
        assert np.isfinite(got).all()
        assert all(a == 0 for a, s in zip(got, scores, strict=True) if s is None)
        if name in ("group_normalised", "group_centred", "leave_one_out"):
            assert abs(got.sum()) <= 1e-9 * max(1.0, abs(got).max(initial=0))
        if name == "group_normalised":
            # The largest standardised value of n numbers.
            assert abs(got).max(initial=0) <= max(0, count - 1) / math.sqrt(max(1, count)) + 1e-9
        if name == "mean_scaled":
            assert abs(got).max(initial=0) <= max(0, count - 1)


@settings(max_examples=30, deadline=None)
@given(
    # Whole 128ths: their sums are exact. A mean that is zero but for rounding depends on the order,
    # and mean_scaled divides by it.
    scores=st.lists(st.integers(-1280, 1280).map(lambda n: n / 128), min_size=3, max_size=8),
    seed=st.integers(0, 9),
)
def test_order_does_not_matter(scores, seed):
    order = np.random.default_rng(seed).permutation(len(scores))
    for name in ADVANTAGES:
        straight = credit(name, scores)
        mixed = credit(name, list(np.array(scores)[order]))
        assert mixed == pytest.approx(straight[order], abs=1e-6, rel=1e-6)


# Other baselines


def test_best_of_k_against_all_subsets():
    rng = np.random.default_rng(1)
    for count, k in itertools.product((3, 5, 6), (2, 3, 5)):
        scores = rng.integers(0, 4, count).astype(float)
        size = min(k, count)
        want = np.zeros(count)
        subsets = list(itertools.combinations(range(count), size))
        for subset in subsets:
            for i in subset:
                rest = max(scores[j] for j in subset if j != i)
                want[i] += max(scores[j] for j in subset) - rest
        got = best_of_k(scores, np.ones(count, bool), k)
        assert got == pytest.approx(want / len(subsets), abs=1e-12)


def test_best_of_k_is_the_gradient_of_the_expected_best():
    """A policy over two answers, p = sigmoid(t): E[sum_i A_i dlogp_i/dt] = d/dt (1 - (1-p)^k)."""
    p, count, k = 0.3, 4, 2
    expected = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=count):
        chance = math.prod(p if s else 1 - p for s in outcome)
        slopes = np.array([1 - p if s else -p for s in outcome])
        expected += chance * (best_of_k(np.array(outcome), np.ones(count, bool), k) @ slopes)
    assert expected == pytest.approx(k * (1 - p) ** (k - 1) * p * (1 - p))


def test_best_of_k_needs_two():
    with pytest.raises(ValueError, match="k >= 2"):
        best_of_k(np.array([1.0, 0.0]), np.ones(2, bool), 1)


def test_length_weighted_baseline():
    scores, lengths = np.array([1.0, 0.0, NAN, 1.0]), np.array([10, 30, 99, 0])
    got = length_weighted_baseline(scores, np.isfinite(scores), lengths)
    assert got == pytest.approx([0.75, -0.25, 0, 0])


def test_greedy_baseline():
    scores, mask = np.array([1.0, 0.25, NAN]), np.array([True, True, False])
    assert over_greedy(scores, mask, 0.5) == pytest.approx([0.5, -0.25, 0])
    assert not over_greedy(scores, mask, None).any()
    assert not over_greedy(scores, mask, NAN).any()


def test_role_baselines():
    roles = RoleBaselines(decay=0.9)
    assert roles.credit("x", np.array([1.0]), np.array([True])) == pytest.approx([0])
    both = np.array([True, True])
    assert roles.credit("x", np.array([0.0, 2.0]), both) == pytest.approx([-1, 1])
    assert roles.baselines["x"] == pytest.approx(0.9 * (0.9 * 1.0) + 0.1 * 2.0)
    again = RoleBaselines.from_state(roles.state())
    assert again == roles
    assert roles.credit("y", np.array([NAN]), np.array([True])) == pytest.approx([0])
    assert "y" not in roles.baselines  # a role's mean begins with its first score


# Several rewards


def test_each_reward_is_normalised_on_its_own():
    parts = np.array([[1.0, 0, 0, 1], [100.0, 0, 100, 0]])
    got = multi_reward(parts, np.ones(4, bool), [1, 1], eps=0)
    assert got == pytest.approx(np.sqrt(3) / 2 * np.array([2, -2, 0, 0]))
    weighted = multi_reward(parts, np.ones(4, bool), [1, 0.25], eps=0)
    assert weighted == pytest.approx(np.sqrt(3) / 2 * np.array([1.25, -1.25, -0.75, 0.75]))


def test_one_missing_part_leaves_every_other_sibling_alone():
    """One NaN made all advantages NaN and the run "succeed" (ms-swift 8123)."""
    parts = np.array([[1.0, 0, NAN, 1], [0.0, 1, 1, 0]])
    everyone = np.ones(4, bool)
    got = multi_reward(parts, everyone, [1, 1])
    assert np.isfinite(got).all()
    first = group_normalised(np.array([1.0, 0, 1]), np.ones(3, bool))
    second = group_normalised(parts[1], everyone)
    assert got[[0, 1, 3]] == pytest.approx(first + second[[0, 1, 3]])
    assert got[2] == second[2]


def test_multi_reward_batches_are_whitened():
    rng = np.random.default_rng(2)
    batch = [(rng.normal(size=(2, n)), np.ones(n, bool)) for n in (4, 3, 5)]
    batch[1][0][:, 1] = NAN
    got = gdpo(batch, [1.0, 0.5])
    assert got[1][1] == 0
    kept = np.concatenate([g[np.isfinite(p).any(0)] for g, (p, _) in zip(got, batch, strict=True)])
    assert kept.mean() == pytest.approx(0, abs=1e-12) and kept.std() == pytest.approx(1)
    with pytest.raises(ValueError, match="as many weights"):
        multi_reward(batch[0][0], batch[0][1], [1.0])


# Token-level credit


def test_rewards_before_observations_are_not_lost():
    """Returns cross masked tokens without a discount and without a reset (verl 7278)."""
    got = discounted_returns(np.array([0, 0, 1.0]), np.array([True, False, True]), 0.5)
    assert got == pytest.approx([0.5, 0, 1])


def test_masked_rewards_and_kl_change_nothing():
    """KL of tool tokens entered the returns (slime 1370)."""
    mask = np.array([True, True, False, False, True])
    kl = np.array([0.1, 0.2, 0.0, 0.0, 0.3])
    loud = np.where(mask, kl, 1e6)
    rewards = np.array([0, 0, 0, 0, 1.0])
    values = np.array([0.5, 0.1, 7.0, 7.0, 0.2])
    for other in (np.where(mask, rewards, NAN), np.where(mask, rewards, -1e9)):
        quiet = with_kl_penalty(rewards, mask, kl, 0.1)
        noisy = with_kl_penalty(other, mask, loud, 0.1)
        assert (quiet == noisy).all()
    assert quiet == pytest.approx([-0.01, -0.02, 0, 0, 1 - 0.03])
    (a,), (b,) = (reinforce_plus_plus([np.where(mask, quiet, x)], [mask]) for x in (0, 1e9))
    assert (a == b).all()
    for junk in (0.0, 1e9):
        got = generalised_advantages(np.where(mask, quiet, junk), values, mask, 0.9, 0.8)
        want = generalised_advantages(quiet, np.where(mask, values, junk), mask, 0.9, 0.8)
        assert (got[0] == want[0]).all() and (got[1] == want[1]).all()
    assert penalised_score(1.0, mask, loud, 0.1) == pytest.approx(1 - 0.06)


@pytest.mark.parametrize("gamma, lam", [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0)])
def test_gae_equals_its_definition_on_the_action_tokens(gamma, lam):
    rng = np.random.default_rng(3)
    mask = np.array([False, True, True, False, False, True, True, False])
    rewards, values = rng.normal(size=8), rng.normal(size=8)
    advantages, returns = generalised_advantages(rewards, values, mask, gamma, lam)
    r, v = rewards[mask], np.append(values[mask], 0.0)
    deltas = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
    want = [
        sum((gamma * lam) ** (j - t) * deltas[j] for j in range(t, len(r))) for t in range(len(r))
    ]
    assert advantages[mask] == pytest.approx(want)
    assert returns[mask] == pytest.approx(np.array(want) + values[mask])
    assert not advantages[~mask].any() and not returns[~mask].any()


def test_gae_without_values_is_the_return():
    mask = np.array([True, False, True, True])
    rewards = np.array([0.0, 0, 0, 1])
    advantages, _ = generalised_advantages(rewards, np.zeros(4), mask, 0.9, 1.0)
    assert advantages == pytest.approx(discounted_returns(rewards, mask, 0.9))


def test_observations_between_actions_change_nothing():
    """The same actions with and without tool output between them."""
    rewards, values = np.array([0, 0.5, 0, 1.0]), np.array([0.3, 0.2, 0.1, 0.4])
    plain = generalised_advantages(rewards, values, np.ones(4, bool), 0.9, 0.9)
    gaps = np.array([True, True, False, False, False, True, True])
    wide_r, wide_v = np.full(7, 5.0), np.full(7, 5.0)
    wide_r[gaps], wide_v[gaps] = rewards, values
    spread = generalised_advantages(wide_r, wide_v, gaps, 0.9, 0.9)
    assert spread[0][gaps] == pytest.approx(plain[0])
    assert spread[1][gaps] == pytest.approx(plain[1])


def test_turn_scores_land_on_action_tokens():
    got = token_rewards([1, 4], [0.5, 1.0], 6)
    assert got == pytest.approx([0, 0.5, 0, 0, 1, 0])
    assert token_rewards([1, 4], [None, NAN], 6).sum() == 0
    assert token_rewards([2, 2], [0.5, 0.25], 3)[2] == 0.75


def test_whitening_is_over_all_action_tokens():
    rng = np.random.default_rng(4)
    values = [rng.normal(3, 2, n) for n in (5, 9, 2)]
    masks = [rng.random(n) < 0.7 for n in (5, 9, 2)]
    got = whitened(values, masks)
    kept = np.concatenate([g[m] for g, m in zip(got, masks, strict=True)])
    assert kept.mean() == pytest.approx(0, abs=1e-12) and kept.std() == pytest.approx(1)
    assert all(not g[~m].any() for g, m in zip(got, masks, strict=True))
    loud = [np.where(m, v, 1e9) for v, m in zip(values, masks, strict=True)]
    assert all((a == b).all() for a, b in zip(whitened(loud, masks), got, strict=True))


def test_whitening_of_nothing_and_of_equal_values():
    assert whitened([], []) == []
    (flat,) = whitened([np.full(4, 0.1)], [np.ones(4, bool)])
    assert not flat.any()
    (single,) = whitened([np.array([5.0, 1.0])], [np.array([True, False])])
    assert not single.any()


def test_reinforce_plus_plus_leaves_out_the_unscored():
    rewards = [np.array([0, 0, 1.0]), np.array([0, 0.0]), np.array([9.0])]
    masks = [np.ones(3, bool), np.ones(2, bool), np.zeros(1, bool)]
    got = reinforce_plus_plus(rewards, masks)
    assert not got[2].any()
    raw = np.array([1.0, 1, 1, 0, 0])
    want = (raw - raw.mean()) / np.sqrt(raw.var() + 1e-8)
    assert np.concatenate(got[:2]) == pytest.approx(want)


def test_baseline_variant_equals_token_whitening():
    scores = [np.array([1.0, 0, NAN]), np.array([1.0, 0, 0, 0])]
    masks = [np.isfinite(s) for s in scores]
    lengths = [[3, 5, 9], [2, 2, 4, 1]]
    got = centred_then_whitened(list(zip(scores, masks, strict=True)), lengths)
    assert got[0][2] == 0
    centred = [0.5, -0.5, 0.75, -0.25, -0.25, -0.25]
    tokens = np.repeat(centred, [3, 5, 2, 2, 4, 1])
    want = (np.array(centred) - tokens.mean()) / np.sqrt(tokens.var() + 1e-8)
    assert np.concatenate([got[0][:2], got[1]]) == pytest.approx(want)
    flat = centred_then_whitened([(np.ones(3), np.ones(3, bool))], [[1, 2, 3]])
    assert not flat[0].any()


def test_process_rewards():
    steps = [[(1, 1.0), (3, 0.0)], [(2, 1.0)], [(0, None), (1, NAN)]]
    got = process_rewards(steps, [5, 3, 2], eps=0.0)
    scale = np.array([1.0, 0, 1]).std(ddof=1)
    high, low = (1 - 2 / 3) / scale, (0 - 2 / 3) / scale
    assert got[0] == pytest.approx([high + low, high + low, low, low, 0])
    assert got[1] == pytest.approx([high] * 3)
    assert not got[2].any()
    assert not process_rewards([[(0, 0.5)], [(1, 0.5)]], [1, 2])[0].any()
    assert not process_rewards([[(0, 0.5)], []], [1, 2])[0].any()


def test_one_step_at_the_end_is_plain_grpo():
    scores = [1.0, 0.0, 0.0, 1.0]
    got = process_rewards([[(2, s)] for s in scores], [3] * 4)
    want = group_normalised(np.array(scores), np.ones(4, bool))
    assert np.stack(got) == pytest.approx(np.repeat(want[:, None], 3, 1))


def test_length_adaptive_lambda():
    assert length_adaptive_lambda(100, 0.05) == pytest.approx(0.8)
    assert length_adaptive_lambda(3, 0.05) == 0 and length_adaptive_lambda(0) == 0


def test_explained_variance():
    returns, mask = [np.array([1.0, 2, 3, 99])], [np.array([True, True, True, False])]
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(returns, [np.zeros(4)], mask) == pytest.approx(0)
    assert explained_variance([np.ones(4)], [np.zeros(4)], mask) is None
    assert explained_variance([], [], []) is None
