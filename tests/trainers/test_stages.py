"""Whole runs of the stages that learn from examples: they learn, and they resume bitwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from educe.api import train
from educe.config.loader import LoadedRecipe
from educe.observability.run_store import RunStore
from tests.trainers.stage_runs import WORDS, check_resume, completions, quiet, recipe, write

# SFT


def test_data_sets_alone_need_no_domain(tiny_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": f"{w} is a colour"} for w in WORDS])
    talk = [
        {"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]}
        for w in WORDS
    ]
    other = write(tmp_path / "b.jsonl", talk)
    made = recipe(
        tiny_folder,
        tmp_path,
        "sft",
        sft={
            "steps": 0,
            "num_tasks": 0,
            "epochs": 30,
            "batch_size": 8,
            "learning_rate": 1e-2,
            "data": {"texts": {"path": path}, "talks": {"path": other, "weight": 1.0}},
        },
        checkpoint={"every_steps": 0},
    )
    losses: list[Mapping[str, float]] = []
    result = train(made, announce=quiet, callbacks=[lambda i: losses.append(i.metrics)])
    assert len(losses) == 60  # 16 rows, 8 a step, 30 epochs
    assert losses[-1]["sft/loss"] < 0.5 * losses[0]["sft/loss"]
    assert {"domain/texts/token_loss", "domain/talks/token_loss"} <= losses[0].keys()
    assert result.status == "done"


def sft_recipe(folder: Path, out: Path, data: str, **sft: Any) -> LoadedRecipe:
    return recipe(
        folder,
        out,
        "sft",
        domains={"arithmetic/add/tiny": {}},
        sft={
            "steps": 6,
            "num_tasks": 20,
            "batch_size": 4,
            "learning_rate": 1e-2,
            "data": {"mine": {"path": data, "eval_fraction": 0.3, **sft.pop("mine", {})}},
            **sft,
        },
    )


@pytest.mark.parametrize("stop_after", [1, 4])  # 4: an epoch ends there
def test_sft_with_everything_resumes_bitwise(
    tiny_folder: Path, tmp_path: Path, stop_after: int
) -> None:
    data = write(tmp_path / "a.jsonl", completions(40))

    def make(out: Path) -> LoadedRecipe:
        return sft_recipe(
            tiny_folder,
            out,
            data,
            label_smoothing=0.1,
            neftune_alpha=5.0,
            watch={"every": 2, "examples": 6},
        )

    folder = check_resume(make, tmp_path, "sft", stop_after)
    rows = RunStore.open(folder).metrics("sft")
    evaluated = [r.step for r in rows if "sft/eval_loss" in r.values]
    assert evaluated == [1, 3, 5]
    assert "domain/mine/eval_loss" in rows[1].values
    assert "domain/arithmetic/add/tiny/eval_loss" in rows[1].values


def test_a_stream_resumes_bitwise(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", completions(30))

    def make(out: Path) -> LoadedRecipe:
        own = {"streaming": True, "shuffle_buffer": 5, "weight": 2.0}
        return sft_recipe(tiny_folder, out, data, mine=own)

    check_resume(make, tmp_path, "sft", 2)


def test_the_stage_ends_with_its_best_weights_and_early(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", [{"prompt": "x", "completion": "y"}] * 8)
    unlike = write(tmp_path / "e.jsonl", [{"prompt": "q", "completion": "0123456789"}])
    made = recipe(
        tiny_folder,
        tmp_path,
        "sft",
        sft={
            "steps": 30,
            "batch_size": 4,
            "learning_rate": 5e-2,
            "data": {"mine": {"path": data, "eval_path": unlike}},
            "watch": {"every": 1, "patience": 3},
        },
        checkpoint={"every_steps": 0},
    )
    result = train(made, announce=quiet)
    store = RunStore.open(result.folder)
    rows = store.metrics("sft")
    losses = [row.values["sft/eval_loss"] for row in rows]
    best = losses.index(min(losses))
    assert len(losses) == best + 4  # three worse looks in a row end it
    (event,) = store.events("best")
    assert event.payload["step"] == best + 1
    # The saved model is the best one: its loss is the best look's.
    again = recipe(
        result.folder / "models" / "sft",
        tmp_path / "again",
        "sft",
        sft={
            "steps": 1,
            "batch_size": 4,
            "learning_rate": 1e-30,
            "data": {"mine": {"path": data, "eval_path": unlike}},
            "watch": {"every": 1},
        },
    )
    seen: list[float] = []
    train(again, announce=quiet, callbacks=[lambda i: seen.append(i.metrics["sft/eval_loss"])])
    assert seen[0] == pytest.approx(min(losses), rel=1e-5)


def test_too_long_examples_are_counted(tiny_folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "x", "completion": "y" * (900 if i % 2 else 3)} for i in range(8)]
    data = write(tmp_path / "a.jsonl", rows)
    sft = {"steps": 1, "batch_size": 8, "num_tasks": 0, "data": {"mine": {"path": data}}}
    seen: list[Mapping[str, float]] = []
    for number, how in enumerate(("skip", "cut")):
        made = recipe(
            tiny_folder,
            tmp_path / str(number),
            "sft",
            model={"context_length": 100},
            sft={**sft, "too_long": how},
        )
        train(made, announce=quiet, callbacks=[lambda i: seen.append(i.metrics)])
    assert [v["sft/skipped_examples"] for v in seen] == [4.0, 0.0]
    assert seen[1]["sft/trained_tokens"] > seen[0]["sft/trained_tokens"]
