"""JSON answers checked against a JSON schema (the part of draft 2020-12 named below).

Supported keywords: type, enum, const, properties, required, additionalProperties, minProperties,
maxProperties, items, prefixItems, minItems, maxItems, uniqueItems, contains, minLength, maxLength,
pattern, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, allOf, anyOf, oneOf, not.
A schema that uses anything else is refused (unscored), so no requirement is skipped in silence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from educe.core.errors import UnscoredError
from educe.core.types import JSON, Score
from educe.rewards.outcome.extraction import strip_reasoning

MAX_CHARACTERS = 200_000
MAX_DEPTH = 60
_MAX_PATTERN_CHARACTERS = 1000
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "format"}
)
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)```", re.DOTALL)


class JsonAnswerError(ValueError):
    """The completion holds no JSON document that we read."""


def find_json(completion: str) -> JSON:
    """Return the JSON document of a completion: the last fenced block, else the whole text.

    Raises:
        JsonAnswerError: not valid JSON; also for a repeated key, NaN, infinity or a number too
            large for a float, which parsers disagree on.
    """
    text = strip_reasoning(completion)
    if len(text) > MAX_CHARACTERS:
        raise JsonAnswerError(f"longer than {MAX_CHARACTERS} characters")
    blocks = _FENCE.findall(text)
    source = blocks[-1] if blocks else text
    try:
        value = json.loads(
            source,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise JsonAnswerError(str(error) or type(error).__name__) from error
    if _depth_exceeds(value, MAX_DEPTH):
        raise JsonAnswerError("nested too deeply")
    return value


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise JsonAnswerError("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> JSON:
    raise JsonAnswerError(f"{name} is not JSON")


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise JsonAnswerError(f"{literal[:40]} is beyond what a number can be")
    return value


def _depth_exceeds(value: JSON, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for v in level
            if isinstance(v, dict | list)
            for child in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return False
    return True


def schema_match(completion: str, schema: Mapping[str, JSON]) -> Score:
    """Score 1 when the completion is JSON that fulfils the schema.

    Raises:
        UnscoredError: the schema uses keywords we do not check.
    """
    check_schema(schema)
    try:
        value = find_json(completion)
    except JsonAnswerError as error:
        return Score.unparseable(f"no JSON: {error}")
    errors = schema_errors(value, schema)
    return Score.wrong("; ".join(errors[:3])[:300]) if errors else Score.right()


def check_schema(schema: JSON, path: str = "$") -> None:
    """Raise UnscoredError for a schema with keywords or values beyond the supported part."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise UnscoredError(f"schema at {path}: expected an object, got {type(schema).__name__}")
    unknown = set(schema) - set(_CHECKS) - _ANNOTATIONS
    if unknown:
        raise UnscoredError(f"schema at {path}: unsupported keyword {sorted(unknown)[0]!r}")
    types = schema.get("type", [])
    for name in [types] if isinstance(types, str) else types:
        if name not in _TYPES:
            raise UnscoredError(f"schema at {path}: unknown type {name!r}")
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except (re.error, TypeError) as error:
            raise UnscoredError(f"schema at {path}: bad pattern: {error}") from error
    for key in ("items", "contains", "not", "additionalProperties"):
        if key in schema:
            check_schema(schema[key], f"{path}.{key}")
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        for number, part in enumerate(schema.get(key, ())):
            check_schema(part, f"{path}.{key}[{number}]")
    for name, part in schema.get("properties", {}).items():
        check_schema(part, f"{path}.properties.{name}")


def schema_errors(value: JSON, schema: JSON, path: str = "$") -> list[str]:
    """Return what is wrong with the value, as texts that begin with the place in it."""
    if isinstance(schema, bool):
        return [] if schema else [f"{path}: not allowed"]
    errors: list[str] = []
    for keyword, expected in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None:
            errors += [f"{path}{e}" for e in check(value, expected, schema)]
    return errors


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[JSON], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "number": _is_number,
    "integer": lambda v: isinstance(v, int | float) and _is_number(v) and v == int(v),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}


