"""Credit over a whole batch: whitening by cohort, several rewards, shaping with its state."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from educe.algorithms.advantages import centred_then_whitened, gdpo, reinforce_plus_plus
from educe.algorithms.catalogue import BUNDLES, resolve_bundle
from educe.config.algorithm_settings import ShapingSettings
from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.trainers.batch_credit import advantages_by_unit, credit_batch
from educe.trainers.credit import credit_group, has_raw_signal, rollout_metrics, training_samples
from educe.trainers.shaping import RewardShaper, ShapedGroup, shaped_group
from tests.trainers.made_groups import group, trajectory

PLUS = resolve_bundle("reinforce_plus_plus", {"kl_coefficient": 0.0})
CENTRED = BUNDLES["reinforce_plus_plus_baseline"]


def tokens(credits):
    """All action tokens' advantages of what is in the baseline."""
    return np.concatenate(
        [
            c.credits_G[i].over(t.num_completion_tokens)
            for c in credits
            for i, t in enumerate(c.group.trajectories)
            if c.in_baseline_G[i]
        ]
    )


def made(scores, lengths, **options):
    pairs = zip(scores, lengths, strict=True)
    return group([trajectory(s, (n,)) for s, n in pairs], **options)


@pytest.mark.parametrize("bundle", [PLUS, CENTRED], ids=lambda b: b.name)
def test_whitening_is_over_all_action_tokens_of_the_batch(bundle):
    groups = [made([1, 0, 0.5], [2, 5, 3]), made([0, 1], [4, 1], number=1)]
    credits = credit_batch(groups, {"d": bundle})
    whole = tokens(credits)
    assert whole.mean() == pytest.approx(0, abs=1e-12)
    assert whole.std() == pytest.approx(1, rel=1e-6)
    raw = [credit_group(g, bundle) for g in groups]
    plain = tokens(raw)
    assert np.allclose(whole, (plain - plain.mean()) / np.sqrt(plain.var() + 1e-8))


def test_the_stage_gives_what_the_published_functions_give():
    """Whole batches by ``advantages``, which know nothing of trajectories, against the stage."""
    scores, lengths = [[1.0, 0.0, 0.5], [0.0, 1.0]], [[2, 5, 3], [4, 1]]
    groups = [made(s, n, number=i) for i, (s, n) in enumerate(zip(scores, lengths, strict=True))]
    rewards, masks = [], []
    for own, sizes in zip(scores, lengths, strict=True):
        for score, size in zip(own, sizes, strict=True):
            rewards.append(np.zeros(size))
            rewards[-1][-1] = score
            masks.append(np.ones(size, bool))
    want = np.concatenate(reinforce_plus_plus(rewards, masks))
    assert np.allclose(tokens(credit_batch(groups, {"d": PLUS})), want)
    everyone = [(np.array(s), np.ones(len(s), bool)) for s in scores]
    centred = credit_batch(groups, {"d": CENTRED})
    for got, expected in zip(centred, centred_then_whitened(everyone, lengths), strict=True):
        assert np.allclose(got.advantages_G, expected)
    parts = [np.array([s, np.square(s)]) for s in scores]
    several = [(p, np.ones(p.shape[1], bool)) for p in parts]
    shaped = [ShapedGroup(p.sum(0), p, (1.0, 2.0), ("score", "square")) for p in parts]
    found = credit_batch(groups, {"d": BUNDLES["gdpo"]}, shaped)
    for got, expected in zip(found, gdpo(several, [1.0, 2.0]), strict=True):
        assert np.allclose(got.advantages_G, expected)


def test_whitening_over_samples_counts_each_completion_once():
    bundle = replace(CENTRED, whitening="samples")
    credits = credit_batch([made([1, 0, 0.25], [9, 1, 1])], {"d": bundle})
    got = np.array(credits[0].advantages_G)
    assert got.mean() == pytest.approx(0, abs=1e-12) and got.std() == pytest.approx(1, rel=1e-6)


def test_unscored_samples_are_outside_the_batchs_statistics():
    without = credit_batch([made([1, 0], [2, 3])], {"d": PLUS})
    beside = credit_batch([made([1, None, 0], [2, 50, 3])], {"d": PLUS})
    assert beside[0].advantages_G[1] == 0
    assert [beside[0].advantages_G[i] for i in (0, 2)] == list(without[0].advantages_G)


