"""Engine and trainer are one policy: nothing drifts while nothing is learned, and old weights show.

The tiny model samples in bfloat16 from packed copies of its weights, as a large one would. A short
lesson comes first: an untrained model gives every token the same small probability.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from educe.api import BF16_MISMATCH, train
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe

LETTERS = {"letters": {"function": "tests.trainers.letters:DistinctLetters"}}


def mismatches(folder: Path, out: Path, rate: float, steps: int, **options: Any) -> list[float]:
    recipe = tiny_recipe(
        folder,
        out,
        run={"mode": "fast"},
        domains=LETTERS,
        engine={"dtype": "bfloat16"},
        sft={"steps": 60, "num_tasks": 480, "batch_size": 8, "learning_rate": 1e-2},
        rl={"steps": steps, "group_size": 8, "updates": 1, "learning_rate": rate},
        checkpoint={"every_steps": 0},
        guards={"action": "off"},
    )
    result = train(recipe, announce=lambda _: None, **options)
    rows = RunStore.open(result.folder).metrics("rl")
    return [r.values["rl/mismatch"] for r in rows if "rl/mismatch" in r.values]


def alarms(out: Path) -> set[str]:
    return {str(e.payload["kind"]) for e in RunStore.open(out / "run").events("alarm")}


def test_without_learning_the_mismatch_stays_flat(tiny_folder: Path, tmp_path: Path) -> None:
    found = mismatches(tiny_folder, tmp_path, 1e-12, 40)
    assert len(found) >= 30
    third = len(found) // 3
    early, late = sum(found[:third]) / third, sum(found[-third:]) / third
    assert 0 < early < 0.02, "rounding of bfloat16, and nothing else"
    assert abs(late - early) < 0.5 * early
    assert "engine_mismatch" not in alarms(tmp_path)


def shake(info: Any) -> None:
    """Change the trainer's weights once, as one large step would."""
    if (info.stage, info.step) == ("rl", 0):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in info.session.model.causal.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.5 * parameter.std() * noise if parameter.ndim > 1 else 0.0


def test_weights_that_are_not_published_raise_the_alarm(tiny_folder: Path, tmp_path: Path) -> None:
    """An engine that goes on sampling from old weights is seen in the log-probabilities."""

    def keep_old_weights(info: Any) -> None:
        shake(info)
        if info.stage == "rl":
            forward = info.session.engine._runner.forward
            forward.load = forward.release = lambda: None

    found = mismatches(tiny_folder, tmp_path, 1e-4, 6, callbacks=[keep_old_weights])
    assert found[0] < BF16_MISMATCH < min(found[1:])
    assert "engine_mismatch" in alarms(tmp_path)


def test_weights_that_are_published_do_not(tiny_folder: Path, tmp_path: Path) -> None:
    """The same change: what was sampled before the next publish differs, nothing after it."""
    found = mismatches(tiny_folder, tmp_path, 1e-4, 6, callbacks=[shake])
    assert found[1] > BF16_MISMATCH > max(found[2:])
