"""Whole runs of the preference stage: it learns, and it resumes bitwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from educe.api import train
from educe.config.loader import LoadedRecipe
from educe.core.errors import EduceError
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe
from tests.trainers.stage_runs import (
    DOMAIN,
    WORDS,
    check_resume,
    labelled,
    pairs,
    preference_recipe,
    quiet,
    recipe,
    write,
)


@pytest.mark.parametrize(
    ("loss", "rows", "reference"),
    [
        ("dpo", pairs(), "precomputed"),
        ("ipo", pairs(), "copy"),
        ("kto", labelled(), "precomputed"),
        pytest.param("kto", pairs(), "copy", marks=pytest.mark.slow),
        pytest.param("orpo", pairs(), "auto", marks=pytest.mark.slow),
        ("simpo", pairs(), "auto"),
    ],
)
def test_preference_resumes_bitwise(
    tiny_folder: Path, tmp_path: Path, loss: str, rows: Any, reference: str
) -> None:
    data = write(tmp_path / "p.jsonl", rows)

    def make(out: Path) -> LoadedRecipe:
        return preference_recipe(tiny_folder, out, data, loss=loss, reference=reference)

    folder = check_resume(make, tmp_path, "preference", 2)
    values = RunStore.open(folder).metrics("preference")[-1].values
    for name in ("loss", "accuracy", "margin", "reward_chosen", "logprob_chosen", "entropy"):
        assert f"preference/{name}" in values
    assert "domain/pairs/accuracy" in values
    assert (folder / "reference").exists() is (reference == "precomputed")


_SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("ipo", "ipo_mean", "orpo", "simpo")]


@pytest.mark.parametrize("loss", ["dpo", "kto", *_SLOW])
def test_preference_learns_what_is_preferred(tiny_folder: Path, tmp_path: Path, loss: str) -> None:
    data = write(tmp_path / "p.jsonl", pairs())
    seen: list[Mapping[str, float]] = []
    made = preference_recipe(
        tiny_folder,
        tmp_path,
        data,
        loss=loss,
        steps=25,
        batch_size=8,
        mine_data={"eval_fraction": 0.3},
        watch={"every": 25},
    )
    train(made, announce=quiet, callbacks=[lambda i: seen.append(i.metrics)])
    if loss != "kto":  # whose accuracy is against the reference point
        assert seen[-1]["preference/accuracy"] == 1.0
    assert seen[-1]["preference/margin"] > seen[0]["preference/margin"]
    assert seen[-1]["preference/eval_accuracy"] > 0.5
    if loss not in ("orpo", "simpo"):  # at the reference no side has a reward yet
        assert abs(seen[0]["preference/reward_chosen"]) < 1e-4


def test_the_base_under_an_adapter_is_the_reference(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", pairs())

    def make(out: Path) -> LoadedRecipe:
        return preference_recipe(tiny_folder, out, data, model={"lora": {"rank": 4}})

    folder = check_resume(make, tmp_path, "preference", 2)
    assert not (folder / "reference").exists()
    values = RunStore.open(folder).metrics("preference")
    assert abs(values[0].values["preference/reward_chosen"]) < 1e-5
    assert values[-1].values["preference/reward_chosen"] != 0


def test_after_another_stage_the_adapter_is_no_reference(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", pairs())
    text = write(tmp_path / "t.jsonl", [{"text": w} for w in WORDS])
    made = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["sft", "preference"],
        domains={},
        model={"lora": {"rank": 4}},
        sft={"data": {"texts": {"path": text}}, "learning_rate": 1e-2},
        preference={"steps": 2, "batch_size": 4, "data": {"pairs": {"path": data}}},
    )
    result = train(made, announce=quiet)
    values = RunStore.open(result.folder).metrics("preference")[0].values
    assert abs(values["preference/reward_chosen"]) < 1e-4  # of the model after sft, not the base
    assert (result.folder / "reference" / "preference.jsonl").exists()


def test_pairs_are_mined_from_scored_samples(tiny_folder: Path, tmp_path: Path) -> None:
    def make(out: Path) -> LoadedRecipe:
        return recipe(
            tiny_folder,
            out,
            "preference",
            domains=DOMAIN,
            preference={
                "steps": 4,
                "batch_size": 4,
                "learning_rate": 1e-2,
                "mine": {
                    "prompts": 6,
                    "group_size": 6,
                    "min_gap": 0.05,
                    "pairs": 2,
                    "max_completion_tokens": 8,
                },
            },
        )

    folder = check_resume(make, tmp_path, "preference", 1)
    (event,) = RunStore.open(folder).events("harvest")
    assert event.payload["prompts"] == 6
    assert event.payload["kept"] > 0
    assert len((folder / "harvest" / "preference.jsonl").read_text().splitlines()) == 6
    samples = list(RunStore.open(folder).samples())
    assert len(samples) == 36
    # A finished run's samples are preference data, too.
    made = preference_recipe(tiny_folder, tmp_path / "next", str(folder), steps=1)
    with pytest.raises(EduceError, match=r"differ by 0\.5"):
        train(made, announce=quiet)
