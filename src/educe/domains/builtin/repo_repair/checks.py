"""Tests of a generated package: what is observed of each unit, and the test files that show some.

A check is a script whose observations are compared with values. Its first part may be shown as an
ordinary test in a test file; all of it is required, and runs where the values are not known.
"""

from __future__ import annotations

import itertools
import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from educe.domains.builtin.repo_repair.changes import Change
from educe.domains.builtin.repo_repair.package import Package, View
from educe.domains.builtin.repo_repair.templates import Script, Step, Unit, plain_call
from educe.domains.builtin.repo_repair.vocabulary import WORDS

_NUM_INPUTS, _NUM_SHOWN = 12, 2


@dataclass(frozen=True, slots=True)
class Check:
    """A required test. ``unit`` is what it is about ("" for the check of an API's old form)."""

    test_id: str
    unit: str
    imports: tuple[str, ...]
    shown: Script
    hidden: Script

    @property
    def script(self) -> Script:
        return self.shown + self.hidden

    @property
    def num_shown(self) -> int:
        """How many observations are shown."""
        return sum(is_seen for _, is_seen in self.shown)

    @property
    def program(self) -> str:
        """A program that defines ``observe``, which returns what is observed."""
        steps = [
            f"seen.append(copy.deepcopy({code}))" if is_seen else code
            for code, is_seen in self.script
        ]
        body = textwrap.indent("\n".join(["seen = []", *steps, "return seen"]), "    ")
        return "\n".join(["import copy", *self.imports, "", "", "def observe():", body, ""])


def draw_checks(
    rng: random.Random,
    package: Package,
    goal: View,
    target: Unit,
    change: Change | None,
    shown_share: float,
) -> list[Check]:
    """Return a check of every unit, and one of the old form where an API changed."""
    checks = []
    for unit in package.units:
        changed = change if change is not None and unit == target else None
        place = goal.moved.get(unit.module, unit.module)
        name = changed.form.name if changed else unit.name
        last = place.rpartition(".")[2]
        parts = (
            _class_scripts(rng, unit) if unit.is_class else _function_scripts(rng, unit, changed)
        )
        shown, hidden = parts if rng.random() < shown_share else ((), parts[0] + parts[1])
        checks.append(
            Check(
                f"tests/test_{last}.py::test_{unit.name.lower()}",
                unit.name,
                (f"from {place} import {name}",),
                shown,
                hidden,
            )
        )
    if change is not None and change.gone:
        checks.append(Check("tests/test_api.py::test_old_form_is_gone", "", (), (), change.gone))
    return checks


def _class_scripts(rng: random.Random, unit: Unit) -> tuple[Script, Script]:
    draw = unit.template.script
    assert draw is not None
    return draw(rng, unit.name, unit.constants), draw(rng, unit.name, unit.constants)


def _function_scripts(
    rng: random.Random, unit: Unit, change: Change | None
) -> tuple[Script, Script]:
    name = change.form.name if change else unit.name
    codes = []
    for number, arguments in enumerate(draw_arguments(rng, unit)):
        code = plain_call(name, arguments)
        codes.append(change.observed(name, arguments, number) if change else code)
    steps = tuple((code, True) for code in dict.fromkeys(codes) if code)
    return steps[:_NUM_SHOWN], steps[_NUM_SHOWN:]


def draw_arguments(rng: random.Random, unit: Unit) -> list[tuple[str, ...]]:
    """Return argument texts for calls: edges of the constants, repeated and random values."""
    kinds = unit.template.signature.split("->")[0]
    edges = [c + d for c in unit.constants.values() for d in (-1, 0, 1)]
    draws: list[tuple[str, ...]] = []
    if kinds == "v":
        lengths = [0, 1, 2, 3, *(rng.randint(1, 6) for _ in range(_NUM_INPUTS - 4))]
        draws = [(repr(_list(rng, length, edges)),) for length in lengths]
    elif kinds == "t":
        draws = [("''",), *((repr(_text(rng)),) for _ in range(_NUM_INPUTS - 1))]
        exact = [c for c in unit.constants.values() if 1 < c <= 16]
        draws += [(repr(("".join(rng.sample(WORDS, 5)))[: exact[0]]),) for _ in exact[:1] * 2]
    elif kinds == "n":
        numbers = [0, *edges, *(-rng.randint(2, 60) for _ in range(3))]
        draws = [(str(number),) for number in (*numbers, *(rng.randint(1, 99) for _ in range(4)))]
    else:
        numbers = [0, 1, 2, -7, *edges, *edges]
        for _ in range(_NUM_INPUTS // 3):  # a first and a second argument are met again
            one, two, other = (str(_number(rng, numbers)) for _ in range(3))
            draws += [(one, two), (one, other), (other, two)]
        draws += [(str(rng.randint(1, 30)), "0"), (str(rng.randint(31, 60)), "-2")]
    rng.shuffle(draws)
    return draws


def _number(rng: random.Random, likely: Sequence[int]) -> int:
    return rng.choice(likely) if rng.random() < 0.5 else rng.randint(1, 99)


def _list(rng: random.Random, length: int, edges: Sequence[int]) -> list[int]:
    pool = [*(rng.randint(-6, 40) for _ in range(3)), *edges[:6], 0]
    values = [rng.choice(pool) for _ in range(length)]
    if length > 2 and rng.random() < 0.5:
        values[1] = values[0]
    return values


def _text(rng: random.Random) -> str:
    words = rng.sample(WORDS, rng.randint(1, 4))
    words = [word.title() if rng.random() < 0.4 else word for word in words]
    return rng.choice((" ", " ", "  ")).join(words)


def test_files(checks: Iterable[tuple[Check, Sequence[Any]]]) -> dict[str, str]:
    """Return the test files that show the shown parts of checks."""
    found: dict[str, str] = {}
    ordered = sorted(checks, key=lambda pair: pair[0].test_id)
    for path, group in itertools.groupby(ordered, key=lambda p: p[0].test_id.split("::")[0]):
        shown = [(check, values) for check, values in group if check.shown]
        if shown:
            imports = sorted({line for check, _ in shown for line in check.imports})
            texts = [_test_text(check, values) for check, values in shown]
            found[path] = "\n\n".join(["\n".join([*imports, ""]), *texts])
    return found


def _test_text(check: Check, values: Sequence[Any]) -> str:
    remaining = iter(values)
    lines = [
        f"    assert {code} == {next(remaining)!r}" if is_seen else f"    {code}"
        for code, is_seen in check.shown
    ]
    name = check.test_id.split("::")[1]
    return "\n".join([f"def {name}():", *lines, ""])


def steps_to(check: Check, index: int) -> Script:
    """Return the steps up to an observation, from where its object was made if there is one."""
    seen = -1
    steps: list[Step] = []
    for step in check.script:
        code, is_seen = step
        steps = [step] if code.startswith("it") and not is_seen and "= " in code else [*steps, step]
        seen += is_seen
        if seen == index:
            return tuple(steps)
    raise IndexError(index)
