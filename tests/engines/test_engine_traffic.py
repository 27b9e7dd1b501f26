"""Random traffic: shared beginnings, groups, later turns, cancels, few rows; all as if alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from educe.core.protocols import Completion, GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine
from educe.models.load import load


def conversations(rng: np.random.Generator) -> list[list[GenerateRequest]]:
    """First turns of random conversations, several of a group, many with a common beginning."""
    heads = [tuple(int(t) for t in rng.integers(4, 260, n)) for n in (60, 75, 140)]
    found = []
    for number in range(24):
        head = heads[number % 3] if rng.random() < 0.7 else ()
        prompt = head + tuple(int(t) for t in rng.integers(4, 260, rng.integers(2, 40)))
        size = int(rng.integers(1, 4))
        found.append(
            [
                GenerateRequest(
                    f"{number}.{sample}",
                    prompt,
                    SamplingParameters(
                        max_tokens=int(rng.integers(1, 14)), seed_key=1000 * number + sample
                    ),
                    group_key=str(number) if size > 1 else "",
                    retain=True,
                )
                for sample in range(size)
            ]
        )
    return found


def next_turn(request: GenerateRequest, done: Completion, turn: int) -> GenerateRequest:
    reply = tuple(5 + (len(done.token_ids) + i) % 200 for i in range(3 + turn))
    return replace(
        request,
        request_id=f"{request.request_id.split('/')[0]}/{turn}",
        prompt_token_ids=(*request.prompt_token_ids, *done.token_ids, *reply),
        parameters=replace(request.parameters, seed_key=request.parameters.seed_key + 7 * turn),
        group_key="",
        parent=request.request_id,
        retain=turn < 2,
    )


def drive(engine: EmbeddedEngine, firsts: list[list[GenerateRequest]]) -> dict[str, Completion]:
    """Run all conversations to their third turn, as completions come in."""
    open_requests = {r.request_id: r for group in firsts for r in group}
    for group in firsts:
        for request in group:
            engine.submit(request)
    done: dict[str, Completion] = {}
    while engine.num_unfinished:
        for completion in engine.step():
            request = open_requests[completion.request_id]
            done[completion.request_id] = completion
            if request.parent:
                engine.release(request.parent)
            if request.retain:
                turn = 1 + ("/1" in request.request_id)
                follow = next_turn(request, completion, turn)
                open_requests[follow.request_id] = follow
                engine.submit(follow)
    return done


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_traffic_changes_no_token_and_leaves_nothing(tiny_folder, seed):
    model = load(str(tiny_folder))
    rng = np.random.default_rng(seed)
    firsts = conversations(rng)

    def engine(**options) -> EmbeddedEngine:
        return EmbeddedEngine(model, stop_token_ids=[2], decode=model.tokenizer.decode, **options)

    want = drive(engine(exact=True, max_rows=64), firsts)
    busy = engine(max_rows=5, prefill_tokens=64)
    got = drive(busy, firsts)
    assert got.keys() == want.keys()
    for name, completion in want.items():
        assert got[name].token_ids == completion.token_ids, name
        assert np.allclose(got[name].logprobs, completion.logprobs, atol=1e-4)
    busy.step()
    held = {s for chain in busy._scheduler.prefixes._cached.values() for s in chain}
    assert set(busy._book.segments) == held
    assert busy._runner.store.num_segments == len(held)
    busy.publish(1)
    assert busy._runner.store.num_segments == 0


def test_cancelling_among_others_changes_nothing_else(tiny_folder):
    model = load(str(tiny_folder))
    firsts = [
        [replace(r, retain=False) for r in group]
        for group in conversations(np.random.default_rng(9))
    ]
    flat = [r for group in firsts for r in group]

    def engine() -> EmbeddedEngine:
        return EmbeddedEngine(model, stop_token_ids=[2], decode=model.tokenizer.decode, max_rows=6)

    want = {c.request_id: c for c in engine().generate(flat)}
    other = engine()
    for request in flat:
        other.submit(request)
    dropped = {r.request_id for r in flat[::4]}
    for name in dropped:
        other.cancel(name)
    got: dict[str, Completion] = {}
    while other.num_unfinished:
        got.update({c.request_id: c for c in other.step()})
    assert got.keys() == want.keys()
    for name in want.keys() - dropped:
        assert got[name].token_ids == want[name].token_ids


def test_a_long_dialogue_keeps_a_short_chain(tiny_folder):
    """Each segment of a chain costs every later step some calls, so earlier turns become one."""
    model = load(str(tiny_folder))

    def engine(**options) -> EmbeddedEngine:
        return EmbeddedEngine(model, stop_token_ids=[2], decode=model.tokenizer.decode, **options)

    prompt = tuple(range(4, 60))
    first = GenerateRequest(
        "0", prompt, SamplingParameters(max_tokens=5, seed_key=3, ignore_end=True), retain=True
    )
    fast, exact = engine(), engine(exact=True)
    asked: dict[int, GenerateRequest] = dict.fromkeys((0, 1), first)
    for turn in range(1, 8):
        answers = [e.generate([asked[i]])[0] for i, e in enumerate((fast, exact))]
        assert answers[0].token_ids == answers[1].token_ids
        assert np.allclose(answers[0].logprobs, answers[1].logprobs, atol=1e-4)
        for number, (one, done) in enumerate(zip((fast, exact), answers, strict=True)):
            if asked[number].parent:
                one.release(asked[number].parent)
            chain = one._book._retained[done.request_id]
            assert number or len(chain) <= 4
            follow = replace(next_turn(asked[number], done, turn), retain=True)
            asked[number] = follow
        assert len(fast._book.segments) <= 4
