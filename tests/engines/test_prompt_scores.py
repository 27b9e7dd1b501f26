"""Likelihoods of given tokens: those of plain transformers, whatever is read or sampled beside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine
from educe.models.load import load


def make(folder, **options) -> EmbeddedEngine:
    model = load(str(folder))
    return EmbeddedEngine(model, stop_token_ids=[2], decode=model.tokenizer.decode, **options)


def texts(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 260, rng.integers(2, 60)).tolist() for _ in range(count)]


def plain(folder, prompt) -> torch.Tensor:
    """Log-probabilities [T - 1, V] by transformers' own attention."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_scores_equal_plain_transformers(tiny_folders, architecture, exact):
    folder = tiny_folders[architecture]
    prompts = texts(4)
    for prefill_tokens in (2048, 7):  # also in chunks of a prompt
        engine = make(folder, exact=exact, prefill_tokens=prefill_tokens)
        for prompt, found in zip(prompts, engine.score(prompts, 3), strict=True):
            right = plain(folder, prompt)
            picked = right.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
            assert torch.allclose(torch.tensor(found.logprobs), picked, atol=1e-4)
            best = right.topk(3)
            assert [[i for i, _ in top] for top in found.top] == best.indices.tolist()
            assert np.allclose([[v for _, v in top] for top in found.top], best.values, atol=1e-4)


def test_neither_the_batch_nor_its_order_changes_a_score(tiny_folder):
    """One at a time, all together, in reverse: no log-probability moves, no first choice flips."""
    prompts = texts(32, seed=1)
    engine = make(tiny_folder)
    alone = [engine.score([p], 1)[0] for p in prompts]
    for batch in (prompts[:8], prompts, prompts[::-1]):
        together = dict(zip(map(tuple, batch), engine.score(batch, 1), strict=True))
        for prompt, one in zip(prompts, alone, strict=True):
            other = together.get(tuple(prompt))
            if other is not None:
                assert np.allclose(one.logprobs, other.logprobs, atol=1e-5)
                assert [t[0][0] for t in one.top] == [t[0][0] for t in other.top]
    exact = make(tiny_folder, exact=True)
    assert [exact.score([p], 1)[0] for p in prompts] == exact.score(prompts, 1)


def test_scoring_leaves_nothing_and_disturbs_nobody(tiny_folder):
    request = GenerateRequest(
        "r", tuple(texts(1, seed=2)[0]), SamplingParameters(max_tokens=12, ignore_end=True)
    )
    undisturbed = make(tiny_folder, exact=True).generate([request])[0]
    engine = make(tiny_folder, exact=True)
    engine.submit(request)
    done = []
    while engine.num_unfinished:
        done += engine.step()
        engine.score(texts(3, seed=3), 2)
    assert done == [undisturbed]
    assert not engine._book.segments
    assert engine._runner.store.num_segments == 0


def test_a_single_token_has_no_score_and_no_token_is_refused(tiny_folder):
    engine = make(tiny_folder)
    (found,) = engine.score([[5]], 2)
    assert found.logprobs == found.top == ()
    with pytest.raises(ValueError, match="no token"):
        engine.score([[5], []])


def test_the_observer_sees_every_token_and_may_end_rows(tiny_folder):
    engine = make(tiny_folder)
    seen: dict[str, int] = {}

    def observe(rows, logits) -> None:
        assert logits.shape == (len(rows), 260)
        for row in rows:
            seen[row.request.request_id] = len(row.token_ids)
            row.cancelled |= row.request.request_id == "b" and len(row.token_ids) == 3

    engine.observer = observe
    settings = SamplingParameters(max_tokens=6, ignore_end=True)
    prompts = texts(2, seed=4)
    first, second = engine.generate(
        [GenerateRequest(n, tuple(p), settings) for n, p in zip("ab", prompts, strict=True)]
    )
    assert seen == {"a": 6, "b": 3}
    assert (len(first.token_ids), len(second.token_ids)) == (6, 3)
    assert str(second.stop_reason) == "cancelled"