def _same(left: JSON, right: JSON) -> bool:
    """JSON equality: 1 equals 1.0 but not true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    return bool(left == right)


Check = Callable[[Any, Any, Mapping[str, JSON]], list[str]]


def _type(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    names = [expected] if isinstance(expected, str) else list(expected)
    is_right = any(_TYPES[n](value) for n in names)
    return [] if is_right else [f": expected {' or '.join(names)}, got {type(value).__name__}"]


def _limit(
    applies: Callable[[JSON], bool],
    measure: Callable[[Any], Any],
    holds: Callable[[Any, Any], bool],
    text: str,
) -> Check:
    def check(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
        if not applies(value) or holds(measure(value), expected):
            return []
        return [f": expected {text} {expected}, got {measure(value)}"]

    return check


def _properties(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [
        e
        for k, part in expected.items()
        if k in value
        for e in schema_errors(value[k], part, f".{k}")
    ]


def _required(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [f": missing key {k!r}" for k in expected if k not in value]


def _additional(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, dict):
        return []
    extra = [k for k in value if k not in schema.get("properties", {})]
    return [e for k in extra for e in schema_errors(value[k], expected, f".{k}")]


def _items(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, list):
        return []
    start = len(schema.get("prefixItems", ()))
    return [
        e for i in range(start, len(value)) for e in schema_errors(value[i], expected, f"[{i}]")
    ]


def _prefix_items(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, list):
        return []
    pairs = enumerate(zip(value, expected, strict=False))
    return [e for i, (v, part) in pairs for e in schema_errors(v, part, f"[{i}]")]


def _unique_items(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not expected or not isinstance(value, list):
        return []
    keys = [json.dumps(_canonical(v), sort_keys=True) for v in value]
    return [] if len(set(keys)) == len(keys) else [": items are not unique"]


def _canonical(value: JSON) -> JSON:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items()}
    return value


def _pattern(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, str):
        return []
    if len(value) > _MAX_PATTERN_CHARACTERS:
        return [f": too long for the pattern check ({len(value)} characters)"]
    return [] if re.search(expected, value) else [f": does not match {expected!r}"]


def _combined(name: str, allowed: Callable[[int, int], bool]) -> Check:
    def check(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
        hits = sum(not schema_errors(value, part) for part in expected)
        return [] if allowed(hits, len(expected)) else [f": {hits} of {len(expected)} in {name}"]

    return check


def _not(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    return [] if schema_errors(value, expected) else [": matches what it must not"]


def _contains(value: JSON, expected: JSON, schema: Mapping[str, JSON]) -> list[str]:
    if not isinstance(value, list) or any(not schema_errors(v, expected) for v in value):
        return []
    return [": contains no matching item"]


def _is_list(value: JSON) -> bool:
    return isinstance(value, list)


def _is_object(value: JSON) -> bool:
    return isinstance(value, dict)


def _is_string(value: JSON) -> bool:
    return isinstance(value, str)


def _itself(value: JSON) -> JSON:
    return value


def _at_least(a: Any, b: Any) -> bool:
    return bool(a >= b)


def _at_most(a: Any, b: Any) -> bool:
    return bool(a <= b)


def _is_multiple(a: Any, b: Any) -> bool:
    return (Fraction(str(a)) / Fraction(str(b))).denominator == 1


_CHECKS: dict[str, Check] = {
    "type": _type,
    "enum": lambda v, e, s: [] if any(_same(v, x) for x in e) else [": not among the values"],
    "const": lambda v, e, s: [] if _same(v, e) else [f": expected {e!r}"],
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "minProperties": _limit(_is_object, len, _at_least, "at least so many keys:"),
    "maxProperties": _limit(_is_object, len, _at_most, "at most so many keys:"),
    "items": _items,
    "prefixItems": _prefix_items,
    "minItems": _limit(_is_list, len, _at_least, "at least so many items:"),
    "maxItems": _limit(_is_list, len, _at_most, "at most so many items:"),
    "uniqueItems": _unique_items,
    "contains": _contains,
    "minLength": _limit(_is_string, len, _at_least, "at least so many characters:"),
    "maxLength": _limit(_is_string, len, _at_most, "at most so many characters:"),
    "pattern": _pattern,
    "minimum": _limit(_is_number, _itself, _at_least, "at least"),
    "maximum": _limit(_is_number, _itself, _at_most, "at most"),
    "exclusiveMinimum": _limit(_is_number, _itself, lambda a, b: bool(a > b), "more than"),
    "exclusiveMaximum": _limit(_is_number, _itself, lambda a, b: bool(a < b), "less than"),
    "multipleOf": _limit(_is_number, _itself, _is_multiple, "a multiple of"),
    "allOf": _combined("allOf", lambda hits, n: hits == n),
    "anyOf": _combined("anyOf", lambda hits, n: hits >= 1),
    "oneOf": _combined("oneOf", lambda hits, n: hits == 1),
    "not": _not,
}
