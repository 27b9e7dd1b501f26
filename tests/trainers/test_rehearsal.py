"""What the stage's start sampled: its KL is 0 at the start, and both terms hold on to it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from educe.algorithms.catalogue import BUNDLES
from educe.config.settings import OptimizerSettings
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.trainers.credit import losses_of
from educe.trainers.rehearsal import ANCHOR, LOSSES, REPLAY, Rehearsal, keep_groups
from educe.trainers.step import TrainerState, accumulate_gradients, optimizer_step
from tests.trainers.made_groups import group, trajectory
from tests.trainers.test_gradients import distance, make_samples


@pytest.fixture
def state(tmp_path) -> TrainerState:
    folder = save_tiny(tmp_path / "m", dtype="float64", seed=3)
    model: LoadedModel = load(str(folder), dtype="float64")
    return TrainerState.create(model, OptimizerSettings(warmup_steps=0), 1e-2)


def kept(state: TrainerState) -> Rehearsal:
    groups = [
        group([trajectory(s, (5,))], domain, number)
        for number, (domain, s) in enumerate(
            [("a", 1.0), ("a", 0.0), ("a", None), ("b", 0.0), ("b", 0.2)]
        )
    ]
    return Rehearsal(strength=0.5, kept=keep_groups(state, groups))


def move(state: TrainerState, steps: int = 2) -> None:
    for _ in range(steps):
        losses = losses_of({"grpo": BUNDLES["grpo"]})
        optimizer_step(state, make_samples(["grpo"]), losses, 1e-2)


def test_the_kl_to_the_start_is_zero_there_and_grows(state):
    rehearsal = kept(state)
    at_start = rehearsal.kl_to_start(state, ["a", "b", "nowhere"])
    assert at_start == {"a": pytest.approx(0.0, abs=1e-12), "b": pytest.approx(0.0, abs=1e-12)}
    move(state)
    assert all(v > 1e-4 for v in rehearsal.kl_to_start(state, ["a", "b"]).values())


def test_terms_have_the_weight_that_was_asked_for(state):
    rehearsal = kept(state)
    assert rehearsal.samples(0, 10) == []
    assert rehearsal.start("a", ANCHOR) and rehearsal.start("a", REPLAY)
    samples = rehearsal.samples(0, 10)
    assert [s.loss for s in samples] == [ANCHOR] * 3 + [REPLAY]
    assert sorted({s.group for s in samples}) == [10, 11, 12, 13]
    for term in (ANCHOR, REPLAY):
        own = [s for s in samples if s.loss == term]
        assert sum(s.streams["weight"][s.mask].sum() for s in own) == pytest.approx(0.5)


def test_there_is_nothing_right_to_imitate(state):
    rehearsal = kept(state)
    assert not rehearsal.start("b", REPLAY) and not rehearsal.start("nowhere", ANCHOR)
    assert rehearsal.active == {} and rehearsal.samples(3, 0) == []


def test_more_than_a_step_holds_comes_in_turn(state):
    groups = [group([trajectory(1.0, (2,))], "a", number) for number in range(10)]
    rehearsal = Rehearsal(kept=keep_groups(state, groups))
    rehearsal.start("a", ANCHOR)
    assert all(len(rehearsal.samples(step, 0)) == 4 for step in range(3))


def test_an_anchor_pulls_back_and_replay_does_not_push_away(state):
    rehearsal = kept(state)
    rehearsal.start("a", ANCHOR)
    rehearsal.start("b", ANCHOR)
    move(state)
    before = rehearsal.kl_to_start(state, ["a", "b"])
    for step in range(12):
        optimizer_step(state, rehearsal.samples(step, 0), LOSSES, 3e-3)
    after = rehearsal.kl_to_start(state, ["a", "b"])
    assert all(after[d] < 0.5 * before[d] for d in before)


def test_rehearsal_stays_out_of_the_batchs_own_figures(state):
    batch = make_samples(["grpo"])
    losses = {**losses_of({"grpo": BUNDLES["grpo"]}), **LOSSES}
    rehearsal = kept(state)
    rehearsal.start("a", ANCHOR)
    alone = accumulate_gradients(state, batch, losses).values()
    state.optimizer.zero_grad(set_to_none=True)
    extra = rehearsal.samples(0, 1 + max(max(s.group, s.sequence) for s in batch))
    beside = accumulate_gradients(state, batch + extra, losses).values()
    for name in ("entropy", "token_loss", "mismatch", "domain/grpo/entropy"):
        assert beside[name] == pytest.approx(alone[name])
    assert not [n for n in beside if n.startswith("domain/") and "grpo" not in n]


def test_gradients_with_rehearsal_do_not_depend_on_the_cut(state):
    batch = make_samples(["grpo"])
    losses = {**losses_of({"grpo": BUNDLES["grpo"]}), **LOSSES}
    rehearsal = kept(state)
    rehearsal.start("a", ANCHOR)
    rehearsal.start("a", REPLAY)
    move(state)
    samples = batch + rehearsal.samples(0, 100)
    found = []
    for limit in (10_000, 50, 1):
        cut = TrainerState.create(state.model, OptimizerSettings(micro_batch_tokens=limit), 1e-3)
        cut.optimizer.zero_grad(set_to_none=True)
        accumulate_gradients(cut, samples, losses)
        found.append(torch.cat([p.grad.reshape(-1) for _, p in cut.trainable()]).clone())
    assert all(distance(f, found[0]) <= 1e-9 for f in found[1:])


def test_what_is_kept_goes_through_a_file(state):
    one = kept(state)
    two = Rehearsal()
    two.load(json.loads(json.dumps(one.to_json())))
    assert one.kept == two.kept
    one.start("a", REPLAY)
    two.restore(json.loads(json.dumps(one.state())))
    first, second = one.samples(5, 7)[0], two.samples(5, 7)[0]
    assert np.array_equal(first.token_ids, second.token_ids) and two.active == one.active
    gone = Rehearsal()
    gone.restore(one.state())
    assert gone.active == {}, "nothing is kept of it any more"
