"""The compiled kernels compute what torch's operators compute, for every architecture and type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from educe.core.protocols import Completion, GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.sampler import sample
from educe.models.load import LoadedModel, load
from educe.models.tiny import ARCHITECTURES, save_tiny
from educe.native.build import open_library
from educe.native.kernels import kernels

pytestmark = pytest.mark.skipif(
    open_library().library is None, reason=f"kernels: {open_library().told}"
)
WIDTHS = {"head_dim": 64, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("native")
    return {name: save_tiny(root / name, name, seed=1, **WIDTHS) for name in ARCHITECTURES}


def shaken(folder: Path) -> LoadedModel:
    """Norm weights and biases that are not one and zero, so that leaving them out shows."""
    model = load(str(folder))
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.causal.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.rand(parameter.shape, generator=random) + 0.5)
    return model


def requests() -> list[GenerateRequest]:
    """Three groups over a common beginning, of very different lengths, and some alone."""
    rng = np.random.default_rng(0)
    head = tuple(int(t) for t in rng.integers(4, 260, 90))
    made = []
    for group, length in enumerate((3, 17, 150)):
        prompt = head + tuple(int(t) for t in rng.integers(4, 260, length))
        made += [(f"{group}.{number}", prompt, str(group)) for number in range(4)]
    made += [
        (f"alone.{i}", tuple(int(t) for t in rng.integers(4, 260, i + 1)), "") for i in range(5)
    ]
    return [
        GenerateRequest(
            name,
            prompt,
            SamplingParameters(max_tokens=40, seed_key=i, ignore_end=True),
            group_key=key,
        )
        for i, (name, prompt, key) in enumerate(made)
    ]


def run(model: LoadedModel, forward: str, dtype: torch.dtype, **options) -> dict[str, Completion]:
    engine = EmbeddedEngine(
        model, stop_token_ids=[2], decode=model.tokenizer.decode, dtype=dtype, forward=forward,
        **{"drafts": False, **options},
    )  # fmt: skip
    assert (engine._runner.forward.kernels is not None) == (forward == "auto")
    return {c.request_id: c for c in engine.generate(requests())}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafts", [False, True])
def test_tokens_and_logprobs_are_the_modules(folders, architecture, drafts):
    model = shaken(folders[architecture])
    want = run(model, "module", torch.float32)
    got = run(model, "auto", torch.float32, drafts=drafts, max_rows=7)
    for name, completion in want.items():
        assert got[name].token_ids == completion.token_ids
        assert got[name].logprobs == pytest.approx(completion.logprobs, abs=2e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.02), (torch.int8, 0.02)])
def test_logits_of_narrow_types_are_those_of_torch(folders, architecture, dtype, limit):
    """Teacher-forced: the same tokens in, so that one other draw cannot spoil the comparison."""
    model = shaken(folders[architecture])
    reference = run(model, "module", torch.float32)
    seen: dict[str, list[torch.Tensor]] = {"auto": [], "torch": []}
    for forward, kept in seen.items():
        engine = EmbeddedEngine(
            model, stop_token_ids=[2], decode=model.tokenizer.decode, dtype=dtype, forward=forward,
            drafts=False,
        )  # fmt: skip

        def force(rows, logits, kept=kept):
            kept.append(logits.float().clone())
            for row in rows:
                row.token_ids[-1] = reference[row.request.request_id].token_ids[
                    len(row.token_ids) - 1
                ]

        engine.observer = force
        engine.generate(requests())
    assert len(seen["auto"]) == len(seen["torch"]) > 30
    for ours, torchs in zip(seen["auto"], seen["torch"], strict=True):
        assert (ours - torchs).norm() < limit * torchs.norm()


@pytest.mark.parametrize("heads", [(16, 4), (32, 2), (80, 6), (96, 3), (128, 1)])
def test_head_widths(tmp_path, heads):
    width, count = heads
    folder = save_tiny(
        tmp_path / "model", "qwen3", head_dim=width, num_attention_heads=4 if count == 4 else count,
        num_key_value_heads=1 if count % 2 else 2, hidden_size=32,
    )  # fmt: skip
    model = shaken(folder)
    want, got = run(model, "module", torch.float32), run(model, "auto", torch.float32)
    assert {n: c.token_ids for n, c in got.items()} == {n: c.token_ids for n, c in want.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [260, 49_152, 1_001])
def test_draws_are_those_of_torch(dtype, vocabulary):
    random = torch.Generator().manual_seed(1)
    logits = (torch.randn(40, vocabulary, generator=random) * 3).to(dtype)
    logits[3, 100:] = float("-inf")
    parameters = [
        SamplingParameters(max_tokens=1, seed_key=i, temperature=(0.0, 0.6, 1.0, 1.7)[i % 4])
        for i in range(40)
    ]
    places = list(range(40))
    tokens, logprobs = sample(logits, parameters, places)
    ours, own = sample(logits, parameters, places, kernels())
    assert ours == tokens
    assert own == pytest.approx(logprobs, abs=1e-5)


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, -float("inf"), 2.0, -1.0]).repeat(20_000, 1)
    parameters = [SamplingParameters(max_tokens=1, seed_key=i) for i in range(len(logits))]
    tokens, _ = sample(logits, parameters, [0] * len(logits), kernels())
    counts = np.bincount(tokens, minlength=5) / len(logits)
    assert counts == pytest.approx(logits[0].softmax(0).numpy(), abs=0.012)
    assert counts[2] == 0


def test_threads_change_no_bit(folders):
    model = shaken(folders["llama"])
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(run(model, "auto", torch.float32))
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
