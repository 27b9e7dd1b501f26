"""From scored groups to samples: masks, denominators, shares of domains, what is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from educe.algorithms.catalogue import BUNDLES
from educe.core.types import (
    Fault,
    Group,
    Message,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
)
from educe.trainers.credit import credit_group, losses_of, rollout_metrics, training_samples

PROMPT = (7, 8, 9)


def turn(length, context=PROMPT, stop=StopReason.END, temperature=1.0):
    return Turn(
        context, tuple(range(20, 20 + length)), (-1.0,) * length, (0,) * length, stop, temperature
    )


def group(scores, lengths=None, domain="d", number=0, truncated=()):
    lengths = lengths or [2] * len(scores)
    trajectories = tuple(
        Trajectory(
            number,
            i,
            (Message("user", "?"),),
            (turn(n, stop=StopReason.LENGTH if i in truncated else StopReason.END),),
            Score.unscored(Fault.GRADER, "lost") if s is None else Score.graded(s),
        )
        for i, (s, n) in enumerate(zip(scores, lengths, strict=True))
    )
    request = TaskRequest(number, domain, Split.TRAIN, number, len(scores))
    task = Task(domain, Split.TRAIN, number, (Message("user", "?"),))
    return Group(request, task, trajectories)


def samples_of(groups, bundles, max_length=10):
    credits = [credit_group(g, bundles[g.request.domain]) for g in groups]
    return training_samples(credits, bundles, max_length)


def mass(samples):
    """Weight times trained tokens: the share of the loss."""
    return sum(s.streams["weight"][0] * s.num_trained for s in samples)


def test_unscored_siblings_are_outside_both_masks():
    credit = credit_group(group([1, 0, None, 1]), BUNDLES["grpo"])
    assert credit.in_baseline_G == credit.in_loss_G == (True, True, False, True)
    alone = credit_group(group([1, 0, 1]), BUNDLES["grpo"])
    assert credit.advantages_G[2] == 0
    assert [credit.advantages_G[i] for i in (0, 1, 3)] == list(alone.advantages_G)


def test_a_nan_reward_is_an_unscored_sibling():
    broken = group([1, 0, 1])
    trajectories = (
        *broken.trajectories,
        replace(broken.trajectories[0], score=Score(float("nan"))),
    )
    credit = credit_group(replace(broken, trajectories=trajectories), BUNDLES["grpo"])
    assert credit.advantages_G == (*credit_group(broken, BUNDLES["grpo"]).advantages_G, 0.0)
    assert not credit.in_loss_G[3]


@pytest.mark.parametrize("scores", [[0.5] * 8, [1] * 4, [0] * 4, [None] * 7 + [1], [None] * 3])
def test_groups_without_a_spread_have_no_signal(scores):
    credit = credit_group(group(scores), BUNDLES["dapo"])
    assert not credit.has_signal and not any(credit.advantages_G)
    assert samples_of([group(scores)], {"d": BUNDLES["dapo"]}) == []


def test_unscored_siblings_do_not_dilute_the_denominators():
    with_lost = samples_of([group([1, 0, None], [2, 3, 5])], {"d": BUNDLES["dapo"]})
    without = samples_of([group([1, 0], [2, 3])], {"d": BUNDLES["dapo"]})
    for a, b in zip(with_lost, without, strict=True):
        assert (a.streams["weight"] == b.streams["weight"]).all()
        assert (a.streams["advantage"] == b.streams["advantage"]).all()


def test_truncated_completions_leave_the_loss_but_not_the_counts():
    bundles = {"d": BUNDLES["dapo"]}
    samples = samples_of([group([1, 0, 0], [2, 3, 5], truncated=[2])], bundles)
    assert len(samples) == 2
    assert samples[0].streams["weight"][0] == pytest.approx(1 / 10)
    whole = credit_group(group([1, 0, 0], [2, 3, 5]), BUNDLES["dapo"]).advantages_G
    assert samples[0].streams["advantage"][0] == whole[0]  # still in the baseline


def test_idle_samples_are_left_out_unless_something_else_pulls():
    groups = [group([1, 1], number=0), group([1, 0], number=1)]
    for change, count in (({}, 2), ({"kl_coefficient": 0.1}, 4), ({"entropy_coefficient": 0.1}, 4)):
        samples = samples_of(groups, {"d": replace(BUNDLES["grpo"], **change)})
        assert len(samples) == count
        assert samples[-1].streams["weight"][0] == pytest.approx(1 / 8)  # all four are counted


@pytest.mark.parametrize("name", ["grpo", "ppo", "gspo"])
def test_any_algorithm_may_leave_truncated_completions_out_and_dapo_keep_them(name):
    bundle = replace(BUNDLES[name], mask_truncated=True)
    streams = [{"values": np.zeros(2)}] * 3
    credit = credit_group(group([1, 0, 0], truncated={1}), bundle, streams=streams)
    assert credit.in_loss_G == (True, False, True) and credit.in_baseline_G == (True, True, True)
    kept = replace(BUNDLES["dapo"], mask_truncated=False)
    assert credit_group(group([1, 0], truncated={1}), kept).in_loss_G == (True, True)


def test_each_row_keeps_its_own_reward():
    """Filtered rewards were overwritten by unfiltered ones (NeMo-RL 3794)."""
    groups = [group([1, 1], number=0), group([0.25, 0.75], [3, 4], number=1)]
    samples = samples_of(groups, {"d": BUNDLES["dr_grpo"]})
    assert [s.num_trained for s in samples] == [3, 4]
    assert [s.streams["advantage"][0] for s in samples] == pytest.approx([-0.25, 0.25])
    assert [s.group for s in samples] == [1, 1]


# The others, and advantages that need more than scores: test_mixed_domains.
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo", "maxrl"])
def test_domains_share_the_loss_by_their_prompts(name):
    """Whatever the lengths of the other domain's completions."""
    bundles = {"a": BUNDLES[name], "b": BUNDLES["grpo" if name != "grpo" else "dapo"]}
    short = group([1, 0], [2, 2], "a", 0)
    others = [group([1, 0], [n, n], "b", i) for i, n in ((1, 9), (2, 9), (3, 4))]
    mixed = [s for s in samples_of([short, *others], bundles) if s.origin == "a"]
    alone = samples_of([short], bundles)
    assert mass(mixed) == pytest.approx(mass(alone) / 4)
    for a, b in zip(mixed, alone, strict=True):
        assert (a.streams["advantage"] == b.streams["advantage"]).all()
        assert np.allclose(a.streams["weight"] * 4, b.streams["weight"])


