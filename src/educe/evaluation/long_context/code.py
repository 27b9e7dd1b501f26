"""Long programs: which functions call one, and what a chain of calls returns, among real source.

The source is one pinned package, so every machine sees the same text. Golds come from parsing the
very functions that are shown, or from doing the chain's arithmetic.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass

from educe.evaluation.long_context.draft import Draft, Kind, Piece, Rng, placed
from educe.evaluation.sets.packages import Package, obtain

SOURCE = Package("boltons", "25.0.0", 0.2)
_OPENING = "Read the Python source and answer the question after it."
_MAX_CHARACTERS = 4000
_SHORT = 700
_MIN_SHOWN = 4
_STEMS = ("relay", "adjust", "settle", "resolve", "carry", "refine", "gather", "convert")
_OBJECTS = ("quota", "offset", "margin", "tally", "balance", "reading", "charge", "score")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the package: its name, its text, and the names that it calls."""

    name: str
    text: str
    calls: frozenset[str]


@functools.cache
def source_functions() -> tuple[Function, ...]:
    """Return the package's top-level functions, one of each name, in the order of its files.

    Raises EduceError where the package cannot be had.
    """
    files = obtain(SOURCE, lambda _: None, purpose="long programs")
    found: dict[str, Function] = {}
    for name in sorted(n for n in files.names if n.endswith(".py")):
        text = files.read(name).decode("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                segment = ast.get_source_segment(text, node) or ""
                if 0 < len(segment) <= _MAX_CHARACTERS:
                    found.setdefault(node.name, Function(node.name, segment, _called(node)))
    return tuple(found.values())


def _called(node: ast.AST) -> frozenset[str]:
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            target = inner.func
            if isinstance(target, ast.Name):
                names.add(target.id)
            elif isinstance(target, ast.Attribute):
                names.add(target.attr)
    return frozenset(names)


def _askable(
    shown: list[Function],
) -> tuple[list[Function], dict[str, list[int]], list[str]]:
    """Return the functions, who calls what, and the names that few enough of them call."""
    callers: dict[str, list[int]] = {}
    for i, function in enumerate(shown):
        for name in function.calls:
            callers.setdefault(name, []).append(i)
    return shown, callers, sorted(n for n, c in callers.items() if 1 <= len(c) <= 4 and len(n) > 3)


def write_callers(rng: Rng, size: int, depth: float) -> Draft:
    """Ask for all functions shown that call a name; the gold is read from their syntax trees."""
    shuffled = list(source_functions())
    rng.shuffle(shuffled)
    # Short functions first, so that short prompts are possible; the sort keeps chance's order.
    shuffled.sort(key=lambda f: len(f.text) > _SHORT)
    count = max(_MIN_SHOWN, size)
    shown, callers, usable = _askable(shuffled[:count])
    while not usable and count < len(shuffled):
        count += 2
        shown, callers, usable = _askable(shuffled[:count])
    name = usable[rng.randrange(len(usable))]
    evidence = callers[name]
    answers = sorted(shown[i].name for i in evidence)
    return Draft(
        tuple(f.text for f in shown),
        tuple(evidence),
        f"Question: Which of the functions above call {name}(...)? As a function or as a method. "
        f"Reply with the names of the calling functions only, separated by commas.",
        tuple(answers),
        {"kind": "items"},
        opening=_OPENING,
        separator="\n\n\n",
    )


def write_chain(rng: Rng, size: int, depth: float) -> Draft:
    """Hide a chain of three small functions, spread from ``depth`` on, and ask what it returns."""
    names = [f"{a}_{b}" for a in _STEMS for b in _OBJECTS]
    names = rng.sample(names, 3)
    number = rng.randrange(3, 30)
    texts: list[str] = []
    value = number
    for i, name in enumerate(names):
        operation, result = _operation(rng, value)
        following = f"{names[i + 1]}({operation})" if i < 2 else operation
        texts.append(f"def {name}(amount):\n    return {following}")
        value = result
    functions = list(source_functions())
    rng.shuffle(functions)
    functions.sort(key=lambda f: len(f.text) > _SHORT)
    hay: list[Piece] = [f.text for f in functions[:size]]
    depths = [(depth + i / 3) % 1.0 if i else depth for i in range(3)]
    pieces, index = placed(hay, list(zip(depths, texts, strict=True)))
    return Draft(
        pieces,
        tuple(index),
        f"Question: What does {names[0]}({number}) return? Reply with the number only.",
        (str(value),),
        {"kind": "number"},
        opening=_OPENING,
        separator="\n\n\n",
    )


def _operation(rng: Rng, value: int) -> tuple[str, int]:
    number = rng.randrange(2, 10)
    operations: tuple[tuple[str, Callable[[int], int]], ...] = (
        (f"amount + {number}", lambda v: v + number),
        (f"amount - {number}", lambda v: v - number),
        (f"amount * {number}", lambda v: v * number),
    )
    text, apply = rng.choice(operations)
    return text, apply(value)


CODE: tuple[Kind, ...] = (
    Kind("code-callers", "all callers of a function, in real source", write_callers, 64,
         has_depth=False, source=SOURCE.requirement, licence="BSD-3-Clause", max_length=32768),
    Kind("code-chain", "what a chain of calls returns, hidden in real source", write_chain, 24,
         source=SOURCE.requirement, licence="BSD-3-Clause", max_length=32768),
)  # fmt: skip
