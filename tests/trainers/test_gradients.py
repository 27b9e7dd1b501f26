"""Decision 2: gradients do not depend on how a batch is cut or shared, for every loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from educe.algorithms.catalogue import BUNDLES, Bundle
from educe.config.settings import OptimizerSettings
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.models.value_head import ValueHead
from educe.rollout.packing import TrainingSample, build_pack, pack_samples
from educe.trainers.credit import losses_of
from educe.trainers.step import (
    TrainerState,
    accumulate_gradients,
    fill_logprobs,
    forward_pack,
    optimizer_step,
)


def _with(name, options=(), **changes) -> Bundle:
    base = BUNDLES[name]
    return replace(base, name=f"{name} and more", options=(*base.options, *options), **changes)


# Every term that a loss may have besides: sequence corrections and drops, KL, entropy, steering.
TERMS = {
    bundle.name: bundle
    for bundle in (
        _with(
            "grpo",
            (("kl_target", 0.1), ("entropy_target", 1.0), ("dual_clip", 3.0)),
            kl_coefficient=0.1,
            correction="sequence_mask",
            importance_floor=0.2,
            importance_cap=5.0,
        ),
        _with(
            "gspo",
            (("sequence_drop", 0.1),),
            kl_coefficient=0.2,
            kl_estimator="rk3",
            correction="geometric_mask",
            importance_floor=0.8,
            importance_cap=1.25,
        ),
        _with("gmpo", correction="sequence_truncated", importance_cap=3.0, entropy_coefficient=0.1),
        _with("ppo", kl_coefficient=0.1, kl_estimator="k3+", kl_place="loss", correction="icepop"),
    )
}
ALL = BUNDLES | TERMS


@pytest.fixture(scope="module")
def model64(tmp_path_factory) -> LoadedModel:
    folder = save_tiny(tmp_path_factory.mktemp("tiny64"), dtype="float64", seed=3)
    return load(str(folder), dtype="float64")


def make_samples(bundle_names, groups=5, siblings=4, seed=0) -> list[TrainingSample]:
    rng = np.random.default_rng(seed)
    samples = []
    for group in range(groups):
        bundle = ALL[bundle_names[group % len(bundle_names)]]
        prompt = rng.integers(4, 260, rng.integers(4, 12))
        for _ in range(siblings if group != 1 else 1):
            completion = rng.integers(4, 260, rng.integers(1, 15))
            tokens = np.concatenate([prompt, completion])
            mask = np.arange(len(tokens)) >= len(prompt)
            if len(completion) > 8:  # an observation in the middle is not trained
                mask[len(prompt) + 3 : len(prompt) + 5] = False
            length = len(tokens)
            streams = {
                "advantage": np.full(length, rng.normal()),
                "weight": np.full(length, rng.uniform(0.01, 0.1)),
                "behaviour_logprobs": rng.normal(-5.5, 0.3, length),
                "proximal_logprobs": rng.normal(-5.5, 0.3, length),
                "temperature": np.full(length, rng.choice([0.7, 1.0])),
            }
            if bundle.needs_values:
                streams |= {n: rng.normal(0, 1, length) for n in ("old_values", "returns")}
            if bundle.needs_reference:
                streams["reference_logprobs"] = rng.normal(-5.5, 0.3, length)
            for steered in ("kl", "entropy"):
                if bundle.option(f"{steered}_target", 0.0):
                    streams[f"{steered}_coefficient"] = np.full(length, 0.05)
            samples.append(
                TrainingSample(
                    tokens, mask, streams, group, len(samples), bundle.formula(), bundle.name
                )
            )
    return samples


def head_for(model, trunk=True) -> ValueHead:
    """A value head whose output is not 0, so that it has gradients below."""
    head = ValueHead(model.head_weight().shape[1], seed=4, dtype=torch.float64, trunk=trunk)
    with torch.no_grad():
        head.outer.weight.copy_(torch.linspace(-1, 1, head.outer.weight.numel())[None])
    return head


def gradient(model, samples, limit, bundles, head=None) -> torch.Tensor:
    settings = OptimizerSettings(micro_batch_tokens=limit)
    if head is None and any(b.needs_values for b in bundles):
        head = head_for(model)
    state = TrainerState.create(model, settings, 1e-3, value_head=head)
    state.optimizer.zero_grad(set_to_none=True)
    accumulate_gradients(state, samples, losses_of({b.name: b for b in bundles}))
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in state.trainable()]
    flat = torch.cat([g.reshape(-1) for g in grads]).clone()
    state.optimizer.zero_grad(set_to_none=True)
    return flat


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", sorted(ALL))
def test_micro_batches_and_shared_prompts_change_nothing(model64, name):
    samples = make_samples([name])
    bundles = [ALL[name]]
    whole = gradient(model64, samples, 10_000, bundles)
    assert whole.norm() > 0
    for limit in (1, 25, 60, 150):
        assert distance(gradient(model64, samples, limit, bundles), whole) <= 1e-9
    alone = [replace(s, group=i) for i, s in enumerate(samples)]  # nothing is shared
    assert distance(gradient(model64, alone, 10_000, bundles), whole) <= 1e-9


@pytest.mark.parametrize("names", [("grpo", "cispo"), ("ppo", "gspo"), ("dapo", "ppo")])
def test_two_algorithms_in_one_step_sum_their_gradients(model64, names):
    samples = make_samples(list(names))
    head = head_for(model64)
    both = gradient(model64, samples, 80, [BUNDLES[n] for n in names], head)
    parts = [
        gradient(model64, [s for s in samples if s.origin == n], 80, [BUNDLES[n]], head)
        for n in names
    ]
    assert distance(both, parts[0] + parts[1]) <= 1e-9


def test_a_value_head_beside_the_trunk_leaves_the_policys_gradient_alone(model64):
    """With trunk off the model's gradients are those of the same loss without values."""
    samples = make_samples(["ppo"])
    size = sum(p.numel() for _, p in model64.trainable())
    beside = gradient(model64, samples, 100, [BUNDLES["ppo"]], head_for(model64, trunk=False))
    below = gradient(model64, samples, 100, [BUNDLES["ppo"]], head_for(model64, trunk=True))
    plain = replace(BUNDLES["ppo"], advantage="returns")
    for sample in samples:
        sample.loss = plain.formula()
    without = gradient(model64, samples, 100, [plain])
    assert distance(beside[:size], without) <= 1e-12
    assert distance(below[:size], without) > 1e-3
    assert torch.equal(beside[size:], below[size:]) and beside[size:].norm() > 0


