"""Supervised steps: weights, smoothing, noise, feeds, and that no cut changes a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from educe.algorithms.losses import cross_entropy
from educe.config.settings import OptimizerSettings, WatchSettings
from educe.core.metrics import Tally
from educe.models.load import LoadedModel, load
from educe.models.logprobs import token_logprobs
from educe.models.tiny import save_tiny
from educe.rollout.packing import build_pack, pack_samples
from educe.trainers.feeds import IndexedFeed, ListSource
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.regularise import prefix_hashes, regularised_forward, uniform_logprobs
from educe.trainers.rendering import Rendered
from educe.trainers.step import TrainerState, accumulate_gradients, forward_pack
from educe.trainers.supervised import Item, evaluate_loss, steps_of, supervised_samples
from educe.trainers.watch import BestWatch


@pytest.fixture(scope="module")
def model64(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny(tmp_path_factory.mktemp("tiny64"), dtype="float64", seed=3)
    return load(str(folder), dtype="float64")


def items(count: int = 7, seed: int = 0) -> list[Item]:
    """Sequences of many lengths behind a common beginning, with masks of several turns."""
    rng = np.random.default_rng(seed)
    head = rng.integers(4, 260, 6)
    found = []
    for number in range(count):
        tokens = np.concatenate([head, rng.integers(4, 260, rng.integers(4, 30))])
        mask = np.arange(len(tokens)) >= 8
        mask[10:12] = False
        found.append(Item(f"d{number % 2}", (Rendered(tokens, mask),)))
    return found


def gradient(model: LoadedModel, samples: Any, limit: int, forward: Any = forward_pack) -> Any:
    settings = OptimizerSettings(micro_batch_tokens=limit)
    state = TrainerState.create(model, settings, 1e-3)
    state.optimizer.zero_grad(set_to_none=True)
    tally = accumulate_gradients(state, samples, {"cross_entropy": cross_entropy}, forward)
    flat = torch.cat([p.grad.reshape(-1) for _, p in model.trainable()]).clone()
    state.optimizer.zero_grad(set_to_none=True)
    return flat, tally.values()["loss"]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_the_loss_is_the_mean_over_all_trained_tokens(model64: LoadedModel) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model64.folder, dtype=torch.float64)
    batch = items()
    total, count = 0.0, 0
    for item in batch:
        (side,) = item.side
        rows = torch.as_tensor(np.flatnonzero(side.mask))
        with torch.no_grad():
            logits = plain(torch.as_tensor(side.token_ids)[None]).logits[0]
        logp = logits[rows - 1].log_softmax(-1)
        targets = torch.as_tensor(side.token_ids)[rows]
        total -= float(logp[torch.arange(len(rows)), targets].sum())
        count += len(rows)
    _, loss = gradient(model64, supervised_samples(batch), 10_000)
    assert loss == pytest.approx(total / count, abs=1e-6)  # transformers' norms are fp32


@pytest.mark.parametrize(("smoothing", "noise"), [(0.0, 0.0), (0.2, 0.0), (0.0, 8.0), (0.2, 8.0)])
def test_no_cut_and_no_sharing_changes_the_gradient(
    model64: LoadedModel, smoothing: float, noise: float
) -> None:
    samples = supervised_samples(items())
    longest = max(len(s.token_ids) for s in samples)
    forward = regularised_forward(
        label_smoothing=smoothing, noise=noise, longest=longest, key=(5, 1)
    )
    whole, _ = gradient(model64, samples, 10_000, forward)
    assert whole.norm() > 0
    for limit in (1, 40, 90):
        cut, _ = gradient(model64, samples, limit, forward)
        assert relative(cut, whole) <= 1e-9


def test_smoothing_is_cross_entropy_against_a_mixed_target(model64: LoadedModel) -> None:
    pack = build_pack([[s] for s in supervised_samples(items())])
    plain = forward_pack(model64, pack)
    forward = regularised_forward(label_smoothing=0.3, noise=0.0, longest=9, key=())
    smoothed = forward(model64, pack, None).logprobs_N
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(40, 8, generator=generator, dtype=torch.float64)
    targets = torch.arange(6)
    temperature = torch.full((6,), 0.7, dtype=torch.float64)
    logp = (rows @ weight.T / 0.7).log_softmax(-1)
    own = token_logprobs(rows, weight, targets, temperature).logprobs_N
    mean = uniform_logprobs(rows, weight, targets, temperature, own)
    assert torch.allclose(mean, logp.mean(-1))
    assert not torch.allclose(plain.logprobs_N, smoothed)


def test_noise_is_drawn_by_step_and_prefix(model64: LoadedModel) -> None:
    samples = supervised_samples(items())
    (pack,) = pack_samples(samples, 10_000)
    assert len(pack.spans) > len(samples)  # what all begin with is one segment

    def logprobs(pack: Any, step: int, noise: float = 8.0) -> torch.Tensor:
        forward = regularised_forward(label_smoothing=0.0, noise=noise, longest=36, key=(0, step))
        return forward(model64, pack, None).logprobs_N.detach()

    assert torch.equal(logprobs(pack, 0), logprobs(pack, 0))
    assert not torch.allclose(logprobs(pack, 0), logprobs(pack, 1))
    plain = forward_pack(model64, pack).logprobs_N.detach()
    assert 0 < float((logprobs(pack, 0, 1e-4) - plain).abs().max()) < 1e-4
    # Alone in its pack, a sequence has the noise that it has in company.
    alone = build_pack([[samples[0]]])
    assert torch.allclose(logprobs(alone, 0), logprobs(pack, 0)[: len(alone.target_N)])


def test_noise_is_uniform_within_alpha_over_the_root_of_tokens_times_width(
    model64: LoadedModel,
) -> None:
    """What reaches the first layer, less the embeddings (NEFTune, arXiv 2310.05914)."""
    samples = supervised_samples(items())
    (pack,) = pack_samples(samples, 10_000)
    embeddings = model64.causal.get_input_embeddings()
    layer = next(m for n, m in model64.causal.named_modules() if n.endswith("layers.0"))
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(
        lambda _m, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    try:
        regularised_forward(label_smoothing=0.0, noise=8.0, longest=36, key=(0, 0))(
            model64, pack, None
        )
    finally:
        handle.remove()
    plain = embeddings(torch.as_tensor(pack.token_ids_T)[None])
    noise = (seen[0] - plain).detach()
    bound = 8.0 / (36 * noise.shape[-1]) ** 0.5
    assert 0.98 * bound < float(noise.abs().max()) <= bound
    assert abs(float(noise.mean())) < 0.1 * bound
    assert float(noise.std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_equal_prefixes_have_equal_hashes() -> None:
    samples = supervised_samples(items())
    (pack,) = pack_samples(samples, 10_000)
    known: dict[tuple[int, ...], int] = {}
    for sample in samples:
        hashes = prefix_hashes(build_pack([[sample]]))
        for end, value in enumerate(hashes.tolist(), 1):
            prefix = tuple(sample.token_ids[:end].tolist())
            assert known.setdefault(prefix, value) == value
    assert len(set(known.values())) == len(known)
    assert set(prefix_hashes(pack).tolist()) == set(known.values())


def test_weights_that_are_wrong_would_be_seen(model64: LoadedModel) -> None:
    """Two items alone do not average to their batch: tokens are counted over the whole batch."""
    a, b = items(2)
    both, _ = gradient(model64, supervised_samples([a, b]), 10_000)
    one, _ = gradient(model64, supervised_samples([a]), 10_000)
    other, _ = gradient(model64, supervised_samples([b]), 10_000)
    n, m = a.side[0].num_trained, b.side[0].num_trained
    assert relative((n * one + m * other) / (n + m), both) <= 1e-9


def test_evaluation_is_the_loss_without_noise(model64: LoadedModel) -> None:
    batch = items()
    state = TrainerState.create(model64, OptimizerSettings(micro_batch_tokens=60), 1e-3)
    values = evaluate_loss(state, batch).values()
    _, loss = gradient(model64, supervised_samples(batch), 10_000)
    assert values["eval_loss"] == pytest.approx(loss, abs=1e-12)
    assert {"domain/d0/eval_loss", "domain/d1/eval_loss"} <= values.keys()


# Feeds


def feed(weights: dict[str, float], size: int, **sizes: int) -> IndexedFeed:
    sources = {n: ListSource([f"{n}{i}" for i in range(k)]) for n, k in sizes.items()}
    return IndexedFeed(sources, weights, size, 5, seed=1)


def test_an_epoch_shows_every_row_once_and_the_next_another_order() -> None:
    found = feed({"a": 3.0, "b": 1.0}, 40, a=30, b=10)
    first = [x for step in range(8) for _, x in found.examples(step)]
    second = [x for step in range(8, 16) for _, x in found.examples(step)]
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 40
    assert first != second


def test_weights_decide_and_a_large_set_goes_on_in_the_next_epoch() -> None:
    found = feed({"a": 1.0, "b": 1.0}, 20, a=30, b=5)
    batches = [found.examples(step) for step in range(12)]
    names = [name for batch in batches for name, _ in batch]
    assert names.count("a") == names.count("b") == 30
    seen = [x for batch in batches for name, x in batch if name == "a"]
    assert len(set(seen)) == 30  # three epochs of ten: all thirty


def test_a_batch_is_a_function_of_its_step() -> None:
    assert feed({"a": 1.0}, 7, a=7).entries(9) == feed({"a": 1.0}, 7, a=7).entries(9)


def test_steps_of_epochs() -> None:
    assert steps_of(0, 100, 1.0, 16) == 7
    assert steps_of(0, 100, 2.5, 16) == 16
    assert steps_of(3, 100, 2.5, 16) == 3


# Watch


def watch(model: LoadedModel, folder: Path, losses: list[float], **settings: Any) -> BestWatch:
    state = TrainerState.create(model, OptimizerSettings(), 1e-3)

    def measure() -> Tally:
        tally = Tally()
        tally.mean("eval_loss", losses.pop(0))
        return tally

    return BestWatch(WatchSettings(every=2, **settings), state, measure, folder, 7)


def test_the_best_weights_come_back(model64: LoadedModel, tmp_path: Path) -> None:
    found = watch(model64, tmp_path, [3.0, 1.0, 2.0])
    assert [found.is_due(n) for n in range(1, 8)] == [False, True, False, True, False, True, True]
    weight = model64.causal.get_input_embeddings().weight
    before = weight.detach().clone()
    try:
        values = []
        for done in (2, 4, 6):
            with torch.no_grad():
                weight.fill_(float(done))
            values.append(found.look(done)["eval_best_loss"])
        assert values == [3.0, 1.0, 1.0]
        assert [f.name for f in tmp_path.iterdir()] == ["step-00000004.safetensors"]
        assert found.finish() == 4
        assert float(weight.detach()[0, 0]) == 4.0
    finally:
        with torch.no_grad():
            weight.copy_(before)


def test_patience_and_a_least_improvement(model64: LoadedModel, tmp_path: Path) -> None:
    found = watch(
        model64, tmp_path, [3.0, 2.95, 2.9, 1.0], patience=2, min_improvement=0.5, keep_best=False
    )
    for done, stops in ((2, False), (4, False), (6, True)):
        found.look(done)
        assert found.should_stop is stops
    again = watch(model64, tmp_path, [1.0], patience=2, keep_best=False)
    again.restore(found.progress())
    assert again.should_stop
    again.look(8)
    assert not again.should_stop


def test_a_watch_whose_best_file_was_replaced_begins_anew(
    model64: LoadedModel, tmp_path: Path
) -> None:
    first = watch(model64, tmp_path, [2.0, 1.0])
    first.look(2)
    saved = first.progress()
    first.look(4)
    second = watch(model64, tmp_path, [1.0])
    second.restore(saved)
    assert (second.best_step, second.progress()["loss"]) == (None, None)


# Schedules


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_warm_up_and_end(schedule: Any) -> None:
    settings = OptimizerSettings(warmup_steps=3, schedule=schedule)
    rates = [learning_rate_at(n, 1.0, settings, 20) for n in range(20)]
    assert rates[:3] == pytest.approx([0.25, 0.5, 0.75])
    assert rates[3] == 1.0
    assert (rates[-1] < 0.1) is (schedule != "constant")
