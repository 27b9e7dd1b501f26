"""Questions to the settings classes: what may stand at a key, and in which words.

The loader's errors, ``educe explain`` and the recipe reference all take their texts from here, so
a setting is described once, beside its default.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from educe.config.positions import KeyPath
from educe.config.settings import Recipe, Section

_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


@dataclass(frozen=True, slots=True)
class Node:
    """What the schema says about one key.

    Attributes:
        annotation: the type that stands there.
        field: the setting itself; None for entries of free tables (a domain's name).
        is_free: below a table whose keys are the user's own, so nothing more is known.
    """

    annotation: Any
    field: FieldInfo | None = None
    is_free: bool = False

    @property
    def section(self) -> type[Section] | None:
        return _as_section(self.annotation)

    @property
    def entry(self) -> Any:
        """The type of the entries when this is a table with free keys, else None."""
        return get_args(self.annotation)[1] if get_origin(self.annotation) is dict else None


def lookup(path: KeyPath) -> Node | None:
    """Return what may stand at a path, or None when no such key exists."""
    node = Node(Recipe)
    for key in path:
        if node.is_free:
            return node
        if node.section is not None:
            field = node.section.model_fields.get(key)
            if field is None:
                return None
            node = Node(field.annotation, field)
        elif node.entry is Any:
            node = Node(Any, is_free=True)
        elif node.entry is not None:
            node = Node(node.entry)
        else:
            return None
    return node


def keys_named(name: str) -> list[KeyPath]:
    """Return every path of the schema whose last key is ``name`` (free keys as ``*``)."""
    return [path for path, _ in walk_settings() if path[-1] == name]


def walk_settings() -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Yield every setting with its path; the entries of a free table stand under ``*``."""
    yield from _walk(Recipe, ())


def _walk(section: type[Section], prefix: KeyPath) -> Iterator[tuple[KeyPath, FieldInfo]]:
    for name, field in section.model_fields.items():
        path = (*prefix, name)
        node = Node(field.annotation, field)
        nested = node.section or _as_section(node.entry)
        yield path, field
        if nested is not None:
            yield from _walk(nested, path if node.section else (*path, "*"))


def describe_expected(node: Node) -> str:
    """Return what may be written there, e.g. ``an integer > 0``."""
    text = _describe(node.annotation)
    metadata = node.field.metadata if node.field is not None else []
    bounds = [
        f"{sign} {getattr(m, attribute):g}"
        for m in metadata
        for attribute, sign in _BOUNDS
        if getattr(m, attribute, None) is not None
    ]
    return " ".join([text, " and ".join(bounds)]).strip()


def _describe(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if origin is Literal:
        return "one of " + ", ".join(f'"{a}"' for a in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments if a is not type(None))
    if origin is tuple:
        return "a list of " + _describe(arguments[0]).removeprefix("one of ")
    if origin is dict:
        return "a table" if arguments[1] is Any else "a table of name = " + _describe(arguments[1])
    if _as_section(annotation) is not None:
        return "a table of settings"
    return "any value"


def describe_given(value: Any) -> str:
    """Return a value as it would stand in TOML, with the name of its type."""
    shown = format_value(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    names = {bool: "true/false", int: "integer", float: "number", str: "text"}
    names |= {list: "list", tuple: "list", dict: "table"}
    return f"{shown} ({names.get(type(value), type(value).__name__)})"


def format_value(value: Any) -> str:
    """Return a value in TOML spelling (tables inline)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON text is a TOML text
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{k} = {format_value(v)}" for k, v in value.items())
        return "{ " + inner + " }" if inner else "{}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def default_of(field: FieldInfo) -> Any:
    """Return a setting's default value, or None where the default is 'not set'."""
    value = field.get_default(call_default_factory=True, validated_data={})
    return None if value is PydanticUndefined else value


def python_types(annotation: Any) -> set[type]:
    """Return the plain Python types that TOML may deliver for an annotation."""
    origin = get_origin(annotation)
    if origin is Literal:
        return {type(a) for a in get_args(annotation)}
    if origin in (Union, types.UnionType):
        return set().union(*(python_types(a) for a in get_args(annotation)))
    if origin is tuple:
        return {list}
    if origin is dict:
        return {dict}
    if annotation is float:
        return {float, int}
    return {annotation} if isinstance(annotation, type) else {object}


def _as_section(annotation: Any) -> type[Section] | None:
    """The section that stands there, also where it may be left out."""
    parts = [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [a for a in get_args(annotation) if a is not type(None)]
    if len(parts) == 1 and isinstance(parts[0], type) and issubclass(parts[0], Section):
        return parts[0]
    return None
