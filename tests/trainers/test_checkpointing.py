"""Checkpointing, offload and LoRA change memory, not mathematics; shared prompts neither."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from educe.algorithms.catalogue import BUNDLES
from educe.config.settings import OptimizerSettings
from educe.core.errors import EduceError
from educe.models import attention
from educe.models.activations import FileShelf
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.rollout.packing import TrainingSample, pack_samples
from educe.trainers.credit import losses_of
from educe.trainers.step import TrainerState, accumulate_gradients, forward_pack, optimizer_step

GRPO = BUNDLES["grpo"]
LOSSES = losses_of({"grpo": GRPO})
LORA = {"rank": 4, "alpha": 8.0, "targets": "all-linear", "seed": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), seed=7, num_hidden_layers=3)


def samples(groups: int = 2, siblings: int = 3, prompt: int = 40) -> list[TrainingSample]:
    """Groups with a long prompt each; rewards differ, so that every token has a gradient."""
    rng = np.random.default_rng(1)
    found: list[TrainingSample] = []
    for group in range(groups):
        head = rng.integers(4, 260, prompt)
        for _ in range(siblings):
            tokens = np.concatenate([head, rng.integers(4, 260, rng.integers(2, 12))])
            length = len(tokens)
            streams = {
                "advantage": np.full(length, rng.normal()),
                "weight": np.full(length, 0.05),
                "behaviour_logprobs": rng.normal(-5.5, 0.1, length),
                "temperature": np.ones(length),
            }
            mask = np.arange(length) >= prompt
            found.append(
                TrainingSample(tokens, mask, streams, group, len(found), GRPO.formula(), "grpo")
            )
    return found


def separate(shared: list[TrainingSample]) -> list[TrainingSample]:
    return [dataclasses.replace(s, group=i) for i, s in enumerate(shared)]


def loaded(folder: Path, lora: bool = False, **options: Any) -> LoadedModel:
    model = load(str(folder), lora=LORA if lora else None, **options)
    if lora:
        # An adapter begins as a zero; then half of its gradients would be zeros.
        generator = torch.Generator().manual_seed(3)
        for _, parameter in model.trainable():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.add_(noise * 0.02)
    return model


def loss_and_gradient(
    model: LoadedModel, given: list[TrainingSample], **options: Any
) -> tuple[float, torch.Tensor]:
    settings = OptimizerSettings(micro_batch_tokens=10_000)
    state = TrainerState.create(model, settings, 1e-3, **options)
    state.optimizer.zero_grad(set_to_none=True)
    tally = accumulate_gradients(state, given, LOSSES)
    flat = torch.cat([p.grad.reshape(-1) for _, p in model.trainable() if p.grad is not None])
    state.optimizer.zero_grad(set_to_none=True)
    return tally.values()["loss"], flat.clone()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_loss_and_gradients_are_those_of_separate_segments_without_checkpointing(
    folder: Path, lora: bool, offload: bool
) -> None:
    given = samples()
    loss, want = loss_and_gradient(loaded(folder, lora), separate(given))
    assert want.norm() > 0
    model = loaded(folder, lora, checkpointing=True, offload=offload)
    assert sum(p.num_tokens for p in pack_samples(given, 10_000)) < 0.5 * sum(
        len(s.token_ids) for s in given
    )
    for case in (given, separate(given)):
        own_loss, got = loss_and_gradient(model, case)
        assert own_loss == pytest.approx(loss, rel=1e-5)
        assert distance(got, want) < 1e-5


@pytest.mark.parametrize("offload", [False, True])
def test_under_bf16_autocast_checkpointing_changes_no_bit(folder: Path, offload: bool) -> None:
    given = samples()
    narrow = {"compute_dtype": torch.bfloat16}
    loss, want = loss_and_gradient(loaded(folder), given, **narrow)
    model = loaded(folder, checkpointing=True, offload=offload)
    own_loss, got = loss_and_gradient(model, given, **narrow)
    assert own_loss == loss and torch.equal(got, want)


def test_attention_is_not_computed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    inner = attention.flash_forward

    def counted(*arguments: Any) -> Any:
        calls["attention"] += 1
        return inner(*arguments)

    monkeypatch.setattr(attention, "flash_forward", counted)
    for checkpointing in (False, True):
        calls.clear()
        model = loaded(folder, checkpointing=checkpointing)
        (pack,) = pack_samples(samples(groups=1), 10_000)
        out = forward_pack(model, pack)
        forward = calls["attention"]
        out.logprobs_N.sum().backward()
        assert calls["attention"] == forward > 0


def test_checkpointing_keeps_a_tenth_of_what_a_backward_needs(folder: Path) -> None:
    kept = {}
    for checkpointing in (False, True):
        model = loaded(folder, checkpointing=checkpointing)
        (pack,) = pack_samples(samples(groups=1, prompt=120), 10_000)
        seen: dict[int, int] = {}
        weights = {p.untyped_storage().data_ptr() for _, p in model.trainable()}

        def note(tensor: torch.Tensor, seen=seen, weights=weights) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            out = forward_pack(model, pack)
        kept[checkpointing] = sum(seen.values())
        out.logprobs_N.sum().backward()
    # Outside the layers both keep the same: the head's rows, the last norm.
    assert kept[True] < 0.35 * kept[False]


def test_sampling_and_scoring_go_past_checkpointing(folder: Path) -> None:
    """Without gradients nothing is kept, in memory or in a file."""
    plain, model = loaded(folder), loaded(folder, checkpointing=True, offload=True)
    (pack,) = pack_samples(samples(groups=1), 10_000)
    with torch.no_grad():
        want, got = forward_pack(plain, pack), forward_pack(model, pack)
    assert torch.equal(got.logprobs_N, want.logprobs_N)
    assert isinstance(model.shelf, FileShelf) and model.shelf.num_bytes == 0


def test_a_file_shelf_gives_back_what_it_took_and_uses_room_again(folder: Path) -> None:
    shelf = FileShelf()
    given = [torch.randn(5, 7), torch.randn(3, 4).bfloat16().T, torch.arange(9)]
    takes = [shelf.put(t) for t in given]
    for tensor, take in zip(given, takes, strict=True):
        assert torch.equal(take(), tensor) and take().dtype == tensor.dtype
    assert torch.equal(shelf.put(torch.zeros(0))(), torch.zeros(0))
    size = shelf.num_bytes
    assert size == sum(t.numel() * t.element_size() for t in given)
    del takes, take
    for _ in range(3):
        shelf.put(torch.randn(5, 7))
    assert shelf.num_bytes == size
    model = loaded(folder, checkpointing=True, offload=True)
    state = TrainerState.create(model, OptimizerSettings(), 1e-3)
    optimizer_step(state, samples(), LOSSES, 1e-3)
    after_one = model.shelf.num_bytes  # type: ignore[union-attr]
    optimizer_step(state, samples(), LOSSES, 1e-3)
    assert after_one == model.shelf.num_bytes > 0  # type: ignore[union-attr]


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = FileShelf()

    def full(_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shelf, "_write", full)
    with pytest.raises(EduceError, match=r"No space left on device.*TMPDIR"):
        shelf.put(torch.zeros(4))


class _Products(TorchDispatchMode):
    """Notes the shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.shapes[tuple(out.shape)] += 1
        return out


