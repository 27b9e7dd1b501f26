"""Beginnings that prompts share are computed once, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.scheduler import CacheBook, PrefixCache, RowScheduler, common_length
from educe.models.load import load


def draw(count: int, length: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(int(t) for t in rng.integers(4, 260, length)) for _ in range(count)]


def ask(name: str, prompt: tuple[int, ...], **options) -> GenerateRequest:
    return GenerateRequest(
        name, prompt, SamplingParameters(max_tokens=6, ignore_end=True, seed_key=7), **options
    )


@pytest.fixture(scope="module")
def model(tiny_folder):
    return load(str(tiny_folder))


def make_engine(model, **options) -> EmbeddedEngine:
    return EmbeddedEngine(model, stop_token_ids=[2], decode=model.tokenizer.decode, **options)


def computed(engine: EmbeddedEngine) -> list[int]:
    """Count the prompt tokens of every prefill from now on."""
    counts: list[int] = []
    inner = engine._runner._reading

    def reading(jobs, book):
        counts.append(sum(len(job.token_ids) for job in jobs))
        return inner(jobs, book)

    engine._runner._reading = reading
    return counts


def test_common_length_is_the_first_difference():
    rng = np.random.default_rng(1)
    for _ in range(200):
        a, b = (rng.integers(0, 2, rng.integers(0, 9)).tolist() for _ in range(2))
        pairs = zip(a, b, strict=False)
        want = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
        assert common_length(a, b) == want


@pytest.mark.parametrize("max_rows", [2, 32])
def test_shared_beginnings_are_computed_once_and_change_nothing(model, max_rows):
    heads = draw(2, 100)
    prompts = [heads[i % 2] + tail for i, tail in enumerate(draw(8, 20, seed=1))]
    asked = [ask(f"r{i}", p) for i, p in enumerate(prompts)]
    want = make_engine(model, exact=True).generate(asked)
    engine = make_engine(model, max_rows=max_rows)
    counts = computed(engine)
    got = engine.generate(asked)
    assert [c.token_ids for c in got] == [c.token_ids for c in want]
    for a, b in zip(got, want, strict=True):
        assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)
    assert sum(counts) <= 2 * 100 + 8 * 20 + 100, (
        "each beginning once, one prompt before it is known"
    )


def test_a_longer_beginning_is_built_on_a_cached_one(model):
    head, more = draw(2, 90)
    tails = draw(4, 12, seed=2)
    prompts = [head + tails[0], head + tails[1], head + more + tails[2], head + more + tails[3]]
    engine = make_engine(model)
    counts = computed(engine)
    got = engine.generate([ask(f"r{i}", p) for i, p in enumerate(prompts)])
    want = make_engine(model, exact=True).generate([ask(f"r{i}", p) for i, p in enumerate(prompts)])
    assert [c.token_ids for c in got] == [c.token_ids for c in want]
    assert sum(counts) == 90 + 90 + 4 * 12


def test_new_weights_forget_what_was_cached(model):
    head = draw(1, 100)[0]
    prompts = [head + tail for tail in draw(3, 10, seed=3)]
    engine = make_engine(model)
    engine.generate([ask(f"a{i}", p) for i, p in enumerate(prompts)])
    assert engine._runner.store.num_segments > 0
    engine.publish(1)
    assert engine._runner.store.num_segments == 0
    counts = computed(engine)
    engine.generate([ask(f"b{i}", p) for i, p in enumerate(prompts)])
    assert sum(counts) == 100 + 3 * 10


def test_what_is_cached_stays_within_its_limit(model):
    engine = make_engine(model, prefill_tokens=128)
    for round_ in range(6):
        head = draw(1, 120, seed=10 + round_)[0]
        tails = draw(3, 10, seed=20 + round_)
        engine.generate([ask(f"{round_}-{i}", head + t) for i, t in enumerate(tails)])
    engine.step()
    cached = engine._scheduler.prefixes._cached
    assert sum(map(len, cached)) <= 4 * 128
    held = {s for chain in cached.values() for s in chain}
    assert set(engine._book.segments) == held, "what was dropped is freed"


def test_groups_and_later_turns_keep_their_own_way(model):
    prompt = draw(1, 80)[0]
    engine = make_engine(model)
    counts = computed(engine)
    group = [ask(f"g{i}", prompt, group_key="g") for i in range(4)]
    engine.generate(group)
    assert counts == [80], "equal prompts of a group are no shared beginning"
    first = replace(ask("t1", draw(1, 80, seed=5)[0]), retain=True)
    (done,) = engine.generate([first])
    counts.clear()
    context = (*first.prompt_token_ids, *done.token_ids, *draw(1, 9, seed=6)[0])
    engine.generate([ask("t2", context, parent="t1")])
    assert sum(counts) == 10, "the newest sampled token and what follows it"


def test_exact_mode_shares_nothing(model):
    head = draw(1, 100)[0]
    engine = make_engine(model, exact=True)
    counts = computed(engine)
    engine.generate([ask(f"r{i}", head + t) for i, t in enumerate(draw(3, 10, seed=3))])
    assert counts == [110, 110, 110]


def test_nothing_admitted_loses_its_beginning_to_the_limit():
    """Many beginnings in one admission: they are trimmed only before the next one."""
    prefixes = PrefixCache(100, 1000)
    scheduler, book = RowScheduler(64, prefixes), CacheBook()
    for number, head in enumerate(draw(5, 80)):
        for tail in draw(2, 5, seed=number):
            scheduler.submit(ask(f"{number}-{tail[0]}", head + tail))
    for job in scheduler.admit(book):
        assert all(s in book.segments for s in job.chain)
    assert len(prefixes.trim(book)) == 4