def test_a_single_scored_sibling_stays_at_zero_where_the_group_is_the_baseline():
    pair, lone = made([1, 0], [2, 3]), made([1, None], [4, 4], number=1)
    alone = credit_batch([pair], {"d": CENTRED})
    both = credit_batch([pair, lone], {"d": CENTRED})
    assert both[0].advantages_G == alone[0].advantages_G
    assert both[1].advantages_G == (0.0, 0.0)
    values = credit_batch([pair, lone], {"d": PLUS})  # no group baseline: it counts
    assert values[1].advantages_G[0] != 0


def test_a_rare_success_is_no_sign_of_unscaled_rewards():
    """One right of 450 is 21 deviations of the batch, or 449 means: the guard would go back."""
    groups = [group([1] + [0] * 449), group([100.0, 0], "u", 1)]
    for name in ("reinforce_plus_plus_baseline", "maxrl"):
        bundles = {"d": BUNDLES[name], "u": BUNDLES["dr_grpo"]}
        credits = credit_batch(groups, bundles)
        assert max(credits[0].advantages_G) > 20
        assert advantages_by_unit(credits, bundles) == [(50.0, -50.0)]


def test_equal_returns_give_nothing():
    credits = credit_batch([made([1, 1], [2, 3])], {"d": PLUS})
    assert credits[0].advantages_G == (0.0, 0.0) and not credits[0].has_signal


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus", "gdpo", "grpo"])
def test_a_domains_credit_does_not_depend_on_other_algorithms_in_the_batch(name):
    bundles = {"a": resolve_bundle(name, {"kl_coefficient": 0.0}), "b": CENTRED}
    mine = [made([1, 0, 0.5], [2, 5, 3], domain="a", number=i) for i in range(2)]
    other = made([0, 1], [30, 1], domain="b", number=2)
    streams = [[{"values": np.full(t.num_completion_tokens, 0.2)} for t in g.trajectories]
               for g in (*mine, other)]  # fmt: skip
    alone = credit_batch(mine, bundles, streams=streams[:2])
    both = credit_batch([mine[0], other, mine[1]], bundles,
                        streams=[streams[0], streams[2], streams[1]])  # fmt: skip
    for got, want in zip([both[0], both[2]], alone, strict=True):
        assert got.advantages_G == want.advantages_G


def test_token_advantages_reach_their_tokens():
    groups = [group([trajectory(1, (2, 2), turn_scores=(0.5,)), trajectory(0, (3,))])]
    credits = credit_batch(groups, {"d": PLUS})
    samples = training_samples(credits, {"d": PLUS}, 8)
    for own, sample in zip(credits[0].credits_G, samples, strict=True):
        assert (sample.streams["advantage"][sample.mask] == own.tokens_A).all()
        assert (sample.streams["advantage"][~sample.mask] == 0).all()


def test_what_the_model_said_becomes_streams():
    groups = [made([1, 0], [2, 3])]
    told = [
        {n: np.arange(k) / 10.0 for n in ("values", "policy_logprobs", "reference_logprobs")}
        for k in (2, 3)
    ]
    bundle = resolve_bundle("ppo", {"kl_coefficient": 0.1})
    credits = credit_batch(groups, {"d": bundle}, streams=[told])
    sample = training_samples(credits, {"d": bundle}, 8)[1]
    for name in ("old_values", "start_logprobs", "reference_logprobs"):
        assert sample.streams[name][sample.mask].tolist() == [0.0, 0.1, 0.2]
    assert (sample.streams["returns"][sample.mask] == credits[0].credits_G[1].returns_A).all()
    assert "proximal_logprobs" not in sample.streams  # the first update's ratio is 1


def test_steered_numbers_become_streams_of_their_algorithm_only():
    bundles = {"a": resolve_bundle("grpo", {"kl_coefficient": 0.1}, {"kl_target": 1.0})}
    bundles["b"] = BUNDLES["dapo"]
    groups = [made([1, 0], [2, 2], domain="a"), made([1, 0], [2, 2], domain="b", number=1)]
    credits = credit_batch(groups, bundles)
    samples = training_samples(credits, bundles, 8, {"grpo": {"kl_coefficient": 0.3}})
    assert [set(s.streams["kl_coefficient"]) for s in samples[:2]] == [{0.3}, {0.3}]
    assert all("kl_coefficient" not in s.streams for s in samples[2:])