def test_a_large_error_of_the_values_does_not_shrink_the_policys_step(model64):
    """Their gradients are clipped apart: joined, the critic's first errors would own the norm."""
    before = {n: p.detach().clone() for n, p in model64.trainable()}
    settings = OptimizerSettings(name="sgd", beta1=0.0, max_grad_norm=1e-3, micro_batch_tokens=200)
    moved, heads = [], []
    for scale in (1.0, 1000.0):
        samples = make_samples(["ppo"])
        for sample in samples:
            sample.streams["returns"] *= scale
        head = head_for(model64, trunk=False)
        kept = torch.cat([p.detach().reshape(-1).clone() for _, p in head.trainable()])
        state = TrainerState.create(model64, settings, 1.0, value_head=head)
        result = optimizer_step(state, samples, losses_of({"ppo": BUNDLES["ppo"]}), 1.0)
        assert not result.skipped
        with torch.no_grad():
            moved.append(torch.cat([(p - before[n]).reshape(-1) for n, p in model64.trainable()]))
            now = torch.cat([p.reshape(-1) for _, p in head.trainable()])
            heads.append(float((now - kept).norm()))
            for name, parameter in model64.trainable():
                parameter.copy_(before[name])
        assert result.tally.values()["value_grad_norm"] > 1e-3
    assert float(moved[0].norm()) == pytest.approx(1e-3, rel=1e-3)
    assert distance(moved[1], moved[0]) <= 1e-9
    assert heads == pytest.approx([1e-3, 1e-3], rel=1e-3)


def test_a_lowered_rate_makes_a_smaller_step(model64):
    """What the guards multiply the learning rate by reaches the weights, not only the metrics."""
    before = {n: p.detach().clone() for n, p in model64.trainable()}
    settings = OptimizerSettings(name="sgd", beta1=0.0, max_grad_norm=0.0)
    moved = []
    for scale in (1.0, 0.3):
        state = TrainerState.create(model64, settings, 1.0)
        state.rate_scale = scale
        result = optimizer_step(
            state, make_samples(["grpo"]), losses_of({"grpo": BUNDLES["grpo"]}), 1e-3
        )
        assert result.tally.values()["learning_rate"] == pytest.approx(1e-3 * scale)
        with torch.no_grad():
            moved.append(torch.cat([(p - before[n]).reshape(-1) for n, p in model64.trainable()]))
            for name, parameter in model64.trainable():
                parameter.copy_(before[name])
    assert moved[0].norm() > 0 and distance(moved[1], 0.3 * moved[0]) < 1e-6


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_equal_plain_transformers(tmp_path, checkpointing):
    """Cross-entropy of shared-prompt packs against transformers' own forward, row by row."""
    from transformers import AutoModelForCausalLM

    folder = save_tiny(tmp_path / "m", dtype="float64", seed=5)
    model = load(str(folder), dtype="float64")
    if checkpointing:
        model.causal.gradient_checkpointing_enable()
        model.causal.train()
    samples = make_samples(["grpo"])
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        ids = torch.as_tensor(sample.token_ids)[None]
        logits = plain(ids).logits[0, :-1]
        rows = torch.as_tensor(np.flatnonzero(sample.mask)) - 1
        temperature = torch.as_tensor(sample.streams["temperature"])[rows + 1]
        logp = (logits[rows] / temperature[:, None]).log_softmax(-1)
        picked = logp.gather(1, ids[0, rows + 1, None])[:, 0]
        total = total - (picked * torch.as_tensor(sample.streams["weight"])[rows + 1]).sum()
    total.backward()
    mine = torch.zeros((), dtype=torch.float64)
    for pack in pack_samples(samples, 70):
        out = forward_pack(model, pack)
        mine = mine - (out.logprobs_N * torch.as_tensor(pack.streams["weight"])).sum()
    mine.backward()
    # transformers' norms are fp32 whatever the weights are, so the last digits are not shared.
    assert mine.item() == pytest.approx(total.item(), rel=1e-6)
    right = dict(plain.named_parameters())
    for name, parameter in model.trainable():
        assert distance(parameter.grad, right[name].grad) < 1e-5, name


