"""Optimizers: what each does to weights, groups and rates, and that a resume continues it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from educe.config.settings import OptimizerSettings
from educe.core.errors import MissingExtraError
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.models.value_head import ValueHead
from educe.trainers.checkpoint import CheckpointStore, load_checkpoint
from educe.trainers.optimizers import MuonAndAdamW, build_optimizer, set_learning_rate
from educe.trainers.step import TrainerState


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Large enough for bitsandbytes' blocks: tensors below 4,096 weights keep 32 bits.
    return save_tiny(tmp_path_factory.mktemp("model"), hidden_size=64, intermediate_size=128)


def state_of(folder: Path, **settings: Any) -> TrainerState:
    model = load(str(folder))
    head = ValueHead(64, seed=0, dtype=torch.float32)
    return TrainerState.create(
        model, OptimizerSettings(**settings), 1e-2, value_head=head, value_learning_rate=2e-2
    )


def give_gradients(state: TrainerState, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in state.trainable():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.1


def weights(state: TrainerState) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in state.trainable()}


def test_fused_and_foreach_are_the_same_adamw(folder: Path) -> None:
    states = [state_of(folder, implementation=i, weight_decay=0.1) for i in ("auto", "foreach")]
    for state in states:
        for seed in range(3):
            give_gradients(state, seed)
            state.optimizer.step()
    fused, foreach = (weights(s) for s in states)
    start = weights(state_of(folder))
    for name, tensor in fused.items():
        assert torch.allclose(tensor, foreach[name], atol=1e-6), name
        assert not torch.equal(tensor, start[name])


def test_muon_takes_the_layers_matrices_and_adamw_the_rest(folder: Path) -> None:
    state = state_of(folder, name="muon", weight_decay=0.1)
    optimizer = state.optimizer
    assert isinstance(optimizer, MuonAndAdamW)
    give_gradients(state, 0)
    optimizer.step()
    for name, parameter in state.trainable():
        kept = set(optimizer.state[parameter])
        is_hidden = parameter.ndim == 2 and ".layers." in name
        assert kept == ({"momentum_buffer"} if is_hidden else {"step", "exp_avg", "exp_avg_sq"})
    set_learning_rate(optimizer, 0.5)
    assert {g["lr"] for g in optimizer.param_groups} == {0.5, 1.0}  # the value head's is doubled
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for _, p in state.trainable())


def test_muons_update_is_that_of_torch_and_as_large_as_adamws(folder: Path) -> None:
    model = load(str(folder))
    named = dict(model.trainable())
    name = "model.layers.0.mlp.up_proj.weight"
    start, generator = named[name].detach().clone(), torch.Generator().manual_seed(0)
    gradient = torch.randn(start.shape, generator=generator)
    other = torch.nn.Parameter(start.clone())
    plain = torch.optim.Muon(
        [other], lr=1e-3, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    ours = build_optimizer(model.trainable(), OptimizerSettings(name="muon"), 1e-3)
    other.grad, named[name].grad = gradient.clone(), gradient.clone()
    plain.step()
    ours.step()
    assert torch.equal(named[name], other)
    size = float((other.detach() - start).pow(2).mean().sqrt())
    assert 0.1e-3 < size < 0.4e-3  # AdamW's root mean square is about 0.2 to 0.4 of the rate


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "adamw_8bit"])
def test_a_resume_goes_on_as_if_nothing_had_been(folder: Path, tmp_path: Path, name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    whole, first = (state_of(folder, name=name) for _ in range(2))
    for state in (whole, first):
        for seed in range(2):
            give_gradients(state, seed)
            state.optimizer.step()
    place = CheckpointStore(tmp_path).save(first, {}, wait=True)
    resumed = state_of(folder, name=name)
    load_checkpoint(place, resumed)
    for state in (whole, resumed):
        for seed in range(2, 4):
            give_gradients(state, seed)
            state.optimizer.step()
    want = weights(whole)
    assert all(torch.equal(t, want[n]) for n, t in weights(resumed).items())


def test_eight_bits_keep_a_quarter_and_follow_adamw(folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    small, full = state_of(folder, name="adamw_8bit"), state_of(folder)
    start = weights(full)
    for state in (small, full):
        for seed in range(3):
            give_gradients(state, seed % 2)
            state.optimizer.step()
    moved, own = weights(full), weights(small)
    for name, before in start.items():
        want = moved[name] - before
        assert (own[name] - before - want).norm() < 0.1 * want.norm(), name
    table = dict(small.trainable())["model.embed_tokens.weight"]
    kept = [v for v in small.optimizer.state[table].values() if torch.is_tensor(v)]
    assert sum(v.numel() * v.element_size() for v in kept) < 0.3 * 8 * table.numel()


def test_eight_bits_without_their_package_name_the_extra(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'educe\[8bit\]'"):
        build_optimizer(model.trainable(), OptimizerSettings(name="adamw_8bit"), 1e-3)


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(str(folder))
