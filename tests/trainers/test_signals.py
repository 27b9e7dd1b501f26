"""What the model and the reference say before credit: by rank, by adapter, after a refresh."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from educe.algorithms.catalogue import BUNDLES, resolve_bundle
from educe.algorithms.kl_control import AdaptiveKL
from educe.config.algorithm_settings import AlgorithmSettings, ExplorationSettings
from educe.config.settings import DomainSettings, OptimizerSettings, ShapingSettings
from educe.core.metrics import Tally
from educe.models.load import load
from educe.models.tiny import save_tiny
from educe.models.value_head import ValueHead
from educe.preflight.plan import bundle_of
from educe.rollout.packing import trajectory_sequences
from educe.trainers.batch_credit import CreditStage
from educe.trainers.coefficients import Coefficients
from educe.trainers.reference_policy import FrozenCopy, WithoutAdapter
from educe.trainers.shaping import RewardShaper
from educe.trainers.signals import action_streams
from educe.trainers.step import TrainerState, fill_logprobs
from tests.trainers.made_groups import group, trajectory

PPO = resolve_bundle("ppo", {"kl_coefficient": 0.1})


class ThreadRanks:
    """Ranks that are threads of this process; gathers in rank order."""

    def __init__(self, size):
        self.barrier_of, self.box = threading.Barrier(size), [None] * size
        self.world_size = size

    def of(self, rank):
        ranks = self

        class Rank:
            world_size = ranks.world_size

            def __init__(self):
                self.rank = rank

            def gather(self, value):
                ranks.box[rank] = value
                ranks.barrier_of.wait(60)
                everything = list(ranks.box)
                ranks.barrier_of.wait(60)
                return everything

        return Rank()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("m"), dtype="float64", seed=3)
    return load(str(folder), dtype="float64")


def state_of(model, **options) -> TrainerState:
    head = ValueHead(model.head_weight().shape[1], dtype=torch.float64)
    with torch.no_grad():
        head.outer.weight.fill_(0.1)
    settings = OptimizerSettings(micro_batch_tokens=40)
    return TrainerState.create(model, settings, 1e-3, value_head=head, **options)


def batch():
    first = group(
        [trajectory(1.0, (2, 3)), trajectory(0.0, (4,)), trajectory(None, (2,))], max_turns=2
    )
    second = group([trajectory(0.5, (1,)), trajectory(0.25, (6,))], number=1, greedy=1.0)
    return [first, second]


def equal(a, b):
    return all(
        x.keys() == y.keys() and all(np.allclose(x[n], y[n], atol=1e-12) for n in x)
        for left, right in zip(a, b, strict=True)
        for x, y in zip(left, right, strict=True)
    )


def test_who_is_measured_and_what(model):
    reference = FrozenCopy(model)
    model.causal.requires_grad_(True)
    found = action_streams(state_of(model), reference, batch(), {"d": PPO})
    assert found[0][2] == {} and found[1][2] == {}  # unscored; greedy
    lengths = [len(s["values"]) for own in found for s in own if s]
    assert lengths == [5, 4, 1, 6]
    for own in found:
        for streams in own:
            if streams:
                assert np.array_equal(streams["policy_logprobs"], streams["reference_logprobs"])
    assert action_streams(state_of(model), None, batch(), {"d": BUNDLES["grpo"]}) == [
        [{}, {}, {}],
        [{}, {}, {}],
    ]


def test_two_ranks_measure_what_one_does(model):
    alone = action_streams(state_of(model), FrozenCopy(model), batch(), {"d": PPO})
    ranks = ThreadRanks(2)
    results: list = [None, None]

    def work(rank):
        state = state_of(model, collectives=ranks.of(rank))
        results[rank] = action_streams(state, FrozenCopy(model), batch(), {"d": PPO})

    threads = [threading.Thread(target=work, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert equal(results[0], alone) and equal(results[1], alone)


def test_a_kl_in_the_reward_needs_a_reference(model):
    with pytest.raises(RuntimeError, match="needs a reference policy"):
        action_streams(state_of(model), None, batch(), {"d": PPO})


def test_values_are_of_the_state_before_each_token(model):
    """The value of a token must not see the token: other completions of the state agree."""
    made = group([trajectory(1.0, (3,)), trajectory(0.0, (3,))])
    other = replace(
        made.trajectories[1],
        turns=(replace(made.trajectories[1].turns[0], completion_token_ids=(20, 99, 98)),),
    )
    made = replace(made, trajectories=(made.trajectories[0], other))
    (found,) = action_streams(state_of(model), None, [made], {"d": BUNDLES["ppo"]})
    same, differs = (np.abs(found[0]["values"] - found[1]["values"]) < 1e-12, [True, True, False])
    assert same.tolist() == differs


def test_an_adapter_switched_off_is_the_base(tmp_path):
    folder = str(save_tiny(tmp_path / "m", seed=5))
    base = load(folder)
    tuned = load(folder, lora={"rank": 4, "alpha": 8.0, "targets": "all-linear", "seed": 0})
    with torch.no_grad():
        for name, parameter in tuned.trainable():
            if "lora_B" in name:
                parameter.fill_(0.05)
    state = TrainerState.create(tuned, OptimizerSettings(), 1e-3)
    samples = {n: _samples() for n in ("off", "base", "tuned")}
    WithoutAdapter().fill(state, samples["off"], "x")
    fill_logprobs(base, samples["base"], "x", 4096)
    fill_logprobs(tuned, samples["tuned"], "x", 4096)
    values = {n: s[0].streams["x"][s[0].mask] for n, s in samples.items()}
    assert np.allclose(values["off"], values["base"], atol=1e-6)
    assert not np.allclose(values["tuned"], values["base"], atol=1e-3)
    assert all(p.requires_grad for _, p in tuned.trainable())  # it is back on
    with pytest.raises(RuntimeError, match="cannot be refreshed"):
        WithoutAdapter().refresh(state)
    copy = FrozenCopy(load(folder))
    copy.refresh(state)  # merges the adapters into the copy
    refreshed = _samples()
    copy.fill(state, refreshed, "x")
    assert np.allclose(refreshed[0].streams["x"][refreshed[0].mask], values["tuned"], atol=1e-5)
    restored = FrozenCopy(load(folder))
    restored.restore(state)
    again = _samples()
    restored.fill(state, again, "x")
    assert np.array_equal(again[0].streams["x"], refreshed[0].streams["x"], equal_nan=True)


def _samples():
    from educe.rollout.packing import TrainingSample

    ((tokens, mask, _, temperature),) = trajectory_sequences(trajectory(1.0, (5,)))
    return [TrainingSample(tokens, mask, {"temperature": temperature}, 0, 0, "")]


# Coefficients


def tally_of(**means):
    tally = Tally()
    for name, value in means.items():
        tally.mean(f"domain/d/{name}", value)
    return tally


def test_coefficients_follow_their_own_algorithms_domains():
    bundle = resolve_bundle("grpo", {"kl_coefficient": 0.1}, {"kl_target": 0.1})
    other = resolve_bundle("dapo", options={"entropy_target": 1.0})
    exploration = ExplorationSettings(entropy_target=1.0, entropy_step=0.01)
    settings = AlgorithmSettings(kl={"target": 0.1, "horizon": 100})
    bundles = {"d": bundle, "e": other}
    steered = Coefficients.of(bundles.values(), settings, exploration)
    steered.observe([tally_of(kl_k3=0.2, entropy=0.1)], bundles, {"grpo": 50, "dapo": 9})
    want = AdaptiveKL(0.1, 0.1, 100.0)
    assert steered.kl_of(bundle) == want.update(0.2, 50) == pytest.approx(0.1 * 1.1)
    assert steered.kl_of(other) == 0
    assert steered.streams() == {
        "grpo": {"kl_coefficient": steered.kl_of(bundle)},
        "dapo": {"entropy_coefficient": 0.0},  # its domain was not in the tallies
    }
    again = Coefficients.of(bundles.values(), settings, exploration)
    again.restore(steered.state())
    assert again.streams() == steered.streams()
    steered.observe([], bundles, {})
    assert again.streams() == steered.streams()


def test_the_recipe_steers_only_what_it_names():
    from educe.config.settings import Recipe

    recipe = Recipe.model_validate(
        {
            "algorithm": {"name": "grpo", "kl_coefficient": 0.1, "kl": {"target": 0.2}},
            "rl": {"exploration": {"entropy_target": 0.7}},
        }
    )
    run = bundle_of(recipe, DomainSettings())
    other = bundle_of(recipe, DomainSettings(algorithm="ppo"))
    assert run.option("kl_target", 0.0) == 0.2 and other.option("kl_target", 0.0) == 0.0
    assert run.option("entropy_target", 0.0) == other.option("entropy_target", 0.0) == 0.7


# The stage


def test_the_stage_gives_every_rank_the_same_credit_and_goes_on_from_its_state(model):
    def stage():
        return CreditStage(
            state_of(model),
            {"d": PPO},
            RewardShaper.of(ShapingSettings(normalise=True), {"d": DomainSettings()}),
            Coefficients.of([PPO], AlgorithmSettings(), ExplorationSettings()),
            FrozenCopy(model),
        )

    first = stage()
    first.credit(batch())
    other = stage()
    other.restore(first.progress())
    for left, right in zip(first.credit(batch()), other.credit(batch()), strict=True):
        assert left.advantages_G == right.advantages_G and left.shaped_G[:2] == right.shaped_G[:2]


def test_the_steered_coefficient_is_the_one_that_leaves_the_reward(tmp_path, model):
    """The controller's number of now, not the one that the recipe began with."""
    bundle = resolve_bundle("ppo", {"kl_coefficient": 0.1}, {"kl_target": 0.1})
    folder = save_tiny(tmp_path / "other", dtype="float64", seed=9)
    stage = CreditStage(
        state_of(model),
        {"d": replace(bundle, whitening="")},
        RewardShaper.of(ShapingSettings(), {"d": DomainSettings()}),
        Coefficients.of([bundle], AlgorithmSettings(), ExplorationSettings()),
        FrozenCopy(load(str(folder), dtype="float64")),
    )
    before = stage.credit(batch())[0].credits_G[0]
    stage.coefficients.kl["ppo"].coefficient = 0.3
    streams = stage.credit(batch())[0].streams_G[0]
    after = stage.credit(batch())[0].credits_G[0]
    gap = streams["policy_logprobs"] - streams["reference_logprobs"]
    assert np.abs(gap).max() > 0.01
    assert before.returns_A is not None and after.returns_A is not None
    # The last action token's return is its reward: the score less the coefficient times k1.
    assert before.returns_A[-1] == pytest.approx(1.0 - 0.1 * gap[-1])
    assert after.returns_A[-1] == pytest.approx(1.0 - 0.3 * gap[-1])