# Several rewards


def two_rewards(*values):
    """Trajectories of (score, format) pairs."""
    return [trajectory(s, (2,), parts={"format": f}) for s, f in values]


def shaped_batch(groups, bundle, **settings):
    shaper = RewardShaper({"d": ShapingSettings(**settings)})
    return credit_batch(groups, {"d": bundle}, shaper.shape(groups))


def test_gdpo_normalises_each_reward_before_it_sums():
    attempts = two_rewards((1, 0), (0, 100), (1, 100), (0, 0))
    bundle = replace(BUNDLES["gdpo"], whitening="")
    (credit,) = shaped_batch([group(attempts)], bundle, parts={"format": 1.0})
    # Both rewards have the same deviations after normalising: 1, 0 and 100, 0 weigh the same.
    assert credit.advantages_G[0] == pytest.approx(0, abs=1e-4)
    assert credit.advantages_G[2] == pytest.approx(-credit.advantages_G[3])
    (summed,) = shaped_batch([group(attempts)], BUNDLES["grpo"], parts={"format": 1.0})
    assert summed.advantages_G[1] > 0.8  # a plain sum is the format's


def test_a_missing_part_leaves_every_other_advantage_alone_under_gdpo():
    """One None made all advantages NaN and the run "succeed" (ms-swift 8123)."""
    known = two_rewards((1, 0.5), (0, 1.0), (0, 0.0))
    bundle = BUNDLES["gdpo"]
    (clean,) = shaped_batch([group(known)], bundle, parts={"format": 1.0})
    broken = [*known, *two_rewards((0, None))]
    (credit,) = shaped_batch([group(broken)], bundle, parts={"format": 1.0})
    assert np.isfinite(credit.advantages_G).all() and credit.in_baseline_G[3]
    format_only = replace(bundle, whitening="")
    (left,) = shaped_batch([group(known)], format_only, parts={"format": 1.0}, score_weight=0.0)
    (right,) = shaped_batch([group(broken)], format_only, parts={"format": 1.0}, score_weight=0.0)
    assert right.advantages_G[:3] == pytest.approx(left.advantages_G)
    assert right.advantages_G[3] == 0 and clean.has_signal


def test_a_missing_part_of_a_sum_unscores_its_sample_only():
    known = two_rewards((1, 0.5), (0, 1.0))
    clean = shaped_batch([group(known)], BUNDLES["grpo"], parts={"format": 1.0})
    broken = shaped_batch(
        [group([*known, *two_rewards((1, None))])], BUNDLES["grpo"], parts={"format": 1.0}
    )
    assert broken[0].in_baseline_G == broken[0].in_loss_G == (True, True, False)
    assert broken[0].advantages_G == (*clean[0].advantages_G, 0.0)
    assert broken[0].rewards_G[2] == 1.0  # the raw score stays what it was


# Shaping


def test_without_shaping_rewards_are_the_scores():
    shaped = shaped_group(group([1, None, 0.25]), ShapingSettings())
    assert shaped.rewards_G[[0, 2]].tolist() == [1, 0.25] and np.isnan(shaped.rewards_G[1])


def test_length_repetition_and_truncation_shape_what_is_trained_on():
    attempts = [trajectory(1, (4,)), trajectory(1, (10,)), trajectory(1, (10,), truncated=True)]
    made_group = group(attempts, limit=10)
    overlong = shaped_group(made_group, ShapingSettings(overlong=1.0, overlong_tokens=5))
    assert overlong.rewards_G.tolist() == [1.0, 0.0, 0.0]
    length = shaped_group(made_group, ShapingSettings(length=0.5))
    assert length.rewards_G.tolist() == pytest.approx([0.8, 0.5, 0.5])
    cut = shaped_group(made_group, ShapingSettings(truncated=-1.0))
    assert cut.rewards_G.tolist() == [1, 1, -1]
    looping = replace(
        attempts[0],
        turns=(replace(attempts[0].turns[0], completion_token_ids=(5, 6) * 4),),
    )
    repeated = shaped_group(
        group([looping, attempts[1]], limit=10), ShapingSettings(repetition=1.0, repetition_width=2)
    )
    assert repeated.rewards_G.tolist() == pytest.approx([1 - 5 / 7, 1.0])