def test_first_update_has_ratio_one_whatever_the_micro_batch(model64):
    samples = make_samples(["grpo"])
    for sample in samples:
        del sample.streams["proximal_logprobs"]
    bundle = replace(BUNDLES["grpo"], importance_cap=0.0)
    for sample in samples:
        sample.loss = bundle.formula()
    for limit in (20, 10_000):
        state = TrainerState.create(model64, OptimizerSettings(micro_batch_tokens=limit), 1e-3)
        tally = accumulate_gradients(state, samples, losses_of({"grpo": bundle}))
        assert tally.values()["max_ratio"] == 1.0


def test_filled_logprobs_equal_the_forward(model64):
    samples = make_samples(["grpo"])
    fill_logprobs(model64, samples, "proximal_logprobs", 50)
    pack = build_pack([samples[:4]])
    with torch.no_grad():
        want = forward_pack(model64, pack).logprobs_N
    assert np.allclose(pack.streams["proximal_logprobs"], want.numpy(), atol=1e-12)


def test_a_shared_prompt_is_computed_once(model64):
    samples = [s for s in make_samples(["grpo"]) if s.group == 0]
    prompt = int(np.argmax(samples[0].mask))
    (pack,) = pack_samples(samples, 10_000)
    assert pack.num_tokens == prompt + sum(len(s.token_ids) - prompt for s in samples)


def test_a_common_system_prompt_is_computed_once_and_changes_nothing(model64):
    samples = make_samples(["grpo"])
    head = np.arange(10, 30)
    longer = []
    for sample in samples:
        streams = {n: np.concatenate([np.ones(len(head)), v]) for n, v in sample.streams.items()}
        longer.append(
            replace(
                sample,
                token_ids=np.concatenate([head, sample.token_ids]),
                mask=np.concatenate([np.zeros(len(head), bool), sample.mask]),
                streams=streams,
            )
        )
    (pack,) = pack_samples(longer, 10_000)
    alone = [pack_samples([s for s in longer if s.group == g], 10_000)[0] for g in range(5)]
    assert pack.num_tokens == sum(p.num_tokens for p in alone) - 4 * len(head)
    whole = gradient(model64, longer, 10_000, [BUNDLES["grpo"]])
    for limit in (1, 90):
        assert distance(gradient(model64, longer, limit, [BUNDLES["grpo"]]), whole) <= 1e-9


def test_mismatch_and_what_the_correction_leaves_are_measured(model64):
    samples = make_samples(["grpo"])
    for sample in samples:
        del sample.streams["proximal_logprobs"]
    fill_logprobs(model64, samples, "behaviour_logprobs", 10_000)
    settings = OptimizerSettings(micro_batch_tokens=60)
    losses = losses_of({"grpo": BUNDLES["grpo"]})
    same = accumulate_gradients(TrainerState.create(model64, settings, 1e-3), samples, losses)
    told = same.values()
    assert told["mismatch"] == pytest.approx(0, abs=1e-12)
    assert told["mismatch_ratio"] == pytest.approx(1) and told["effective_share"] == pytest.approx(
        1
    )
    for sample in samples[::2]:
        sample.streams["behaviour_logprobs"] += 0.5
    off = accumulate_gradients(TrainerState.create(model64, settings, 1e-3), samples, losses)
    weights = np.concatenate(
        [np.full(s.num_trained, np.exp(-0.5) if i % 2 == 0 else 1.0) for i, s in enumerate(samples)]
    )
    told = off.values()
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    assert told["effective_share"] == pytest.approx(share)
    assert told["domain/grpo/effective_share"] == pytest.approx(share)
    assert told["mismatch_k1"] == pytest.approx(0.5 * (weights < 1).mean())
    assert "correction_square" not in told
