"""Whole runs of stages that sample, and of stages that a recipe repeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from educe.api import train
from educe.config.loader import LoadedRecipe
from educe.core.errors import EduceError
from educe.core.stopping import StopSignal
from educe.models.tiny import save_tiny
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe
from tests.trainers.stage_runs import DOMAIN, check_resume, quiet, recipe, same_bits, weights, write

# Rejection


def rejection_recipe(folder: Path, out: Path, **rejection: Any) -> LoadedRecipe:
    return recipe(
        folder,
        out,
        "rejection",
        domains=DOMAIN,
        rejection={
            "prompts": 8,
            "group_size": 4,
            "min_score": 0.01,
            "max_completion_tokens": 6,
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 1e-2,
            **rejection,
        },
    )


def test_rejection_resumes_bitwise(taught: Path, tmp_path: Path) -> None:
    folder = check_resume(lambda out: rejection_recipe(taught, out), tmp_path, "rejection", 1)
    store = RunStore.open(folder)
    (event,) = store.events("harvest")
    assert 0 < event.payload["kept"] <= 8
    assert event.payload["kept_by_domain"] == {"letters": event.payload["kept"]}
    assert len(list(store.samples())) == 32


def test_rejection_that_is_interrupted_while_it_samples(taught: Path, tmp_path: Path) -> None:
    whole = train(rejection_recipe(taught, tmp_path / "a"), announce=quiet)

    class Later(StopSignal):
        """Asks to stop at the n-th safe point: in the middle of the harvest."""

        left = 12

        def check(self) -> None:
            self.left -= 1
            if self.left == 0:
                self.request("test")
            super().check()

    stopped = train(rejection_recipe(taught, tmp_path / "b"), announce=quiet, stop=Later())
    assert stopped.status == "stopped"
    kept = (stopped.folder / "harvest" / "rejection.jsonl").read_text().splitlines()
    assert len(kept) < 8
    again = train(rejection_recipe(taught, tmp_path / "b"), announce=quiet, resume=True)
    assert same_bits(weights(again.folder, "rejection"), weights(whole.folder, "rejection"))


def test_rejection_imitates_what_it_kept(taught: Path, tmp_path: Path) -> None:
    made = rejection_recipe(taught, tmp_path, prompts=12, group_size=8, epochs=6)
    seen: list[Mapping[str, float]] = []
    train(made, announce=quiet, callbacks=[lambda i: seen.append(i.metrics)])
    assert seen[-1]["rejection/loss"] < seen[0]["rejection/loss"]
    assert "domain/letters/token_loss" in seen[0]


def test_nothing_good_enough_is_an_error(tiny_folder: Path, tmp_path: Path) -> None:
    made = rejection_recipe(tiny_folder, tmp_path, min_score=2.0)
    with pytest.raises(EduceError, match="keeps nothing: of 8 x 4 completions 0 reach"):
        train(made, announce=quiet)


# Distillation


def distillation_recipe(folder: Path, out: Path, teacher: Path, **own: Any) -> LoadedRecipe:
    return recipe(
        folder,
        out,
        "distillation",
        domains=DOMAIN,
        distillation={
            "teacher": str(teacher),
            "steps": 4,
            "prompts": 4,
            "learning_rate": 1e-2,
            "max_completion_tokens": 6,
            **own,
        },
    )


def teach(folder: Path, root: Path, *completions: str) -> Path:
    """Return the tiny model after SFT on completions of equal weight: it writes them and ends."""
    root.mkdir(exist_ok=True)
    rows = [{"prompt": f"{i}", "completion": c} for i in range(8) for c in completions]
    data = write(root / "t.jsonl", rows)
    made = recipe(
        folder,
        root,
        "sft",
        sft={
            "steps": 40,
            "batch_size": 8,
            "num_tasks": 0,
            "learning_rate": 1e-2,
            "data": {"d": {"path": data}},
        },
        checkpoint={"every_steps": 0},
    )
    return train(made, announce=quiet).folder / "models" / "sft"


@pytest.fixture(scope="module")
def taught(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach(tiny_folder, tmp_path_factory.mktemp("taught"), "ab")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("teacher"), seed=11, hidden_size=48)


def test_distillation_resumes_bitwise(tiny_folder: Path, teacher: Path, tmp_path: Path) -> None:
    folder = check_resume(
        lambda out: distillation_recipe(tiny_folder, out, teacher), tmp_path, "distillation", 1
    )
    values = RunStore.open(folder).metrics("distillation")[-1].values
    for name in ("teacher_kl", "reward", "score", "entropy", "grad_norm", "completion_tokens"):
        assert f"distillation/{name}" in values
    assert "domain/letters/teacher_kl" in values


def test_distillation_comes_nearer_to_its_teacher(
    tiny_folder: Path, taught: Path, tmp_path: Path
) -> None:
    """The student knows two answers, its teacher one of them."""
    student = teach(tiny_folder, tmp_path / "student", "ab", "cd")
    made = distillation_recipe(student, tmp_path, taught, steps=12, prompts=16, learning_rate=3e-3)
    gaps: list[float] = []
    train(
        made,
        announce=quiet,
        callbacks=[lambda i: gaps.append(i.metrics["distillation/teacher_kl"])],
    )
    assert sum(gaps[-3:]) < 0.5 * sum(gaps[:3])


# Repeated stages


def test_repeated_stages_have_names_of_their_own(taught: Path, tmp_path: Path) -> None:
    made = tiny_recipe(
        taught,
        tmp_path,
        stages=["rejection", "sft", "rejection", "sft"],
        domains={**DOMAIN, "arithmetic/add/tiny": {}},
        sft={"steps": 2},
        rejection={
            "prompts": 4,
            "group_size": 4,
            "min_score": 0.01,
            "max_completion_tokens": 6,
            "batch_size": 4,
        },
    )
    stop = StopSignal()

    def halt(info: Any) -> None:
        if (info.stage, info.step) == ("sft-2", 0):
            stop.request("test")

    result = train(made, announce=quiet, callbacks=[halt], stop=stop)
    assert result.status == "stopped"
    result = train(made, announce=quiet, resume=True)
    assert result.stages == ("rejection", "sft", "rejection-2", "sft-2")
    store = RunStore.open(result.folder)
    for name in ("sft", "sft-2"):
        rows = store.metrics(name)
        assert [row.step for row in rows] == [0, 1]
        assert f"{name}/loss" in rows[0].values
        assert (result.folder / "models" / name / "config.json").exists()
    # The second harvest takes the tasks behind those of the first.
    first, second = (
        {
            json.loads(line)["task"]["index"]
            for line in (result.folder / "harvest" / f"{name}.jsonl").read_text().splitlines()
        }
        for name in ("rejection", "rejection-2")
    )
    assert not first & second


def test_a_repeated_rl_stage_has_its_own_metrics_and_tasks(
    tiny_folder: Path, tmp_path: Path
) -> None:
    made = tiny_recipe(
        tiny_folder, tmp_path, stages=["rl", "rl"], domains=DOMAIN, rl={"steps": 2, "updates": 1}
    )
    result = train(made, announce=quiet)
    assert result.stages == ("rl", "rl-2")
    store = RunStore.open(result.folder)
    tasks: dict[str, set[str]] = {"rl": set(), "rl-2": set()}
    for sample in store.samples():
        tasks[sample.stage].add(str(sample.body["task_id"]))
    assert len(tasks["rl"]) == len(tasks["rl-2"]) == 4
    assert not tasks["rl"] & tasks["rl-2"]
    rows = store.metrics("rl-2")
    assert [row.step for row in rows] == [0, 1]
    assert "rl-2/reward" in rows[0].values
