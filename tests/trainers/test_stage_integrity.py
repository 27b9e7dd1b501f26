"""Every stage that learns from scores refuses those of tests that the model's code could reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from educe.api import train
from educe.config.loader import LoadedRecipe
from educe.core.errors import DomainError, EduceError
from educe.observability.run_store import RunStore
from educe.preflight import make_plan
from tests.trainers.recipes import tiny_recipe

STAGES: dict[str, dict[str, Any]] = {
    "rl": {"rl": {"steps": 1}},
    "rejection": {
        "rejection": {
            "prompts": 2, "group_size": 2, "min_score": 0.0, "max_completion_tokens": 4,
            "batch_size": 2, "learning_rate": 1e-3,
        }
    },
    "preference": {
        "preference": {
            "batch_size": 2, "steps": 1,
            "mine": {"prompts": 2, "group_size": 4, "max_completion_tokens": 4, "min_gap": 0.01},
        }
    },
}  # fmt: skip


def quiet(_: str) -> None:
    pass


def run(folder: Path, out: Path, stage: str, **sandbox: Any) -> str:
    domain = {"function": "tests.trainers.letters:InProcessLetters"}
    made = tiny_recipe(
        folder, out, stages=[stage], domains={"letters": domain}, sandbox=sandbox, **STAGES[stage]
    )
    return train(made, announce=quiet).status


@pytest.mark.parametrize("stage", STAGES)
def test_scores_of_tests_in_process_train_only_by_opting_in(
    tiny_folder: Path, tmp_path: Path, stage: str
) -> None:
    with pytest.raises(DomainError, match=r"sandbox\.in_process_tests = true"):
        run(tiny_folder, tmp_path / "refused", stage)
    try:
        assert run(tiny_folder, tmp_path / "taken", stage, in_process_tests=True) == "done"
    except DomainError as error:  # an untaught model may write nothing that is worth keeping
        assert "keeps nothing" in str(error) or "differ" in str(error)


def test_pairs_from_a_runs_samples_carry_it_along(tiny_folder: Path, tmp_path: Path) -> None:
    """The samples of a run that opted in are preference data: for recipes that opt in, too."""
    store = RunStore.create(tmp_path / "earlier", {})
    for number, reward in enumerate((1.0, 0.0)):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"{number}"}]
        sample = {
            "task_id": "letters/train/0",
            "domain": "letters",
            "split": "train",
            "reward": reward,
            "messages": messages,
            "score": {"proof": {"integrity": "in_process"}},
        }
        store.record_sample("rl", 1, sample)
    store.close()

    def made(name: str, **sandbox: Any) -> LoadedRecipe:
        data = {"earlier": {"path": str(tmp_path / "earlier")}}
        preference = {"batch_size": 1, "steps": 1, "data": data}
        return tiny_recipe(
            tiny_folder,
            tmp_path / name,
            stages=["preference"],
            domains={},
            sandbox=sandbox,
            preference=preference,
        )

    (problem,) = make_plan(made("planned"))[1]
    assert "letters/train/0" in str(problem) and "sandbox.in_process_tests = true" in str(problem)
    with pytest.raises(EduceError, match=r"sandbox\.in_process_tests = true"):
        train(made("refused"), announce=quiet)
    assert train(made("taken", in_process_tests=True), announce=quiet).status == "done"
