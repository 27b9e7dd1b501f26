"""Recorded decode steps: the same completions as computed ones, whatever changes between steps.

A CUDA graph needs a device. Here a recording runs the recorded function again, on the tensors that
it was recorded with: whatever a step forgets to copy into them shows as another token.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.core.seeds import derive
from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.graphs import STEADY, DecodeGraphs, cuda_record
from educe.models.load import LoadedModel, load


class Again:
    def __init__(self, run: Callable[[], None]) -> None:
        run()
        self.replay = run


def engine_of(model: LoadedModel, record: Callable | None = None, **options) -> EmbeddedEngine:
    engine = EmbeddedEngine(
        model, stop_token_ids=[2], decode=model.tokenizer.decode, drafts=False, **options
    )
    if record is not None:
        runner = engine._runner
        runner._graphs = DecodeGraphs(runner._decoded, record)
    return engine


def requests(count: int, tokens: int, seed: int = 0) -> list[GenerateRequest]:
    """Groups of three on a prompt, of several lengths, which end at different steps."""
    rng = np.random.default_rng(seed)
    asked = []
    for number in range(count):
        prompt = tuple(rng.integers(4, 260, rng.integers(3, 40)).tolist())
        for sample in range(3):
            name = f"{seed}-{number}-{sample}"
            parameters = SamplingParameters(
                seed_key=derive(name), max_tokens=tokens - 7 * sample, ignore_end=True
            )
            asked.append(GenerateRequest(name, prompt, parameters))
    return asked


@pytest.mark.parametrize("forward", ["torch", "module"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_replayed_steps_give_what_computed_ones_give(tiny_folders, architecture, forward):
    model = load(str(tiny_folders[architecture]))
    plain = engine_of(model, forward=forward, max_rows=8)
    recorded = engine_of(model, Again, forward=forward, max_rows=8)
    # More requests than rows: rows leave and others join; more tokens than a slot begins with.
    asked = requests(5, 90)
    wanted = plain.generate(asked)
    assert wanted == recorded.generate(asked)
    replays = recorded._runner._graphs.num_replays
    assert replays > 100
    # Other weights: what was recorded with the old ones is forgotten.
    with torch.no_grad():
        for parameter in model.causal.parameters():
            parameter.mul_(1.3)
    for engine in (plain, recorded):
        engine.rest()
        engine.publish(1)
    asked = requests(4, 40, seed=1)
    changed = plain.generate(asked)
    assert changed == recorded.generate(asked)
    assert recorded._runner._graphs.num_replays > replays


def test_a_step_is_recorded_when_it_came_a_few_times(tiny_folder):
    made = []

    def record(run):
        made.append(engine._runner._graphs._steps)
        return Again(run)

    engine = engine_of(load(str(tiny_folder)), record, forward="torch", max_rows=4)
    engine.generate(requests(1, 60)[:1])
    assert made
    assert set(made) == {STEADY}


def test_what_cannot_be_recorded_is_computed(tiny_folder, caplog):
    def record(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    model = load(str(tiny_folder))
    asked = requests(2, 30)
    broken = engine_of(model, record, forward="torch", max_rows=6)
    assert broken.generate(asked) == engine_of(model, forward="torch", max_rows=6).generate(asked)
    assert caplog.text.count("CUDA graphs") == 1


def test_on_a_cpu_nothing_is_recorded(tiny_folder):
    assert engine_of(load(str(tiny_folder)))._runner._graphs is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graphs_give_what_computed_steps_give(tiny_folder):
    model = load(str(tiny_folder), device="cuda")
    asked = requests(5, 90)
    recorded = engine_of(model, max_rows=8)
    assert recorded._runner._graphs is not None
    found = recorded.generate(asked)
    assert recorded._runner._graphs.num_replays > 50
    wanted = engine_of(model, graphs=False, max_rows=8).generate(asked)
    for mine, right in zip(found, wanted, strict=True):
        assert mine.token_ids == right.token_ids
    assert cuda_record() is not None