def test_domains_of_several_algorithms_are_measured_once(model, monkeypatch):
    """One forward a sequence says log-probabilities and values, whoever reads them."""
    from educe.trainers import signals

    forwards, asked = [], []
    plain_rows, plain_fill = signals.trained_rows, FrozenCopy.fill

    def rows(policy, pack, dtype):
        forwards.extend((s.origin, s.sequence) for s, _ in pack.rows)
        return plain_rows(policy, pack, dtype)

    def fill(self, state, samples, stream):
        asked.extend((s.origin, s.sequence) for s in samples)
        return plain_fill(self, state, samples, stream)

    monkeypatch.setattr(signals, "trained_rows", rows)
    monkeypatch.setattr(FrozenCopy, "fill", fill)
    bundles = {
        "a": PPO,
        "b": resolve_bundle("rloo", {"kl_coefficient": 0.1}),
        "c": BUNDLES["ppo"],
        "d": BUNDLES["grpo"],
    }
    groups = [group([1.0, 0.0], name, number) for number, name in enumerate(bundles)]
    found = action_streams(state_of(model), FrozenCopy(model), groups, bundles, keep_logprobs=True)
    model.causal.requires_grad_(True)
    assert len(forwards) == len(set(forwards)) == 6  # nothing is asked about grpo's two
    assert len(asked) == len(set(asked)) == 4  # the reference: of the two with a KL
    assert [set(own[0]) >= {"values"} for own in found[:3]] == [True] * 3 and found[3] == [{}, {}]
