"""A function to write: its wording, its reference solution and the inputs it is tested on."""

from __future__ import annotations

import json
import random
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from educe.core.types import JSON

Arguments = tuple[JSON, ...]
Inputs = Callable[[random.Random], Arguments]

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "int": ("x", "n", "num", "value", "number"),
    "str": ("s", "text", "word", "string", "line"),
    "ints": ("xs", "nums", "numbers", "values", "data"),
    "strs": ("words", "names", "strings", "terms", "tokens"),
    "dict": ("d", "table", "counts", "mapping", "scores"),
    "grid": ("grid", "matrix", "rows", "board", "cells"),
    "other": ("y", "m", "other", "second", "extra"),
    "pairs": ("pairs", "edges", "links", "spans", "entries"),
}
_VERBS = ("solve", "compute", "run", "f", "apply", "process", "get", "find", "make", "evaluate")

NUMBER_WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]


@dataclass(frozen=True, slots=True)
class Case:
    """One test: positional arguments and the value the reference solution returns for them."""

    args: Arguments
    expected: JSON


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to write.

    ``returns`` and ``body`` name the parameters ``a_``, ``b_`` and ``c_``; the real names are put
    in by :func:`instantiate`. So ``body`` identifies the function whatever its names and wording,
    and the split between train and eval is decided on it.

    Attributes:
        name: a telling function name, e.g. ``add_seven``.
        kinds: parameter kinds, keys of the pool of names.
        returns: noun phrase of what is returned.
        body: source of the reference solution's body, not indented.
        inputs: draws one tuple of arguments.
        edges: corner cases; always among the hidden tests.
        notes: further sentences of the statement.
    """

    name: str
    kinds: tuple[str, ...]
    returns: str
    body: str
    inputs: Inputs
    edges: tuple[Arguments, ...] = ()
    notes: str = ""

    @property
    def key(self) -> str:
        return self.body


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem with its names chosen and its tests computed."""

    key: str
    entry_point: str
    parameters: tuple[str, ...]
    returns: str
    notes: str
    solution: str
    shown: tuple[Case, ...]
    hidden: tuple[Case, ...]

    @property
    def signature(self) -> str:
        return f"{self.entry_point}({', '.join(self.parameters)})"


def expression(
    name: str,
    kinds: Sequence[str],
    returns: str,
    code: str,
    inputs: Inputs,
    edges: Sequence[Arguments] = (),
    notes: str = "",
) -> Problem:
    """Return a problem whose solution is one expression."""
    return Problem(
        name, tuple(kinds), returns, f"return {code}", inputs, tuple(map(tuple, edges)), notes
    )


def program(
    name: str,
    kinds: Sequence[str],
    returns: str,
    body: str,
    inputs: Inputs,
    edges: Sequence[Arguments] = (),
    notes: str = "",
) -> Problem:
    """Return a problem whose solution has several lines; ``body`` may be indented evenly."""
    text = textwrap.dedent(body).strip("\n").rstrip()
    return Problem(name, tuple(kinds), returns, text, inputs, tuple(map(tuple, edges)), notes)


def instantiate(
    problem: Problem, rng: random.Random, num_shown: int, num_hidden: int
) -> Instance | None:
    """Choose names, compute the tests; None when the function is degenerate on its inputs."""
    parameters: list[str] = []
    for kind in problem.kinds:
        pool = [p for p in _PARAMETERS[kind] if p not in parameters]
        parameters.append(rng.choice(pool))
    entry_point = _choose_name(problem.name, parameters, rng)
    solution = source_of(entry_point, parameters, problem.body)
    tests = _choose_tests(problem, load_function(solution, entry_point), rng, num_shown, num_hidden)
    if tests is None:
        return None
    return Instance(
        key=problem.key,
        entry_point=entry_point,
        parameters=tuple(parameters),
        returns=name_parameters(problem.returns, parameters),
        notes=name_parameters(problem.notes, parameters),
        solution=solution,
        shown=tests[0],
        hidden=tests[1],
    )


