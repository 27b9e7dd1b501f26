"""Products and attention on matrix tiles compute what torch's operators compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_native
import torch
from test_native import requests, run, shaken

from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.tiles import TiledGate, TiledMatrix, Tiles, suit_tiles
from educe.models.load import LoadedModel
from educe.models.tiny import ARCHITECTURES, save_tiny
from educe.native.kernels import kernels

pytestmark = pytest.mark.usefixtures("product_way")
# Rows that fill no tile, one, one and a bit, several, and more than one chunk.
ROWS = (1, 7, 16, 17, 32, 33, 64, 70, 1400)
WIDTHS = {"head_dim": 64, "hidden_size": 192, "intermediate_size": 128, "num_attention_heads": 6}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiles")
    return {name: save_tiny(root / name, name, seed=1, **WIDTHS) for name in ARCHITECTURES}


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    kernels().use_threads()
    yield request.param
    torch.set_num_threads(before)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))


def near(got: torch.Tensor, want: torch.Tensor, limit: float = 4e-3) -> bool:
    """bf16 has eight bits: 2 ** -8 is the distance of neighbours."""
    return bool(((got.double() - want).abs() <= limit * (1 + want.abs())).all())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("inputs", [32, 576, 1536])
def test_product(rows, inputs, threads):
    tiles = Tiles(kernels(), 1 << 20)
    x, weight, bias = numbers(rows, inputs).bfloat16(), numbers(96, inputs), numbers(96)
    weight = (weight * inputs**-0.5).bfloat16()
    matrix = TiledMatrix(tiles, weight, bias)
    want = x.double() @ weight.double().T + bias
    assert near(matrix(x), want)
    wide = torch.empty(rows, 96)
    matrix.into(wide, x)
    assert near(wide, want, 1e-5)
    stream = numbers(rows, 96)
    added = stream.clone()
    matrix.add_to(added, x)
    # Rounded as the trainer's product is, then added.
    assert torch.equal(added, stream + wide.bfloat16().float())
    for some in (1, 5, 32):
        assert torch.equal(matrix(x[:some].clone()), matrix(x)[:some])


@pytest.mark.parametrize("rows", ROWS)
def test_gate(rows, threads):
    tiles = Tiles(kernels(), 1 << 20)
    x = (3 * numbers(rows, 192)).bfloat16()
    gate, up = ((numbers(128, 192) * s).bfloat16() for s in (0.7, 0.1))
    fed = torch.empty(rows, 128, dtype=torch.bfloat16)
    TiledGate(tiles, gate, up).into(fed, x)
    rounded = [(x.double() @ w.double().T).bfloat16().double() for w in (gate, up)]
    want = torch.nn.functional.silu(rounded[0]) * rounded[1]
    # A product at the edge of two bf16 numbers may be rounded to the other one.
    assert near(fed, want, 2e-2)
    assert (fed.double() - want).norm() < 3e-3 * want.norm()
    assert x.double().matmul(gate.double().T).abs().max() > 60  # the exponential's ends too


@pytest.mark.parametrize("rows", ROWS)
def test_integers_are_exact(rows, threads):
    tiles = Tiles(kernels(), 1 << 20)
    random = torch.Generator().manual_seed(rows)
    x = torch.randint(-127, 128, (rows, 576), generator=random).to(torch.int8)
    weight = torch.randint(-127, 128, (64, 576), generator=random).to(torch.int8)
    scales, own, bias = numbers(64).abs(), numbers(rows).abs() + 0.1, numbers(64)
    whole = (x.double() @ weight.double().T).float()
    want = whole * scales * own[:, None]
    got = TiledMatrix(tiles, weight, None, scales)(x, own)
    assert torch.allclose(got, want, rtol=1e-6, atol=0)
    with_bias = TiledMatrix(tiles, weight, bias, scales)(x, own)
    assert torch.allclose(with_bias, want + bias, rtol=1e-5, atol=1e-2)
    up_scales = scales.flip(0)
    fed = torch.empty(rows, 64)
    TiledGate(tiles, weight, weight.flip(0), (scales, up_scales * 1e-4)).into(fed, x, own * 1e-5)
    gate = whole * scales * own[:, None] * 1e-5
    up = whole.flip(1) * (up_scales * 1e-4) * own[:, None] * 1e-5
    assert torch.allclose(fed, torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-7)


def test_room_is_used_again_and_never_exceeded():
    tiles = Tiles(kernels(), 32 * 64 * 2)
    first = TiledMatrix(tiles, numbers(32, 64).bfloat16())
    with pytest.raises(ValueError, match="no room"):
        TiledMatrix(tiles, numbers(32, 64).bfloat16())
    tiles.start()
    second = TiledMatrix(tiles, 2 * numbers(32, 64).bfloat16())
    x = numbers(3, 64).bfloat16()
    assert torch.equal(first(x), second(x))


def test_what_suits():
    assert suit_tiles(32, 32, torch.bfloat16)
    assert not suit_tiles(48, 32, torch.bfloat16)
    assert not suit_tiles(32, 48, torch.bfloat16)
    assert suit_tiles(32, 64, torch.int8)
    assert not suit_tiles(32, 32, torch.int8)


def forced_logits(
    model: LoadedModel, forward: str, dtype: torch.dtype, reference: dict[str, list[int]]
) -> tuple[EmbeddedEngine, list[torch.Tensor]]:
    """Teacher-forced logits of every step."""
    engine = EmbeddedEngine(
        model, stop_token_ids=[2], decode=model.tokenizer.decode, dtype=dtype, forward=forward,
        drafts=False,
    )  # fmt: skip
    kept: list[torch.Tensor] = []

    def force(rows, logits):
        kept.append(logits.float().clone())
        for row in rows:
            row.token_ids[-1] = reference[row.request.request_id][len(row.token_ids) - 1]

    engine.observer = force
    engine.generate(requests())
    return engine, kept


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_logits_are_those_of_torch(folders, architecture, dtype):
    model = shaken(folders[architecture])
    reference = {n: c.token_ids for n, c in run(model, "module", torch.float32).items()}
    engine, ours = forced_logits(model, "auto", dtype, reference)
    assert engine._runner.forward.shape.tiles is not None
    _, torchs = forced_logits(model, "torch", dtype, reference)
    assert len(ours) == len(torchs) > 30
    for got, want in zip(ours, torchs, strict=True):
        assert (got - want).norm() < 0.02 * want.norm()


@pytest.mark.parametrize("heads", [(32, 4, 2), (64, 8, 1), (96, 1, 1), (128, 2, 2)])
def test_attention_of_other_shapes(tmp_path, heads):
    width, count, kv = heads
    folder = save_tiny(
        tmp_path / "model", "qwen3", head_dim=width, num_attention_heads=count,
        num_key_value_heads=kv, hidden_size=64, intermediate_size=64,
    )  # fmt: skip
    model = shaken(folder)
    reference = {n: c.token_ids for n, c in run(model, "module", torch.float32).items()}
    _, ours = forced_logits(model, "auto", torch.bfloat16, reference)
    _, torchs = forced_logits(model, "torch", torch.bfloat16, reference)
    for got, want in zip(ours, torchs, strict=True):
        assert (got - want).norm() < 0.02 * want.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_threads_and_rows_change_no_bit(folders, dtype):
    model = shaken(folders["llama"])
    before = torch.get_num_threads()
    found = []
    try:
        for count, rows in ((1, 64), (2, 64), (3, 64), (2, 5)):
            torch.set_num_threads(count)
            found.append(run(model, "auto", dtype, max_rows=rows))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    assert {n: c.token_ids for n, c in found[3].items()} == {
        n: c.token_ids for n, c in found[0].items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_drafts_are_what_would_have_been_drawn(folders, dtype):
    model = shaken(folders["qwen3"])
    plain = run(model, "auto", dtype, max_rows=4)
    drafted = run(model, "auto", dtype, max_rows=4, drafts=True)
    for name, completion in plain.items():
        assert drafted[name].token_ids == completion.token_ids


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_reads_the_weights_again(folders, dtype):
    model = shaken(folders["llama"])
    reference = {n: c.token_ids for n, c in run(model, "module", torch.float32).items()}
    engine, _ = forced_logits(model, "auto", dtype, reference)
    forward = engine._runner.forward
    room = forward.shape.tiles._room.data_ptr()
    with torch.no_grad():
        for parameter in model.causal.parameters():
            parameter.mul_(1.5)
    hidden = numbers(5, 192)
    stale = forward.logits(hidden)
    forward.load()
    fresh = forward.logits(hidden)
    assert forward.shape.tiles._room.data_ptr() == room
    assert (fresh - stale).norm() > 0.1 * stale.norm()
    forward.release()
    assert forward.shape.tiles is None
    forward.load()
    assert torch.equal(forward.logits(hidden), fresh)


def test_without_blocks_torchs_products_do_it(folders, monkeypatch):
    """As on a processor without them."""
    model = shaken(folders["llama"])
    reference = {n: c.token_ids for n, c in run(model, "module", torch.float32).items()}
    monkeypatch.setattr(kernels(), "has_blocks", False)
    engine, ours = forced_logits(model, "auto", torch.bfloat16, reference)
    assert engine._runner.forward.shape.tiles is None
    _, torchs = forced_logits(model, "torch", torch.bfloat16, reference)
    for got, want in zip(ours, torchs, strict=True):
        assert (got - want).norm() < 0.02 * want.norm()


assert test_native.WIDTHS["hidden_size"] % 32, "the other file's sizes are those without tiles"
