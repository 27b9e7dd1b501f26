"""Credit by every algorithm: who gets what, and what changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from educe.algorithms.advantages import generalised_advantages, group_normalised
from educe.algorithms.catalogue import BUNDLES, resolve_bundle
from educe.trainers.batch_credit import credit_batch, value_metrics
from educe.trainers.credit import credit_group, has_raw_signal, rollout_metrics, training_samples
from tests.trainers.made_groups import group, trajectory

NAMES = sorted(BUNDLES)
GROUPED = [n for n in NAMES if BUNDLES[n].needs_group]


def measured(of, seed=0):
    """What a model might say about the action tokens of a group."""
    rng = np.random.default_rng(seed)
    return [
        {
            "policy_logprobs": rng.normal(-1, 0.3, t.num_completion_tokens),
            "reference_logprobs": rng.normal(-1, 0.3, t.num_completion_tokens),
            "values": rng.normal(0, 0.3, t.num_completion_tokens),
        }
        for t in of.trajectories
    ]


def credit(attempts, name, *, seed=0, streams=None, **changes):
    bundle = replace(BUNDLES[name], **changes)
    greedy = 0.5 if bundle.needs_greedy else None
    made = group(attempts, greedy=greedy)
    return credit_group(made, bundle, streams=streams or measured(made, seed))


# The edge cases, for every algorithm


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("scores", [[1] * 4, [0] * 4, [0.1 + 0.2, 0.3, 0.3], [None] * 3, [None, 1]])
def test_without_a_spread_a_group_baseline_gives_exactly_nothing(name, scores):
    """All equal, equal up to rounding, wholly unscored, one scored sibling (TRL 5773)."""
    found = credit(scores, name)
    assert found.advantages_G == (0.0,) * len(scores) and not found.has_signal


@pytest.mark.parametrize("name", NAMES)
def test_nobody_scored_trains_nobody(name):
    found = credit([None, None], name)
    assert not any(found.in_loss_G) and not any(found.in_baseline_G)
    assert training_samples([found], {"d": BUNDLES[name]}, 8) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_unscored_sibling_changes_nothing_for_the_others(name):
    """A None counted as 0 shifts its siblings (TRL 5902); one NaN takes all (ms-swift 8123)."""
    lengths = [(2,), (3,), (5,), (4,)]
    attempts = [trajectory(s, n) for s, n in zip([1, 0, None, 0.5], lengths, strict=True)]
    streams = measured(group(attempts, greedy=0.5 if BUNDLES[name].needs_greedy else None))
    got = credit(attempts, name, streams=streams)
    kept = [0, 1, 3] + ([4] if BUNDLES[name].needs_greedy else [])
    alone = credit([attempts[i] for i in (0, 1, 3)], name, streams=[streams[i] for i in kept])
    assert got.advantages_G[2] == 0 and not got.in_loss_G[2]
    assert [got.advantages_G[i] for i in (0, 1, 3)] == list(alone.advantages_G[:3])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spread", [1e-3, 1e-7, 1e-9])
def test_a_tiny_spread_stays_bounded(name, spread):
    found = credit([0.5, 0.5 + spread, 0.5, 0.5 - spread], name)
    assert all(abs(a) <= 2.0 for a in found.advantages_G)


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_different_sizes_are_credited_by_themselves(name):
    """Fixed strides shift every later group once one has lost members (AReaL 1419, 1673)."""
    scores = [[1, 0, 1, 0], [0, 1, 0.5], [1, 2, 3]]
    made = [group(s, number=i) for i, s in enumerate(scores)]
    bundle = replace(BUNDLES[name], whitening="")
    together = credit_batch(made, {"d": bundle})
    for got, alone in zip(together, made, strict=True):
        assert got.advantages_G == credit_group(alone, bundle).advantages_G
        assert max(abs(a) for a in got.advantages_G) <= 4


# Observations


@pytest.mark.parametrize("name", NAMES)
def test_observation_tokens_change_nothing(name):
    """Rewards lost before tool replies (verl 7278), KL of tool tokens in returns (slime 1370)."""
    results = []
    for gap in (1, 30):
        attempts = [
            trajectory(s, (2, 3, 1), turn_scores=(0.5, 0.1), gap=gap) for s in (1.0, 0.0, 0.25)
        ]
        made = group(
            attempts, greedy=trajectory(0.5) if BUNDLES[name].needs_greedy else None, max_turns=3
        )
        found = credit_group(made, BUNDLES[name], streams=measured(made))
        samples = training_samples([found], {"d": BUNDLES[name]})
        results.append([(s.mask, s.streams) for s in samples])
    for (mask, streams), (longer, others) in zip(*results, strict=True):
        assert len(longer) > len(mask) and mask.sum() == longer.sum()
        for key in streams:
            if key not in ("behaviour_logprobs", "temperature"):
                assert (streams[key][mask] == others[key][longer]).all(), key


# Token by token


def test_returns_cross_turns_and_keep_rewards_before_observations():
    attempts = [trajectory(1.0, (2, 2), turn_scores=(0.5,)), trajectory(0.0, (3,))]
    bundle = resolve_bundle("reinforce_plus_plus", {"gamma": 0.5, "kl_coefficient": 0.0})
    found = credit_group(group(attempts), bundle)
    # The first turn's 0.5 is on its last action token, the outcome on the very last.
    assert found.credits_G[0].tokens_A.tolist() == [0.375, 0.75, 0.5, 1.0]
    assert found.credits_G[1].tokens_A.tolist() == [0, 0, 0]


def test_gae_is_over_action_tokens_with_the_kl_in_the_reward():
    made = group([trajectory(1.0, (2, 3)), trajectory(0.0, (4,))])
    streams = measured(made)
    bundle = resolve_bundle("ppo", {"kl_coefficient": 0.1, "gamma": 0.9, "lam": 0.8})
    found = credit_group(made, bundle, streams=streams)
    for own, told, score in zip(found.credits_G, streams, (1.0, 0.0), strict=True):
        rewards = -0.1 * (told["policy_logprobs"] - told["reference_logprobs"])
        rewards[-1] += score
        everything = np.ones(len(rewards), bool)
        want = generalised_advantages(rewards, told["values"], everything, 0.9, 0.8)
        assert np.allclose(own.tokens_A, want[0]) and np.allclose(own.returns_A, want[1])
    without = credit_group(made, bundle, streams=streams, kl_coefficient=0.0)
    assert without.advantages_G != found.advantages_G


def test_length_adaptive_lambda_leaves_the_returns_unbiased():
    made = group([trajectory(1.0, (40,)), trajectory(0.0, (40,))])
    streams = measured(made)
    found = credit_group(made, resolve_bundle("ppo", {"lam_alpha": 0.05}), streams=streams)
    # lambda 1: the return of every token is the outcome; lambda 0.5 shows in the advantages.
    assert np.allclose(found.credits_G[0].returns_A, 1.0)
    rewards = np.zeros(40)
    rewards[-1] = 1.0
    want, _ = generalised_advantages(rewards, streams[0]["values"], np.ones(40, bool), 1.0, 0.5)
    assert np.allclose(found.credits_G[0].tokens_A, want)


def test_credit_without_what_it_needs_is_an_error():
    with pytest.raises(ValueError, match="needs values of every action token"):
        credit_group(group([1, 0]), BUNDLES["ppo"])
    with pytest.raises(ValueError, match="needs a greedy sample"):
        credit_group(group([1, 0]), BUNDLES["remax"])


def test_kl_in_the_reward_of_one_number_is_a_sum_over_tokens():
    """RLOO: s - beta sum of log ratios, then the mean of the others."""
    made = group([trajectory(1.0, (3,)), trajectory(0.0, (2,)), trajectory(0.5, (1,))])
    streams = measured(made)
    bundle = resolve_bundle("rloo", {"kl_coefficient": 0.2})
    got = credit_group(made, bundle, streams=streams).advantages_G
    gaps = [(s["policy_logprobs"] - s["reference_logprobs"]).sum() for s in streams]
    scores = np.array([1.0, 0.0, 0.5]) - 0.2 * np.array(gaps)
    want = [s - (scores.sum() - s) / 2 for s in scores]
    assert got == pytest.approx(want)


# Process rewards


def test_turns_and_steps_are_normalised_together():
    attempts = [
        trajectory(1.0, (2, 2), turn_scores=(1.0, 0.0)),
        trajectory(0.0, (3,), steps=[(0, 1.0), (2, 0.0)]),
    ]
    found = credit_group(group(attempts), BUNDLES["process_grpo"])
    scale = np.std([1, 0, 1, 0], ddof=1) + 1e-6
    half = 0.5 / scale
    assert found.credits_G[0].tokens_A.tolist() == pytest.approx([0, 0, -half, -half])
    assert found.credits_G[1].tokens_A.tolist() == pytest.approx([0, -half, -half])


def test_without_steps_process_rewards_are_plain_grpo():
    scores = [1.0, 0.0, 0.5, 0.0]
    found = credit_group(group(scores), BUNDLES["process_grpo"])
    want = group_normalised(np.array(scores), np.ones(4, bool))
    assert np.allclose([c.tokens_A for c in found.credits_G], want[:, None])


def test_a_step_without_a_value_adds_nothing():
    known = [trajectory(1, (3,), steps=[(0, 1.0), (2, 0.0)]), trajectory(0, (3,), steps=[(2, 1.0)])]
    extra = trajectory(1, (3,), steps=[(0, 1.0), (1, None), (1, float("nan")), (2, 0.0)])
    a = credit_group(group(known), BUNDLES["process_grpo"])
    b = credit_group(group([extra, known[1]]), BUNDLES["process_grpo"])
    assert [c.tokens_A.tolist() for c in a.credits_G] == [c.tokens_A.tolist() for c in b.credits_G]


# Baselines of another kind


def test_remax_takes_the_greedy_score_off_and_never_trains_it():
    made = group([1.0, 0.0, 0.25], greedy=0.5)
    found = credit_group(made, BUNDLES["remax"])
    assert found.advantages_G == (0.5, -0.5, -0.25, 0.0)
    assert found.in_loss_G == found.in_baseline_G == (True, True, True, False)
    assert len(training_samples([found], {"d": BUNDLES["remax"]}, 8)) == 3
    told = rollout_metrics([found], {})
    assert told["reward"] == pytest.approx(1.25 / 3) and told["greedy_reward"] == 0.5
    lone = credit_group(group([1.0], greedy=0.0), BUNDLES["remax"])
    assert lone.advantages_G == (1.0, 0.0)  # a group of one has a baseline


def test_remax_without_a_scored_greedy_sample_trains_nothing():
    found = credit_group(group([1.0, 0.0], greedy=trajectory(None)), BUNDLES["remax"])
    assert not found.has_signal


def test_opo_weighs_its_baseline_by_length():
    attempts = [trajectory(1.0, (6,)), trajectory(0.0, (2,))]
    assert credit_group(group(attempts), BUNDLES["opo"]).advantages_G == (0.25, -0.75)


def test_pkpo_takes_k():
    scores = [3.0, 1.0, 2.0]
    best_of_two = credit_group(group(scores), resolve_bundle("pkpo", {"k": 2})).advantages_G
    # Of the pairs (3,1), (3,2), (2,1): 3 adds 2 and 1, 2 adds 1.
    assert best_of_two == pytest.approx((3 / 3, 0.0, 1 / 3))
    whole = credit_group(group(scores), resolve_bundle("pkpo", {"k": 3})).advantages_G
    assert whole == credit_group(group(scores), BUNDLES["pass_at_k"]).advantages_G


# The filter of dynamic sampling


@pytest.mark.parametrize("name", GROUPED)
def test_equal_raw_scores_are_no_signal(name):
    """Filters by the mean keep graded groups without a spread (OpenRLHF 1270)."""
    assert not has_raw_signal(group([0.5] * 8), BUNDLES[name])
    assert has_raw_signal(group([1, 0, 0, 0]), BUNDLES[name])


def test_baselines_outside_the_group_see_a_signal_in_equal_scores():
    for name in ("ppo", "reinforce_plus_plus"):
        assert has_raw_signal(group([0, 0]), BUNDLES[name])
        assert not has_raw_signal(group([None, None]), BUNDLES[name])
    kl = resolve_bundle("rloo", {"kl_coefficient": 0.1})
    assert has_raw_signal(group([1, 0]), kl)  # asked before anything is measured


# Values


def test_explained_variance():
    attempts = [trajectory(1.0, (2,)), trajectory(0.0, (2,))]
    made = group(attempts)
    bundle = resolve_bundle("ppo", {"lam": 1.0})

    def explained(values):
        streams = [{"values": np.full(2, v)} for v in values]
        credits = [credit_group(made, bundle, streams=streams)]
        return value_metrics(credits)["explained_variance"]

    assert explained([1.0, 0.0]) == pytest.approx(1.0)
    assert explained([0.3, 0.3]) == pytest.approx(0.0)
    assert explained([0.0, 1.0]) < 0
    assert value_metrics([credit_group(made, BUNDLES["grpo"])]) == {}