@pytest.mark.parametrize("checkpointing", [False, True])
def test_frozen_weights_get_no_gradient_product(tmp_path: Path, checkpointing: bool) -> None:
    """With LoRA no product of a frozen matrix's shape is computed, with all weights each one is."""
    sizes = {"hidden_size": 40, "intermediate_size": 72, "head_dim": 12}
    own = save_tiny(tmp_path / "m", num_hidden_layers=2, **sizes)
    # Widths that no number of tokens in the pack is equal to.
    query, key = 48, 24
    matrices = {(query, 40), (key, 40), (40, query), (72, 40), (40, 72), (260, 40)}
    (pack,) = pack_samples(samples(groups=1), 10_000)
    assert pack.num_tokens not in {40, 72, query, key, 260}
    found = {}
    for lora in (False, True):
        model = loaded(own, lora, checkpointing=checkpointing)
        with _Products() as products:
            out = forward_pack(model, pack)
            out.logprobs_N.sum().backward()
        found[lora] = {s for s in products.shapes if s in matrices or s[::-1] in matrices}
        frozen = [p for p in model.causal.parameters() if not p.requires_grad]
        assert all(p.grad is None for p in frozen) and bool(frozen) == lora
    assert {frozenset(s) for s in matrices} == {frozenset(s) for s in found[False]}
    assert not found[True]
