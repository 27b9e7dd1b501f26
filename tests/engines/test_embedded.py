"""The embedded engine against plain transformers, and what exact mode promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.core.seeds import derive
from educe.core.types import StopReason
from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.sampler import sample
from educe.models.load import LoadedModel, load


def make_engine(model: LoadedModel, **options) -> EmbeddedEngine:
    settings = {"stop_token_ids": [2], "decode": model.tokenizer.decode, **options}
    return EmbeddedEngine(model, **settings)


def request(name: str, prompt, seed: int = 0, **parameters) -> GenerateRequest:
    settings = SamplingParameters(seed_key=derive(name, seed), **parameters)
    return GenerateRequest(name, tuple(prompt), settings)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 260, rng.integers(3, 30)).tolist() for _ in range(count)]


def plain_logprobs(folder: Path, prompt, completion) -> torch.Tensor:
    """Log-probabilities of the completion by transformers' own attention."""
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = plain(ids).logits[0].log_softmax(-1)
    start = len(prompt) - 1
    return logits[start : start + len(completion)].gather(1, ids[0, len(prompt) :, None])[:, 0]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_sampled_logprobs_equal_plain_transformers(tiny_folders, architecture, exact):
    model = load(str(tiny_folders[architecture]))
    engine = make_engine(model, exact=exact, max_rows=3)
    asked = [request(f"r{i}", p, max_tokens=12) for i, p in enumerate(prompts(5))]
    for ask, done in zip(asked, engine.generate(asked), strict=True):
        right = plain_logprobs(tiny_folders[architecture], ask.prompt_token_ids, done.token_ids)
        assert torch.allclose(torch.tensor(done.logprobs), right, atol=1e-4)


def test_greedy_equals_transformers_generate(tiny_folder):
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    engine = make_engine(load(str(tiny_folder)))
    for i, prompt in enumerate(prompts(3, seed=3)):
        (done,) = engine.generate([request(f"g{i}", prompt, max_tokens=10, temperature=0.0)])
        out = plain.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            do_sample=False,
            max_new_tokens=10,
            pad_token_id=0,
        )
        assert out[0, len(prompt) :].tolist() == list(done.token_ids)


def test_exact_mode_ignores_the_batch(tiny_folder):
    """One request alone, among others, late, and with few rows: the same bits."""
    model = load(str(tiny_folder))
    asked = [request(f"r{i}", p, max_tokens=20) for i, p in enumerate(prompts(11, seed=5))]
    alone = [make_engine(model, exact=True).generate([r])[0] for r in asked]
    for rows, order in ((64, asked), (3, asked[::-1]), (5, asked[4:] + asked[:4])):
        engine = make_engine(model, exact=True, max_rows=rows)
        got = {c.request_id: c for c in engine.generate(order)}
        for ask, want in zip(asked, alone, strict=True):
            assert got[ask.request_id].token_ids == want.token_ids
            assert got[ask.request_id].logprobs == want.logprobs


def test_group_prompt_is_computed_once_and_changes_nothing(tiny_folder, monkeypatch):
    model = load(str(tiny_folder))
    (prompt,) = prompts(1, seed=7)
    single = [request(f"s{i}", prompt, max_tokens=8) for i in range(6)]
    grouped = [replace(r, group_key="g") for r in single]
    want = make_engine(model, exact=True).generate(single)
    engine = make_engine(model, exact=True)
    seen = []
    inner = engine._runner.prefill
    monkeypatch.setattr(
        engine._runner, "prefill", lambda jobs, book: seen.extend(jobs) or inner(jobs, book)
    )
    got = engine.generate(grouped)
    assert len(seen) == 1
    assert [c.token_ids for c in got] == [c.token_ids for c in want]


@pytest.mark.parametrize("exact", [True, False])
def test_a_later_turn_starts_from_what_is_cached(tiny_folder, exact):
    model = load(str(tiny_folder))
    (prompt,) = prompts(1, seed=9)
    engine = make_engine(model, exact=exact)
    first = replace(request("t1", prompt, max_tokens=6, ignore_end=True), retain=True)
    (one,) = engine.generate([first])
    longer = [*prompt, *one.token_ids, 7, 8, 9]
    second = replace(request("t2", longer, max_tokens=6), parent="t1")
    (two,) = engine.generate([second])
    right = plain_logprobs(tiny_folder, longer, two.token_ids)
    assert torch.allclose(torch.tensor(two.logprobs), right, atol=1e-4)
    engine.release("t1")
    assert not engine._runner.store.num_segments, "everything is freed after the release"


def test_chunked_prefill_equals_one_forward(tiny_folder):
    model = load(str(tiny_folder))
    prompt = np.random.default_rng(0).integers(4, 260, 50).tolist()
    ask = request("c", prompt, max_tokens=5)
    (want,) = make_engine(model).generate([ask])
    (got,) = make_engine(model, prefill_tokens=16).generate([ask])
    assert got.token_ids == want.token_ids
    assert np.allclose(got.logprobs, want.logprobs, atol=1e-5)


