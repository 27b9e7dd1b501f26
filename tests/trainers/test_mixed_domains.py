"""Domains with different algorithms in one batch: each gets what it would get alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from educe.algorithms.catalogue import BUNDLES
from educe.config.algorithm_settings import AlgorithmSettings, ExplorationSettings, ShapingSettings
from educe.config.settings import DomainSettings, OptimizerSettings
from educe.models.load import load
from educe.models.tiny import save_tiny
from educe.trainers.batch_credit import CreditStage, credit_batch
from educe.trainers.coefficients import Coefficients
from educe.trainers.credit import losses_of, training_samples
from educe.trainers.reference_policy import FrozenCopy
from educe.trainers.shaping import RewardShaper
from educe.trainers.step import TrainerState, accumulate_gradients
from tests.trainers.made_groups import group, trajectory
from tests.trainers.test_gradients import distance, head_for

NAMES = sorted(BUNDLES)


def batch(name, domain, first, lengths, scores):
    """Two groups of a domain, as its algorithm samples them."""
    greedy = trajectory(0.5, (2,)) if BUNDLES[name].needs_greedy else None
    rows = list(zip(scores, lengths, strict=True))
    return [
        group(
            [trajectory(s, (n,)) for s, n in rows[part::2]],
            domain,
            first + part,
            greedy=greedy,
            limit=16,
        )
        for part in range(2)
    ]


def measured(groups):
    rng = np.random.default_rng(1)
    names = ("values", "policy_logprobs", "reference_logprobs")
    return {
        g.request.request_id: [
            {n: rng.normal(-1, 0.3, t.num_completion_tokens) for n in names} for t in g.trajectories
        ]
        for g in groups
    }


@pytest.mark.parametrize("name", NAMES)
def test_credit_and_weights_are_those_of_the_domain_alone(name):
    """Whatever the lengths, scores and statistics of the other domain."""
    other = "dapo" if name != "dapo" else "cispo"
    bundles = {"a": BUNDLES[name], "b": BUNDLES[other]}
    mine = batch(name, "a", 0, [2, 3, 5, 1], [1, 0, 0, 1])
    theirs = batch(other, "b", 2, [9, 14, 11, 16], [0, 1, 0.25, 0])
    told = measured([*mine, *theirs])

    def samples_of(groups):
        streams = [told[g.request.request_id] for g in groups]
        return training_samples(credit_batch(groups, bundles, streams=streams), bundles)

    alone = samples_of(mine)
    mixed = [s for s in samples_of([theirs[0], *mine, theirs[1]]) if s.origin == "a"]
    assert alone and len(alone) == len(mixed)
    for left, right in zip(alone, mixed, strict=True):
        assert (left.token_ids == right.token_ids).all() and left.loss == right.loss
        for stream, values in left.streams.items():
            share = 2.0 if stream == "weight" else 1.0  # half of the prompts are its own
            assert np.allclose(right.streams[stream] * share, values, rtol=1e-14, atol=0), stream


@pytest.fixture(scope="module")
def model64(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("tiny64"), dtype="float64", seed=3)
    return load(str(folder), dtype="float64"), load(str(folder), dtype="float64")


@pytest.mark.parametrize(
    ("name", "other"), [("ppo", "grpo"), ("reinforce_plus_plus", "gspo"), ("remax", "ppo")]
)
def test_gradients_are_the_sum_of_each_domains_own(model64, name, other):
    """Through the whole road: forwards before credit, whitening, weights, one mixed step."""
    model, frozen = model64
    bundles = {"a": BUNDLES[name], "b": BUNDLES[other]}
    mine = batch(name, "a", 0, [2, 3, 5, 1], [1, 0, 0, 1])
    theirs = batch(other, "b", 2, [9, 14, 11, 6], [0, 1, 0.25, 0])

    def gradient(groups):
        state = TrainerState.create(
            model, OptimizerSettings(micro_batch_tokens=60), 1e-3, value_head=head_for(model)
        )
        stage = CreditStage(
            state,
            bundles,
            RewardShaper.of(ShapingSettings(), dict.fromkeys(bundles, DomainSettings())),
            Coefficients.of(bundles.values(), AlgorithmSettings(), ExplorationSettings()),
            FrozenCopy(frozen),
        )
        samples = training_samples(stage.credit(groups), bundles)
        if bundles["a"].kl_in_loss or bundles["b"].kl_in_loss:
            stage.reference.fill(state, samples, "reference_logprobs")
        state.optimizer.zero_grad(set_to_none=True)
        accumulate_gradients(state, samples, losses_of(bundles))
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in state.trainable()]
        flat = torch.cat([g.reshape(-1) for g in grads]).clone()
        state.optimizer.zero_grad(set_to_none=True)
        return flat

    order = list(itertools.chain(*zip(mine, theirs, strict=True)))
    both = gradient(order)
    alone = 0.5 * gradient(mine) + 0.5 * gradient(theirs)
    assert both.norm() > 0 and distance(both, alone) <= 1e-9
