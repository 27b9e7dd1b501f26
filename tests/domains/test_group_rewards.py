"""Reward functions that see all completions of a prompt at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, UnscoredError
from educe.core.protocols import Services, group_state
from educe.core.types import JSON, Message, Score, Split, assistant
from educe.domains.datasets import RowsDomain

REWARDS = '''
calls = []

def rarity(prompts, completions, answer, log_metric, log_extra, **kwargs):
    """1 for what nobody else wrote, shared by those who wrote the same."""
    assert len(prompts) == len(completions) == len(answer) and len(set(prompts)) == 1
    calls.append(len(completions))
    log_metric("kinds", len(set(completions)))
    log_extra("place", list(range(len(completions))))
    return [1.0 / completions.count(text) for text in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str == ground_truth), "length": float(len(solution_str))}

def short_list(completions, **kwargs):
    return [1.0]
'''


def domain_of(folder: Path, *rewards: str, **options: Any) -> RowsDomain:
    (folder / "rewards.py").write_text(REWARDS)
    rows = "".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(30))
    (folder / "rows.jsonl").write_text(rows)
    names = [f"{folder / 'rewards.py'}:{reward}" for reward in rewards or ("rarity",)]
    path = str(folder / "rows.jsonl")
    return RowsDomain("mine", DomainSettings(path=path, reward=names, options=options))


def scores(domain: RowsDomain, *texts: str) -> list[Score]:
    """Judge completions as a runner does: each is asked for with the whole group as its state."""
    task = domain.task(Split.TRAIN, 0)
    transcripts: list[list[Message]] = [[*task.messages, assistant(text)] for text in texts]
    found = []
    for index, transcript in enumerate(transcripts):
        state: JSON = json.loads(json.dumps(group_state(None, transcripts, index)))
        found.append(domain.score(task, state, transcript, Services()))
    return found


def test_a_function_sees_the_whole_group_once(tmp_path: Path) -> None:
    domain = domain_of(tmp_path, batch="group")
    assert domain.spec.scores_groups
    assert domain._rewards is not None
    calls = domain._rewards._functions[0]._function.__globals__["calls"]
    found = scores(domain, "a", "a", "b", "c")
    assert [score.value for score in found] == [0.5, 0.5, 1.0, 1.0]
    assert calls == [4], "a group that was judged already is not judged again"
    assert [score.parts["kinds"] for score in found] == [3.0] * 4
    assert [score.proof["log_extra"] for score in found] == [{"place": n} for n in range(4)]
    assert [score.value for score in scores(domain, "a", "b")] == [1.0, 1.0]
    assert calls == [4, 2]


def test_a_completion_alone_is_a_batch_of_one(tmp_path: Path) -> None:
    for options in ({"batch": "group"}, {}):
        domain = domain_of(tmp_path, **options)
        task = domain.task(Split.TRAIN, 0)
        score = domain.score(task, None, [*task.messages, assistant("a")], Services())
        assert score.value == 1.0 and score.proof["log_extra"] == {"place": 0}
    assert not domain_of(tmp_path).spec.scores_groups


def test_functions_of_both_kinds_are_summed_for_each_completion(tmp_path: Path) -> None:
    domain = domain_of(
        tmp_path, "rarity", "compute_score", batch="group", reward_weights=[0.5, 1.0]
    )
    gold = domain.task(Split.TRAIN, 0).gold or ""
    found = scores(domain, gold, "no", "no")
    assert [score.value for score in found] == [1.5, 0.25, 0.25]
    assert [score.parts["length"] for score in found] == [float(len(gold)), 2.0, 2.0]


def test_a_gate_decides_for_each_completion(tmp_path: Path) -> None:
    domain = domain_of(tmp_path, "compute_score", "rarity", batch="group", combine="gate")
    gold = domain.task(Split.TRAIN, 0).gold or ""
    found = scores(domain, gold, gold, "no", "x")
    assert [score.value for score in found] == [0.5, 0.5, 0.0, 0.0]
    assert found[2].parts["rarity"] is None and found[0].parts["rarity"] == 0.5


def test_a_list_of_another_length_leaves_the_group_unscored(tmp_path: Path) -> None:
    domain = domain_of(tmp_path, "short_list", batch="group")
    with pytest.raises(UnscoredError, match="a list with 3 numbers or None for 3 completions"):
        scores(domain, "a", "b", "c")


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="must be 'one' or 'group'"):
        domain_of(tmp_path, batch="all")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "answer": "1"}\n')
    settings = DomainSettings(path=str(tmp_path / "rows.jsonl"), options={"batch": "group"})
    with pytest.raises(DomainError, match="batch is about rewards"):
        RowsDomain("mine", settings)
