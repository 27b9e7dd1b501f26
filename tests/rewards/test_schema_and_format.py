"""JSON schema answers and declared layouts."""

from __future__ import annotations

from typing import Any

import pytest

from educe.core.errors import UnscoredError
from educe.core.types import Verdict
from educe.rewards.outcome.format import (
    TagLayout,
    length_format,
    pattern_format,
    sections,
    tag_format,
)
from educe.rewards.outcome.schema import schema_errors, schema_match

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ('{"name": "Ada", "age": 3}', 1.0),
        ('Here it is:\n```json\n{"name": "Ada", "age": 3}\n```', 1.0),
        ('<think>{"x": 1}</think>{"name": "Ada", "age": 3.0}', 1.0),
        ('{"name": "", "age": 3}', 0.0),
        ('{"name": "Ada", "age": true}', 0.0),
        ('{"name": "Ada", "age": "3"}', 0.0),
        ('{"name": "Ada"}', 0.0),
        ('{"name": "Ada", "age": 3, "x": 1}', 0.0),
        ('{"name": "Ada", "name": "Bo", "age": 3}', 0.0),
        ('{"name": "Ada", "age": NaN}', 0.0),
        ("[]", 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_person(completion: str, value: float) -> None:
    assert schema_match(completion, PERSON).value == value


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": [1, "a"]}, 1, True),
        ({"const": None}, None, 0),
        ({"type": ["string", "null"]}, None, 1),
        ({"minimum": 2, "exclusiveMaximum": 3}, 2, 3),
        ({"multipleOf": 0.1}, 0.3, 0.25),
        ({"pattern": "^a+$"}, "aa", "ab"),
        ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [1], []),
        ({"prefixItems": [{"const": 1}], "items": {"const": 2}}, [1, 2], [1, 1]),
        ({"uniqueItems": True}, [1, 2], [1, 1.0]),
        ({"contains": {"const": 3}}, [1, 3], [1]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "x", 1),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1.5, 1),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 2, 3),
        ({"not": {"type": "null"}}, 1, None),
        ({"maxLength": 2}, "ab", "abc"),
        ({"minProperties": 1, "maxProperties": 1}, {"a": 1}, {}),
        (True, 1, None),
    ],
)
def test_keywords(schema: Any, good: Any, bad: Any) -> None:
    assert schema_errors(good, schema) == []
    if schema is not True:
        assert schema_errors(bad, schema)


@pytest.mark.parametrize(
    "schema", [{"typo": 1}, {"type": "text"}, {"pattern": "("}, {"items": {"$ref": "#"}}, 3]
)
def test_a_schema_that_we_cannot_check_is_unscored(schema: Any) -> None:
    with pytest.raises(UnscoredError):
        schema_match("1", schema)


def test_tags() -> None:
    good = "<think>why</think>\n<answer>7</answer>"
    assert tag_format(good).value == 1.0
    assert sections(good, TagLayout()) == {"think": "why", "answer": "7"}
    for bad in (
        "<answer>7</answer><think>why</think>",
        "<think>why</think><answer>7</answer> more",
        "<think>a</think><think>b</think><answer>7</answer>",
        "<think>why<answer>7</answer>",
        "<think></think><answer>7</answer>",
        "",
    ):
        assert tag_format(bad).value == 0.0
    assert tag_format("well " + good, TagLayout(may_have_text_outside=True)).value == 1.0
    with pytest.raises(ValueError, match="distinct"):
        TagLayout(("a", "a"))


def test_patterns_and_lengths() -> None:
    assert pattern_format("A: 7", r"A: \d+").value == 1.0
    assert pattern_format("A: 7!", r"A: \d+").value == 0.0
    with pytest.raises(UnscoredError):
        pattern_format("x", "(")
    assert length_format("one two", max_words=2).value == 1.0
    assert length_format("one two three", max_words=2).value == 0.0
    assert length_format("", max_words=2).value == 0.0
    assert length_format("Sure thing", max_words=5, phrases=["SURE"]).value == 0.0
    assert tag_format("x").verdict is Verdict.UNPARSEABLE
