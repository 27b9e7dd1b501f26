"""Differences of recipes, and before/after out of eval events."""

from __future__ import annotations

from pathlib import Path

import pytest

from educe.core.errors import RecipeError
from educe.observability.comparisons import compare_answers, compare_domains
from educe.observability.recipe_diff import ABSENT, Change, diff_recipes, flatten, read_recipe
from educe.observability.run_reader import StoredEvent
from educe.observability.run_store import RunStore


def test_only_changed_keys_are_listed_with_both_values() -> None:
    old = {"rl": {"steps": 10, "group_size": 8}, "domains": {"rg/gcd": {"weight": 1.0}, "a": {}}}
    new = {"rl": {"steps": 20, "group_size": 8}, "domains": {"rg/gcd": {"weight": 1.0}}, "x": [1]}
    changes = diff_recipes(old, new)
    assert changes == [
        Change("rl.steps", 10, 20),
        Change("domains.a", {}, ABSENT),
        Change("x", ABSENT, [1]),
    ]
    assert [str(c) for c in changes] == [
        "rl.steps: 10 -> 20",
        "domains.a: {} -> (absent)",
        "x: (absent) -> [1]",
    ]


def test_equal_recipes_have_no_difference() -> None:
    recipe = {"a": {"b": [1, 2], "c": None}}
    assert diff_recipes(recipe, {"a": {"c": None, "b": [1, 2]}}) == []


def test_a_value_that_looks_absent_is_a_value() -> None:
    assert diff_recipes({"a": None}, {}) == [Change("a", None, ABSENT)]


def test_domain_names_are_quoted_as_in_a_recipe() -> None:
    assert flatten({"domains": {"rg/gcd.easy": {"weight": 1}}}) == {
        'domains."rg/gcd.easy".weight': 1
    }


def test_files_are_compared_with_their_defaults(tmp_path: Path) -> None:
    recipe = tmp_path / "a.toml"
    recipe.write_text("[rl]\nsteps = 7\n")
    resolved = read_recipe(recipe)
    store = RunStore.create(tmp_path / "run", {**resolved, "rl": {**resolved["rl"], "prompts": 3}})
    assert diff_recipes(resolved, read_recipe(store.folder)) == [Change("rl.prompts", 8, 3)]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="holds no run"):
        read_recipe(tmp_path)


def evaluation(number: int, **payload: object) -> StoredEvent:
    return StoredEvent("eval", payload, 1, float(number))


def test_first_and_last_results_are_compared() -> None:
    events = [
        evaluation(1, domains={"a": {"score": 0.1, "low": 0.0, "high": 0.2}, "b": 0.5}),
        evaluation(2, domains={"a": {"score": 0.3}}),
        evaluation(3, domains={"a": {"score": 0.4}, "c": {"score": None}}),
        evaluation(4, note="no domains"),
    ]
    compared = {c.domain: c for c in compare_domains(events)}
    before = compared["a"].before
    assert before is not None and (before.score, before.high) == (0.1, 0.2)
    assert compared["a"].after.score == 0.4
    assert compared["b"].before is None and compared["b"].after.score == 0.5
    assert compared["c"].before is None and compared["c"].after.score is None


def test_an_event_may_say_itself_what_it_is_compared_with() -> None:
    events = [
        evaluation(1, domains={"a": 0.1}),
        evaluation(2, domains={"a": 0.6, "b": 0.7}, before={"a": {"score": 0.2}}),
    ]
    first, second = compare_domains(events)
    assert first.before is not None and (first.before.score, first.after.score) == (0.2, 0.6)
    assert second.before is None


def test_answers_are_joined_by_task() -> None:
    def answer(task: str, text: str, score: float | None) -> dict[str, object]:
        return {"task_id": task, "domain": "d", "prompt": "p", "completion": text, "score": score}

    events = [
        evaluation(1, answers=[answer("t1", "bad", 0.0), answer("t2", "only before", 0.0)]),
        evaluation(2, answers=[answer("t1", "middle", 0.5)]),
        evaluation(3, answers=[answer("t1", "good", 1.0), answer("t3", "only after", None)]),
        evaluation(4, answers=[{"task_id": "t4", "before": "x", "after": "y", "score_after": 1}]),
        evaluation(5, answers="broken"),
    ]
    first, second = compare_answers(events)
    assert (first.before, first.after, first.score_before, first.score_after) == (
        "bad",
        "good",
        0.0,
        1.0,
    )
    assert (second.task_id, second.before, second.after) == ("t4", "x", "y")
    assert (second.score_before, second.score_after) == (None, 1.0)