def test_filters_and_reports_never_see_the_shaped_reward():
    """All-wrong groups passed the filter by their lengths, and "short and wrong" was trained
    (NeMo-RL 2431)."""
    wrong = group([trajectory(0, (n,)) for n in (2, 9, 10)], limit=10)
    (credit,) = shaped_batch([wrong], BUNDLES["dapo"], overlong=1.0, overlong_tokens=5)
    assert credit.has_signal and not credit.has_spread
    assert not has_raw_signal(wrong, BUNDLES["dapo"])
    told = rollout_metrics([credit], {})
    assert told["reward"] == told["score"] == 0 and told["shaped"] < 0
    assert told["trivial_wrong"] == 1


@pytest.mark.parametrize("name", ["rloo", "opo", "remax"])
def test_a_kl_in_the_reward_is_no_signal_of_the_filter(name):
    """Groups are filtered before anything was measured, by their raw scores alone."""
    bundle = resolve_bundle(
        name, {"kl_coefficient": 0.1, "kl_place": "reward", "kl_estimator": "k1"}
    )
    greedy = 1 if bundle.needs_greedy else None
    assert has_raw_signal(group([1, 0], greedy=greedy), bundle)
    assert not has_raw_signal(group([1, 1], greedy=greedy), bundle)


def test_each_domain_may_have_its_own_shaping():
    own = DomainSettings(shaping=ShapingSettings(length=1.0))
    shaper = RewardShaper.of(ShapingSettings(score_weight=2.0), {"a": own, "b": DomainSettings()})
    groups = [group([1], "a", limit=2), group([1], "b", 1, limit=2)]
    rewards = [s.rewards_G.tolist() for s in shaper.shape(groups)]
    assert rewards == [[0.0], [2.0]]


def test_a_part_that_no_score_has_is_an_error():
    shaper = RewardShaper({"d": ShapingSettings(parts={"formt": 1.0})})
    with pytest.raises(EduceError, match=r"names 'formt', but no score of d has .* it has format"):
        shaper.shape([group(two_rewards((1, 1)))])


def test_normalisation_is_by_domain_and_its_state_goes_on():
    """Running statistics looked up under one literal key failed for any domain (ROLL)."""
    settings = ShapingSettings(normalise=True, decay=0.5, limit=2.0)
    shaper = RewardShaper({"a": settings, "b": settings})
    batches = [[group([0, 1], "a", 2 * i), group([100, 300], "b", 2 * i + 1)] for i in range(3)]
    first = shaper.shape(batches[0])
    assert first[0].rewards_G.tolist() == pytest.approx(first[1].rewards_G.tolist())
    assert abs(first[0].rewards_G).max() <= 2.0
    kept = json.loads(json.dumps(shaper.state()))
    again = RewardShaper({"a": settings, "b": settings})
    again.restore(kept)
    for batch in batches[1:]:
        for left, right in zip(shaper.shape(batch), again.shape(batch), strict=True):
            assert (left.rewards_G == right.rewards_G).all()


def test_the_greedy_baseline_is_shaped_like_the_others_but_not_counted():
    settings = ShapingSettings(length=0.5, normalise=True)
    attempts = [trajectory(1, (10,)), trajectory(0, (10,))]
    made_group = group(attempts, greedy=trajectory(1, (5,)), limit=10)
    shaper = RewardShaper({"d": settings})
    (shaped,) = shaper.shape([made_group])
    assert shaper.scales["d"].mean == pytest.approx(0.0)  # of 0.5 and -0.5; 0.75 is the baseline
    (credit,) = credit_batch([made_group], {"d": BUNDLES["remax"]}, [shaped])
    deviation = shaper.scales["d"].deviation
    assert credit.advantages_G[:2] == pytest.approx((-0.25 / deviation, -1.25 / deviation))
