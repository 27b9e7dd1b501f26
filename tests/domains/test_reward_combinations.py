"""Several reward functions of a recipe as one score: sum, gate, product, first match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.domains.test_datasets import domain_of, reward_file, score, sums, write

from educe.core.types import Fault
from educe.domains.references import load_reference

# Each returns the number behind its letter in the completion ("a1 b0 c0.5"), None for "-" and an
# error for "!"; what is asked is kept, in order.
SAYING = """
asked = []
def _said(letter, text):
    asked.append(letter)
    word = text.split(letter)[1].split()[0]
    if word == "!":
        raise RuntimeError("the judge is down")
    return [None if word == "-" else float(word)]
def a(completions, **kwargs):
    return _said("a", completions[0])
def b(completions, log_metric, **kwargs):
    log_metric("looked", 1)
    return _said("b", completions[0])
def c(completions, **kwargs):
    return _said("c", completions[0])
"""


@pytest.mark.parametrize(
    ("options", "text", "value", "asked"),
    [
        ({"combine": "gate"}, "a1 b1 c0.5", 0.5, "abc"),
        ({"combine": "gate"}, "a1 b0.9 c!", 0.0, "ab"),  # closed: nobody waits for the judge
        ({"combine": "gate", "gate_threshold": 0.5}, "a1 b0.9 c0.5", 0.5, "abc"),
        ({"combine": "gate"}, "a- b1 c1", None, "a"),
        ({"combine": "gate"}, "a1 b1 c-", None, "abc"),
        ({"combine": "product"}, "a0.5 b0.5 c2", 0.5, "abc"),
        ({"combine": "product"}, "a0 b! c!", 0.0, "a"),
        ({"combine": "product"}, "a- b0 c1", 0.0, "ab"),
        ({"combine": "product"}, "a1 b- c1", None, "abc"),
        ({"combine": "first"}, "a- b0 c!", 0.0, "ab"),
        ({"combine": "first"}, "a- b- c0.25", 0.25, "abc"),
        ({"combine": "first"}, "a- b- c-", None, "abc"),
        ({}, "a1 b- c0.5", 1.5, "abc"),
    ],
)
def test_rewards_are_combined_as_the_recipe_says(
    tmp_path: Path, options: dict[str, Any], text: str, value: float | None, asked: str
) -> None:
    rewards = reward_file(tmp_path, SAYING)
    functions = tuple(f"{rewards}:{letter}" for letter in "abc")
    path = write(tmp_path / "rows.jsonl", sums(20))
    result = score(domain_of(path, reward=functions, options=options), text)
    assert result.value == value and (result.fault is Fault.GRADER) is (value is None)
    assert "".join(load_reference(functions[0], purpose="test").__globals__["asked"]) == asked
    said = {letter: text.split(letter)[1].split()[0] for letter in asked}
    want = {letter: None if word == "-" else float(word) for letter, word in said.items()}
    unasked = dict.fromkeys(set("abc") - set(asked))
    assert {k: v for k, v in result.parts.items() if k in "abc"} == want | unasked
    assert ("looked" in result.parts) is ("b" in asked)


def test_a_function_that_fails_where_it_is_needed_leaves_the_sample_unscored(
    tmp_path: Path,
) -> None:
    rewards = reward_file(tmp_path, SAYING)
    path = write(tmp_path / "rows.jsonl", sums(20))
    for combine in ("gate", "product", "first"):
        domain = domain_of(
            path, reward=(f"{rewards}:a", f"{rewards}:b"), options={"combine": combine}
        )
        with pytest.raises(RuntimeError, match="the judge is down"):
            score(domain, "a! b1")


def test_functions_of_one_name_are_parts_of_their_own(tmp_path: Path) -> None:
    paths = []
    for value in (1.0, 0.25):
        folder = tmp_path / str(value)
        folder.mkdir()
        paths.append(reward_file(folder, f"def f(completions, **kwargs):\n    return [{value}]\n"))
    names = tuple(f"{path}:f" for path in paths)
    rows = write(tmp_path / "rows.jsonl", sums(20))
    result = score(domain_of(rows, reward=names), "x")
    assert result.value == 1.25 and result.parts == dict(zip(names, (1.0, 0.25), strict=True))
