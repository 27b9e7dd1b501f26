"""Slow tier: memory over many steps, and gradient cuts on the real model."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import pytest

from educe.algorithms.catalogue import BUNDLES
from educe.api import train
from educe.models.load import load
from educe.models.packaged_weights import is_ready, packaged_folder
from tests.trainers.recipes import tiny_recipe
from tests.trainers.test_gradients import distance, gradient, make_samples

pytestmark = pytest.mark.slow


def test_memory_is_flat_over_300_steps(tiny_folder: Path, tmp_path: Path) -> None:
    process = psutil.Process()
    megabytes: list[float] = []
    handles: list[int] = []

    def measure(_: Any) -> None:
        megabytes.append(process.memory_info().rss / 2**20)
        handles.append(process.num_fds() + process.num_threads())

    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        rl={"steps": 300, "updates": 1},
        checkpoint={"every_steps": 50},
    )
    train(recipe, announce=lambda _: None, callbacks=[measure])
    assert len(megabytes) == 300
    early, late = mean(megabytes[100:130]), mean(megabytes[270:])
    assert late - early < 8, f"{early:.1f} MB after 100 steps, {late:.1f} MB after 300"
    assert max(handles[270:]) <= max(handles[50:100]) + 1


MODEL = "smollm2-135m-instruct"


@pytest.mark.skipif(not is_ready(packaged_folder(MODEL)), reason="needs the 135M model's weights")
def test_the_cut_changes_nothing_on_the_real_model_in_fp32() -> None:
    """Decision 2: relative L2 <= 1e-5, whatever the micro-batch and with or without sharing."""
    from dataclasses import replace

    model = load(MODEL, device="cpu", announce=lambda _: None)
    bundle = BUNDLES["grpo"]
    samples = make_samples(["grpo"], groups=3, siblings=3)
    whole = gradient(model, samples, 10_000, [bundle])
    assert whole.norm() > 0
    for limit in (1, 60):
        assert distance(gradient(model, samples, limit, [bundle]), whole) <= 1e-5
    alone = [replace(s, group=i) for i, s in enumerate(samples)]
    assert distance(gradient(model, alone, 10_000, [bundle]), whole) <= 1e-5
