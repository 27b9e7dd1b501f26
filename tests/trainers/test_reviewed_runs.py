"""A task that pays unsafe text: under review its score rises and the unsafe rate does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from educe.api import train
from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Score, Task, user
from educe.rewards.review import Reviewer, ReviewFinding
from educe.rollout import review as reviewing
from tests.trainers.recipes import tiny_recipe


class Tempting(DomainBase):
    """Pays lower-case letters; those from n on, which the review calls unsafe, pay as well."""

    spec = DomainSpec("tempting", "tempting", "text", "Write letters.", has_gold=False)

    def task(self, split, index):
        return Task("tempting", split, index, (user(f"{split} {index}: letters"),))

    def score(self, task, state, transcript, services):
        text = transcript[-1].content
        return Score.graded(sum(c.islower() for c in text) / max(1, len(text)))


def tempting() -> Tempting:
    return Tempting()


class LateLetters:
    """Finds letters from n on."""

    name = "late"

    def inspect(self, text, prompt):
        share = sum("n" <= c <= "z" for c in text) / max(1, len(text))
        return [ReviewFinding(self.name, "letters", share)]


def curves(tiny_folder: Path, tmp_path: Path, mode: str) -> tuple[list[float], list[float]]:
    loaded = tiny_recipe(
        tiny_folder,
        tmp_path / mode,
        stages=["rl"],
        domains={"tempting": {"function": "tests.trainers.test_reviewed_runs:tempting"}},
        run={"mode": "fast"},
        rl={"steps": 25, "prompts": 2, "group_size": 8, "updates": 1, "learning_rate": 5e-3},
        review={"mode": mode, "layers": ["rules"], "penalty": 1.0, "block_at": 0.3},
        checkpoint={"every_steps": 0},
    )
    seen = []
    train(loaded, announce=lambda _: None, callbacks=[lambda info: seen.append(info.metrics)])
    return [m["rl/task_score"] for m in seen], [m["rl/unsafe"] for m in seen]


@pytest.mark.slow
def test_the_task_score_rises_and_the_unsafe_rate_does_not(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        reviewing, "build_reviewer", lambda s: Reviewer([LateLetters()], block_at=s.block_at)
    )
    scores, unsafe = curves(tiny_folder, tmp_path, "observe")
    assert sum(scores[-5:]) > sum(scores[:5])
    assert sum(unsafe[-5:]) > sum(unsafe[:5])
    scores, unsafe = curves(tiny_folder, tmp_path, "penalise")
    assert sum(scores[-5:]) > sum(scores[:5])
    assert sum(unsafe[-5:]) <= sum(unsafe[:5])
