"""Rows judged by a named checker, with the policy that the recipe or the row declares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import Score, Split, assistant
from educe.domains.answer_checkers import CHECKERS
from educe.domains.check import check_domain
from educe.domains.datasets import RowsDomain, preflight_rows
from educe.rewards.outcome.math_equality import MathPolicy
from educe.rewards.outcome.text import Normalisation


def settings_of(folder: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> DomainSettings:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DomainSettings(path=str(path), options=options, eval_fraction=0.01)


def judged(folder: Path, answer: Any, completion: str, *, row: Any = None, **options: Any) -> Score:
    rows = [{"prompt": "?", "answer": answer, **(row or {})}]
    domain = RowsDomain("mine", settings_of(folder, rows, **options))
    key, place, raw = next(domain.rows.scan())
    task = domain.as_task(raw, key, place)
    return domain.score(task, None, [*task.messages, assistant(completion)], Services())


@pytest.mark.parametrize(
    ("answer", "completion", "options", "value"),
    [
        (r"\frac{1}{2}", r"so \boxed{0.5}", {"checker": "math"}, 1.0),
        (r"\frac{1}{2}", r"so \boxed{0.25}", {"checker": "math"}, 0.0),
        (r"28\%", "28", {"checker": "math"}, 0.0),
        (r"28\%", "28", {"checker": "math", "policy": {"percent": "either"}}, 1.0),
        ("5 cm", "5", {"checker": "math", "policy": {"units": "required"}}, 0.0),
        ("1/3", "0.33", {"checker": "math", "policy": {"decimals": 2}}, 1.0),
        (["2", "3"], r"\boxed{3}", {"checker": "math"}, 1.0),
        ("3.14", "3.1", {"checker": "number"}, 0.0),
        ("3.14", "3.1", {"checker": "number", "policy": {"relative_tolerance": 0.05}}, 1.0),
        ("The Nile", "nile", {"checker": "text", "policy": {"articles": True}}, 1.0),
        ("Nile", "nile", {"checker": "text", "policy": {"case": False}}, 0.0),
        (["Ada", "Bo"], "Bo and Ada", {"checker": "set"}, 1.0),
        (["Ada", "Bo"], "Bo", {"checker": "set"}, 0.0),
        ('{"type": "integer"}', "7", {"checker": "schema"}, 1.0),
        ('{"type": "integer"}', '"7"', {"checker": "schema"}, 0.0),
        (r"\d{3}-\d{4}", "555-1234", {"checker": "pattern"}, 1.0),
        (r"\d{3}-\d{4}", "555-123", {"checker": "pattern"}, 0.0),
    ],
)
def test_checkers_judge(
    tmp_path: Path, answer: Any, completion: str, options: Any, value: float
) -> None:
    assert judged(tmp_path, answer, completion, **options).value == value


def test_a_rows_own_policy_goes_before_the_recipes(tmp_path: Path) -> None:
    options = {"checker": "math", "policy": {"percent": "either", "decimals": 1}}
    row = {"policy": {"percent": "value"}}
    assert judged(tmp_path, r"28\%", "28", **options).value == 1.0
    assert judged(tmp_path, r"28\%", "28", row=row, **options).value == 0.0
    assert judged(tmp_path, "1/3", "0.3", row=row, **options).value == 1.0


@pytest.mark.parametrize(
    ("answer", "checker"),
    [("???", "math"), ("many", "number"), ("[", "pattern"), ("{", "schema")],
)
def test_a_gold_that_cannot_be_read_is_unscored_never_right(
    tmp_path: Path, answer: str, checker: str
) -> None:
    for completion in ("7", answer):
        with pytest.raises(UnscoredError):
            judged(tmp_path, answer, completion, checker=checker)
    if checker == "math":  # another accepted answer that is right decides; a wrong one does not
        assert judged(tmp_path, ["???", "7"], "7", checker=checker).value == 1.0
        with pytest.raises(UnscoredError):
            judged(tmp_path, ["???", "8"], "7", checker=checker)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"checker": "maths"}, "Did you mean 'math'"),
        ({"checker": "math", "policy": {"percnt": "either"}}, "Did you mean 'percent'"),
        ({"checker": "math", "policy": {"percent": "eithr"}}, "percent must be one of value, eith"),
        ({"checker": "math", "policy": {"decimals": -1}}, "decimals >= 0"),
        ({"checker": "math", "policy": {"decimals": "two"}}, "mine: "),
        ({"checker": "math", "policy": {"has_decimal_comma": 1}}, "must be a bool"),
        ({"checker": "number", "policy": {"relative_tolerance": 2}}, r"in \[0, 1\)"),
        ({"checker": "text", "policy": {"case": "no"}}, "must be true or false"),
        ({"checker": "schema", "policy": {"case": True}}, "it has no policy"),
        ({"checker": "math", "policy": 5}, "must be a table"),
        ({"policy": {"percent": "either"}}, "a policy needs a checker"),
    ],
)
def test_a_bad_declaration_is_refused_at_once(tmp_path: Path, options: Any, told: str) -> None:
    with pytest.raises(DomainError, match=told):
        RowsDomain("mine", settings_of(tmp_path, [{"prompt": "?", "answer": "1"}], **options))


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": "1"} for n in range(3)]
    rows.append({"prompt": "x?", "answer": "1", "policy": {"unit": "required"}})  # type: ignore[dict-item]
    settings = settings_of(tmp_path, rows, checker="math")
    with pytest.raises(DomainError, match=r"rows.jsonl:4: .*Did you mean 'units'"):
        preflight_rows("mine", settings)


def test_a_reward_function_and_a_checker_do_not_go_together(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, [{"prompt": "?", "answer": "1"}], checker="math")
    file = tmp_path / "mine.py"
    file.write_text("def one(completions, **kwargs):\n    return [1.0]\n")
    with pytest.raises(DomainError, match="a reward function judges alone"):
        RowsDomain("mine", settings.model_copy(update={"reward": f"{file}:one"}))


def test_a_demonstration_is_right_where_there_is_one(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} names?", "answer": ["Ada", f"Bo{n}"]} for n in range(200)]
    settings = settings_of(tmp_path, rows, checker="set")
    domain = RowsDomain("mine", settings.model_copy(update={"eval_fraction": 0.2}))
    report = check_domain(domain, num_tasks=8, services=Services())
    assert report.gold == 1.0 and not report.problems
    task = domain.task(Split.TRAIN, 0)
    assert domain.demonstration(task)[0].content.startswith("Ada, Bo")
    patterns = [{"prompt": f"{n}?", "answer": r"\d+"} for n in range(40)]
    pattern = RowsDomain("mine", settings_of(tmp_path, patterns, checker="pattern"))
    assert not pattern.spec.has_gold and pattern.task(Split.TRAIN, 0).gold is None


def test_what_policies_may_declare_is_what_checkers_have() -> None:
    assert set(CHECKERS["math"].policy_names) == {field.name for field in fields(MathPolicy)}
    for name in ("text", "set"):
        assert set(CHECKERS[name].policy_names) == {field.name for field in fields(Normalisation)}
