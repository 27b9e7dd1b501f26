"""Drafts change how many tokens a step gives, never which."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.core.types import StopReason
from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.drafts import Lookup
from educe.models.load import load


def make_engine(folder, **options) -> EmbeddedEngine:
    model = load(str(folder))
    return EmbeddedEngine(model, stop_token_ids=[2], decode=model.tokenizer.decode, **options)


def ask(name: str, prompt, *, temperature: float = 0.0, max_tokens: int = 60, ignore_end=True):
    parameters = SamplingParameters(
        max_tokens=max_tokens, temperature=temperature, seed_key=7, ignore_end=ignore_end
    )
    return GenerateRequest(name, tuple(prompt), parameters)


def run(engine: EmbeddedEngine, requests) -> tuple[dict, int]:
    for request in requests:
        engine.submit(request)
    done, steps = {}, 0
    while engine.num_unfinished:
        done.update({c.request_id: c for c in engine.step()})
        steps += 1
    return done, steps


@pytest.mark.parametrize("forward", ["auto", "module"])
@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
def test_same_tokens_in_fewer_steps(tiny_folder, forward, temperature):
    """A greedy tiny model soon repeats itself, so its drafts are right."""
    rng = np.random.default_rng(1)
    asked = [
        ask(str(i), rng.integers(4, 260, 12), temperature=temperature, max_tokens=50 + i)
        for i in range(3)
    ]
    want, plain_steps = run(make_engine(tiny_folder, exact=True), asked)
    got, steps = run(make_engine(tiny_folder, forward=forward), asked)
    for name, completion in want.items():
        assert got[name].token_ids == completion.token_ids
        assert np.allclose(got[name].logprobs, completion.logprobs, atol=1e-4)
        assert got[name].stop_reason is completion.stop_reason
    assert plain_steps >= 52
    if temperature == 0:
        assert steps < 40


def test_an_end_inside_a_draft_ends_the_row(tiny_folder):
    """The prompt says what follows, up to an end token; nothing is kept behind it."""
    engine = make_engine(tiny_folder)
    prompt = [5, 6, 7, 8, 9]
    (free,) = engine.generate([ask("free", prompt, max_tokens=12)])
    told = [*prompt, *free.token_ids[:4], 2, 9, 9, *prompt]
    (want,) = make_engine(tiny_folder, exact=True).generate([ask("a", told, ignore_end=False)])
    (got,) = engine.generate([ask("b", told, ignore_end=False)])
    assert got.token_ids == want.token_ids
    assert 2 not in got.token_ids[:-1]


def test_many_rows_are_not_drafted_for(tiny_folder, monkeypatch):
    engine = make_engine(tiny_folder)
    widths = []
    inner = engine._runner.decode

    def watched(rows, drafts):
        logits = inner(rows, drafts)
        widths.append((len(rows), logits.shape[1]))
        return logits

    monkeypatch.setattr(engine._runner, "decode", watched)
    run(engine, [ask(str(i), [5, 6, 7, 5, 6], max_tokens=20) for i in range(40)])
    assert all(width == 1 for rows, width in widths if rows > 16)
    run(engine, [ask(str(i), [5, 6, 7, 5, 6], max_tokens=40) for i in range(2)])
    assert any(width > 1 for _, width in widths)
    assert all(rows * width <= 32 for rows, width in widths if width > 1)


def test_cancelling_and_turns_keep_what_was_accepted(tiny_folder):
    from dataclasses import replace

    prompt = [5, 6, 7, 8, 9]
    fast, exact = make_engine(tiny_folder), make_engine(tiny_folder, exact=True)
    first = replace(ask("t1", prompt, max_tokens=30), retain=True)
    answers = [e.generate([first])[0] for e in (fast, exact)]
    assert answers[0].token_ids == answers[1].token_ids
    longer = (*prompt, *answers[0].token_ids, 11, 12)
    second = replace(ask("t2", longer, max_tokens=30), parent="t1")
    got, want = (e.generate([second])[0] for e in (fast, exact))
    assert got.token_ids == want.token_ids
    assert torch.allclose(torch.tensor(got.logprobs), torch.tensor(want.logprobs), atol=1e-4)
    fast.submit(ask("c", prompt, max_tokens=50))
    for _ in range(3):
        fast.step()
    fast.cancel("c")
    (ended,) = fast.step()
    assert ended.stop_reason is StopReason.CANCELLED
    assert len(ended.token_ids) >= 3


def test_lookup_follows_the_latest_occurrence_and_gives_up_where_it_is_wrong():
    lookup = Lookup([1, 2, 3, 4, 1, 2, 9, 9])
    assert lookup.propose([1, 2], 3) == (9, 9, 1)
    assert lookup.propose([1, 2, 9], 2) == (9, 1)
    assert Lookup([1, 2, 3]).propose([7], 4) == ()
    for _ in range(6):
        lookup.note(0)
    assert lookup.propose([1, 2, 9], 2) == ()
