"""One small bug put into a reference solution, and what the broken function really returns."""

from __future__ import annotations

import ast
import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from educe.domains.builtin.python_functions.problem import Case, call_copy

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Only changes that cannot make numbers grow faster than the original did.
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
}
_NAMES = {
    "min": "max",
    "max": "min",
    "upper": "lower",
    "startswith": "endswith",
    "endswith": "startswith",
    "ljust": "rjust",
    "rjust": "ljust",
    "find": "rfind",
}
_MAX_TICKS = 3000
_MAX_TRIES = 12


class _TooManyStepsError(Exception):
    pass


def plant_bug(
    solution: str,
    entry_point: str,
    shown: Sequence[Case],
    hidden: Sequence[Case],
    rng: random.Random,
) -> tuple[str, list[str]] | None:
    """Return a buggy source and its real outcome on each shown test ("" where it is right).

    The bug shows in at least one shown and one hidden test; None when no such bug was found.
    """
    tree = ast.parse(solution)
    places = [(i, name) for i, node in enumerate(ast.walk(tree)) for name, _ in _changes(node)]
    for index, name in rng.sample(places, min(len(places), _MAX_TRIES)):
        broken = copy.deepcopy(tree)
        node = next(n for i, n in enumerate(ast.walk(broken)) if i == index)
        dict(_changes(node))[name]()
        source = ast.unparse(broken)
        function = _load_counted(broken, entry_point)
        outcomes = [_outcome(function, case) for case in shown]
        if any(outcomes) and any(_outcome(function, case) for case in hidden):
            return source, outcomes
    return None


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the named changes that can be made to a node in place."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
        yield "one more", lambda: setattr(node, "value", value + 1)
        if value > 0:
            yield "one less", lambda: setattr(node, "value", value - 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        text = node.value
        yield "typo", lambda: setattr(node, "value", chr(ord(text[0]) + 1) + text[1:])
    elif isinstance(node, ast.Compare):
        swapped = _COMPARISONS.get(type(node.ops[0]))
        if swapped is not None:
            yield "comparison", lambda: node.ops.__setitem__(0, swapped())
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        operator = _OPERATORS.get(type(node.op))
        if operator is not None:
            yield "operator", lambda: setattr(node, "op", operator())
        if isinstance(node, ast.BinOp):
            yield "operands", lambda: _swap(node, "left", "right")
    elif isinstance(node, ast.BoolOp):
        joined: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and-or", lambda: setattr(node, "op", joined)
    elif isinstance(node, ast.IfExp):
        yield "branches", lambda: _swap(node, "body", "orelse")
    elif isinstance(node, ast.Slice):
        yield "slice", lambda: _swap(node, "lower", "upper")
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield "function", lambda: setattr(node, "id", _NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        yield "method", lambda: setattr(node, "attr", _NAMES[node.attr])


def _swap(node: ast.AST, first: str, second: str) -> None:
    one, two = getattr(node, first), getattr(node, second)
    setattr(node, first, two)
    setattr(node, second, one)


def _load_counted(tree: ast.Module, entry_point: str) -> Callable[..., Any]:
    """Return the function with a step counter in its loops: a bug may never end."""
    counted = copy.deepcopy(tree)
    for node in ast.walk(counted):
        if isinstance(node, (ast.For, ast.While, ast.FunctionDef)):
            node.body.insert(0, ast.parse("_tick()").body[0])
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks > _MAX_TICKS:
            raise _TooManyStepsError

    namespace: dict[str, Any] = {"_tick": tick}
    exec(compile(ast.fix_missing_locations(counted), "<bug>", "exec"), namespace)
    function: Callable[..., Any] = namespace[entry_point]

    def call(*args: Any) -> Any:
        nonlocal ticks
        ticks = 0
        return function(*args)

    return call


def _outcome(function: Callable[..., Any], case: Case) -> str:
    """Return what went wrong on a case, as feedback words it; "" when it is right."""
    try:
        got = call_copy(function, case.args)
        if json.dumps(got) == json.dumps(case.expected):
            return ""
        return f"returned {shorten(got)}, expected {shorten(case.expected)}"
    except _TooManyStepsError:
        return f"did not end, expected {shorten(case.expected)}"
    except Exception as error:
        return f"raised {type(error).__name__}: {str(error)[:60]}"


def shorten(value: Any, longest: int = 100) -> str:
    """Return a value as Python text, cut in the middle when it is long."""
    text = repr(value)
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-longest // 3 :]}"