def _choose_name(telling: str, parameters: Sequence[str], rng: random.Random) -> str:
    """Return a telling name, perhaps dressed up, or one that says nothing.

    Names vary so that no fixed answer can fit more than a few tasks.
    """
    telling = re.sub(r"\W", "_", telling.replace("-", "minus_"))
    style = rng.random()
    if style < 0.35:
        return telling
    if style < 0.6:
        return rng.choice(("get_", "calc_", "my_", "do_", "to_")) + telling
    if style < 0.8:
        return f"{telling}_{rng.choice(('fn', 'of', 'it', 'value', parameters[0]))}"
    generic = rng.choice(_VERBS)
    return f"{generic}_{rng.choice((*parameters, 'it', 'result', '1', '2'))}"


def name_parameters(text: str, parameters: Sequence[str]) -> str:
    """Replace ``a_``, ``b_``, ``c_`` by the parameters' names."""
    return re.sub(r"\b([abc])_(?![\w])", lambda m: parameters["abc".index(m.group(1))], text)


def source_of(entry_point: str, parameters: Sequence[str], body: str) -> str:
    """Return the source of the whole function."""
    head = f"def {entry_point}({', '.join(parameters)}):\n"
    return head + textwrap.indent(name_parameters(body, parameters), "    ")


def load_function(source: str, entry_point: str) -> Callable[..., Any]:
    """Execute source of our own making (never a model's) and return its function."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<reference>", "exec"), namespace)
    found: Callable[..., Any] = namespace[entry_point]
    return found


def call_copy(function: Callable[..., Any], args: Arguments) -> Any:
    """Call with deep copies, so that no test can see another's changes."""
    return function(*json.loads(json.dumps(args)))


def _choose_tests(
    problem: Problem,
    function: Callable[..., Any],
    rng: random.Random,
    num_shown: int,
    num_hidden: int,
) -> tuple[tuple[Case, ...], tuple[Case, ...]] | None:
    """Split distinct inputs into shown and hidden tests with varied results.

    Hidden tests hold every edge case, and no shown input. Rejected: functions whose result hardly
    varies, or mostly is the first argument unchanged (a constant or an echo would pass).
    """
    seen: set[str] = set()
    edges = [c for a in problem.edges if (c := _case(function, a, seen)) is not None]
    drawn: list[Case] = []
    for _ in range(3 * (num_shown + num_hidden)):
        case = _case(function, problem.inputs(rng), seen)
        if case is not None:
            drawn.append(case)
    if len(drawn) < num_shown + 3:
        return None
    varied = _round_robin(drawn)
    shown, rest = varied[:num_shown], varied[num_shown:]
    hidden = (edges + rest)[: max(num_hidden, len(edges) + 3)]
    if not is_varied(hidden):
        return None
    return tuple(shown), tuple(hidden)


def is_varied(cases: Sequence[Case]) -> bool:
    """Return whether neither a constant nor an echo of the input passes most of the tests."""
    echoes = sum(c.args[0] == c.expected for c in cases)
    return constant_share(cases) <= 0.7 and echoes <= 0.6 * len(cases)


def constant_share(cases: Sequence[Case]) -> float:
    """Return the share of tests that the best constant result passes."""
    counts: dict[str, int] = {}
    for case in cases:
        text = json.dumps(case.expected)
        counts[text] = counts.get(text, 0) + 1
    return max(counts.values()) / len(cases)


def _case(function: Callable[..., Any], args: Arguments, seen: set[str]) -> Case | None:
    key = json.dumps(args)
    if key in seen:
        return None
    seen.add(key)
    # The round trip makes the expected value plain JSON: what the sandbox sends back.
    return Case(tuple(args), json.loads(json.dumps(call_copy(function, args))))


def _round_robin(cases: Sequence[Case]) -> list[Case]:
    """Order cases so that results differ as early as possible."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(json.dumps(case.expected), []).append(case)
    ordered: list[Case] = []
    for depth in range(max(map(len, groups.values()), default=0)):
        ordered += [g[depth] for g in groups.values() if depth < len(g)]
    return ordered