def test_stop_reasons_cancel_and_publish(tiny_folder):
    model = load(str(tiny_folder))
    engine = make_engine(model, max_rows=1)
    engine.submit(request("long", [5, 6], max_tokens=50, ignore_end=True))
    engine.submit(request("waits", [5, 6], max_tokens=50))
    engine.step()
    with pytest.raises(RuntimeError, match="at rest"):
        engine.publish(1)
    engine.cancel("long")
    engine.cancel("waits")
    done = {c.request_id: c for c in [*engine.step(), *engine.step()]}
    assert {c.stop_reason for c in done.values()} == {StopReason.CANCELLED}
    assert len(done["long"].token_ids) >= 1
    (cut,) = engine.generate([request("n", [5, 6], max_tokens=3, ignore_end=True)])
    assert cut.stop_reason is StopReason.LENGTH
    assert len(cut.token_ids) == 3
    engine.publish(1)
    assert engine.version == 1


def test_stop_string_ends_a_completion(tiny_folder):
    model = load(str(tiny_folder))
    (free,) = make_engine(model).generate([request("f", [5, 6, 7], max_tokens=30, ignore_end=True)])
    stop = model.tokenizer.decode(free.token_ids[4:6])
    (cut,) = make_engine(model).generate(
        [request("f", [5, 6, 7], max_tokens=30, ignore_end=True, stop=(stop,))]
    )
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop in cut.text
    assert len(cut.token_ids) <= 6
    assert cut.stop_reason is StopReason.END


def test_sampler_follows_the_distribution():
    """Chi-square over 40,000 draws, at two temperatures."""
    from scipy.stats import chisquare

    logits = torch.randn(1, 600, generator=torch.Generator().manual_seed(0)) * 1.5
    count = 40_000
    for temperature in (1.0, 0.7):
        parameters = [SamplingParameters(temperature=temperature, seed_key=11)] * 500
        seen = np.zeros(600)
        for block in range(count // 500):
            tokens, logprobs = sample(
                logits.expand(500, -1), parameters, range(block * 500, block * 500 + 500)
            )
            np.add.at(seen, tokens, 1)
        probs = (logits[0] / temperature).double().softmax(-1).numpy()
        assert np.allclose(np.exp(logprobs), probs[tokens], rtol=1e-4)
        order = np.argsort(probs)
        bins = np.array_split(order, 40)
        expected = np.array([probs[b].sum() for b in bins]) * count
        assert chisquare([seen[b].sum() for b in bins], expected).pvalue > 1e-3


def test_truncation_keeps_only_the_head():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    for options, allowed in (({"top_k": 2}, {0, 1}), ({"top_p": 0.7}, {0, 1}), ({}, {0, 1, 2, 3})):
        parameters = [SamplingParameters(seed_key=3, **options)] * 400
        tokens, _ = sample(logits.expand(400, -1), parameters, range(400))
        assert set(tokens) == allowed


@pytest.mark.parametrize("forward", ["auto", "torch", "module"])
def test_rest_gives_memory_back_and_changes_nothing(tiny_folder, forward):
    model = load(str(tiny_folder))
    rested = make_engine(model, forward=forward)
    asked = [
        GenerateRequest(str(i), (5, 6, 7 + i), SamplingParameters(max_tokens=8, seed_key=i))
        for i in range(3)
    ]
    want = rested.generate(asked)
    rested.rest()
    assert rested._runner.store.slots.numel() == 0
    assert rested._runner.store.num_segments == 0
    rested.publish(1)
    assert [c.token_ids for c in rested.generate(asked)] == [c.token_ids for c in want]
    rested.rest()
    assert [c.token_ids for c in rested.generate(asked)] == [c.token_ids for c in want]
    rested.rest()
    assert rested.score([(5, 6, 7)])[0].logprobs
    rested.submit(asked[0])
    with pytest.raises(RuntimeError, match="1 requests are unfinished"):
        rested.rest()


@pytest.mark.parametrize("forward", ["auto", "torch", "module"])
def test_rows_are_decoded_in_eights(tiny_folder, monkeypatch, forward):
    """A CPU's matrix kernel plans for every new count of rows; few of them stay as they are."""
    model = load(str(tiny_folder))
    engine = make_engine(model, forward=forward, max_rows=24, drafts=False)
    counts = []
    plain = engine._runner.forward.hidden

    def counted(tokens_BT, positions_BT, context):
        counts.append(len(tokens_BT))
        return plain(tokens_BT, positions_BT, context)

    monkeypatch.setattr(engine._runner.forward, "hidden", counted)
    asked = [
        request(f"r{i}", p, max_tokens=3 + i, ignore_end=True) for i, p in enumerate(prompts(19))
    ]
    found = engine.generate(asked)
    assert set(counts) == {1, 2, 3, 4, 5, 6, 7, 8, 16, 24}
    for ask, done in zip(asked, found, strict=True):
        right = plain_logprobs(tiny_folder, ask.prompt_token_ids, done.token_ids)
        assert torch.allclose(torch.tensor(done.logprobs), right, atol=1e-4)