def test_domains_of_one_bundle_are_one_cohort():
    bundles = {"a": BUNDLES["dapo"], "b": BUNDLES["dapo"]}
    samples = samples_of([group([1, 0], [2, 2], "a"), group([1, 0], [6, 6], "b", 1)], bundles)
    assert {s.streams["weight"][0] for s in samples} == {1 / 16}
    assert mass(samples) == pytest.approx(1)


def test_losses_are_found_by_what_samples_name():
    bundles = {"a": BUNDLES["grpo"], "b": replace(BUNDLES["grpo"], clip_high=0.2000001)}
    samples = samples_of([group([1, 0], domain="a"), group([1, 0], domain="b", number=1)], bundles)
    losses = losses_of(bundles)
    assert len(losses) == 2 and {s.loss for s in samples} == set(losses)


def test_bypass_takes_the_behaviour_as_proximal():
    by_name = {n: samples_of([group([1, 0])], {"d": BUNDLES[n]}) for n in ("grpo", "dppo_tv")}
    assert "proximal_logprobs" not in by_name["grpo"][0].streams
    streams = by_name["dppo_tv"][0].streams
    assert (streams["proximal_logprobs"] == streams["behaviour_logprobs"]).all()


def test_lmax_is_each_requests_own_limit_whoever_else_is_in_the_batch():
    """One number for a batch would make a domain's gradient depend on its neighbours' limits."""
    bundles = {"a": BUNDLES["dr_grpo"], "b": BUNDLES["dr_grpo"]}
    one, two = group([1, 0], domain="a"), group([1, 0], domain="b", number=1)
    two = replace(two, request=replace(two.request, max_completion_tokens=512, max_turns=2))
    alone, other = (samples_of([g], bundles, max_length=0) for g in (one, two))
    both = samples_of([one, two], bundles, max_length=0)
    assert alone[0].streams["weight"][0] == pytest.approx(1 / (2 * 128))
    assert other[0].streams["weight"][0] == pytest.approx(1 / (2 * 1024))
    halves = [s.streams["weight"][0] / 2 for s in (alone[0], other[0])]
    assert [s.streams["weight"][0] for s in both[::2]] == pytest.approx(halves)
    given = samples_of([one], bundles, max_length=64)
    assert given[0].streams["weight"][0] == pytest.approx(1 / (2 * 64))


def test_a_trajectory_without_turns_counts_nothing():
    lost = group([1, 0, 0])
    empty = replace(lost.trajectories[2], turns=())
    lost = replace(lost, trajectories=(*lost.trajectories[:2], empty))
    samples = samples_of([lost], {"d": BUNDLES["dapo"]})
    assert len(samples) == 2 and samples[0].streams["weight"][0] == pytest.approx(1 / 4)


def test_several_turns_weigh_by_all_their_tokens_and_observations_are_not_trained():
    first = turn(2)
    grown = PROMPT + first.completion_token_ids + (50, 51, 52)
    long = group([1, 0])
    both = replace(long.trajectories[0], turns=(first, turn(3, context=grown)))
    long = replace(long, trajectories=(both, long.trajectories[1]))
    samples = samples_of([long], {"d": BUNDLES["grpo"]})
    assert samples[0].mask.tolist() == [False] * 3 + [True] * 2 + [False] * 3 + [True] * 3
    assert samples[0].streams["weight"][0] == pytest.approx(1 / (2 * 5))


def test_metrics_count_what_was_lost():
    groups = [group([1, None, 0], number=0), group([None, 1], number=1), group([1, 1], number=2)]
    told = rollout_metrics([credit_group(g, BUNDLES["grpo"]) for g in groups], {"d": 0.5})
    assert told["unscored"] == pytest.approx(2 / 7)
    assert told["lone_scored"] == pytest.approx(1 / 3)
    assert told["reward"] == pytest.approx(4 / 5) and told["score"] == pytest.approx(0.6)
    assert told["trivial_right"] == told["has_signal"] == told["domain/d/has_signal"] == 0.5
