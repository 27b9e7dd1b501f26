"""API changes: the definition has changed already, its callers have not. Ten kinds."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from educe.domains.builtin.repo_repair.package import Package, path_of
from educe.domains.builtin.repo_repair.templates import (
    Form,
    Script,
    Template,
    Unit,
    Writer,
    fill,
    plain_call,
)
from educe.domains.builtin.repo_repair.vocabulary import CLASSES, MODULES

_RETURN = re.compile(r"^(\s*)return (.+)$", re.MULTILINE)
_GUARD = "    if not values:\n        return "
_UNITS = ("coins", "crowns", "grams", "hours", "kilos", "litres", "metres", "pounds")
_EXTRA = ("basis", "norm", "share")
_DOCSTRING = re.compile(r'"""(.*?)\s*"""', re.DOTALL)

Observed = Callable[[str, Sequence[str], int], str]
"""From a function's name, the texts of its arguments and a running number to the expression that a
test of the changed function observes; "" leaves these arguments out."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a function.

    Attributes:
        definition: its new text; "" when that stays.
        form: how it is called now.
        observed: see above.
        gone: imports and steps that show that the old form does not work any more.
        story: what the model is told.
        moved: old and new name of its module.
        is_silent: a call in the old form looks like one in the new form.
    """

    definition: str
    form: Form
    story: str
    observed: Observed
    gone: Script = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    is_silent: bool = False


def kinds_for(template: Template) -> list[str]:
    """Return the kinds of changes that can be made to a template's function."""
    return [kind for kind, (fits, _) in _KINDS.items() if fits(template)]


def draw_change(kind: str, rng: random.Random, unit: Unit, package: Package) -> Change:
    """Return a change of a unit of a package; the kind must be one of ``kinds_for``."""
    return _KINDS[kind][1](rng, unit, package)


def _as_called(write: Writer = plain_call) -> Observed:
    return lambda name, arguments, _: write(name, arguments)


def _place(unit: Unit) -> str:
    return f"In {path_of(unit.module)} the function `{unit.name}`"


def _refused(call: str, error: str, setting: str = "") -> Script:
    """Return steps that observe whether a call raises an error."""
    lines = [setting, "try:", f"    {call}", "    is_refused = False", f"except {error}:"]
    code = "\n".join([*filter(None, lines), "    is_refused = True"])
    return ((code, False), ("is_refused", True))


def _absent(unit: Unit) -> Script:
    parent, _, last = unit.module.rpartition(".")
    return (
        (f"from {parent} import {last} as home", False),
        (f"hasattr(home, {unit.name!r})", True),
    )


def _sample(unit: Unit) -> list[str]:
    """Return some arguments for a call of the function."""
    examples = {"n": "12", "v": "[3, 1, 2]", "t": "'one two'"}
    return [examples[kind] for kind in unit.template.signature.split("->")[0]]


def _rename(rng: random.Random, unit: Unit, package: Package) -> Change:
    noun = unit.name.rsplit("_" + _word(unit), 1)[0]
    words = [w for w in unit.template.names if w != _word(unit)]
    name = f"{noun}_{rng.choice(words)}"
    return Change(
        replace(unit, name=name).definition(plain_call),
        Form(unit.module, name),
        f"{_place(unit)} is now called `{name}`.",
        _as_called(),
        _absent(unit),
    )


def _word(unit: Unit) -> str:
    return next(w for w in unit.template.names if unit.name.endswith("_" + w))


def _new_parameter(rng: random.Random, unit: Unit, package: Package) -> Change:
    extra, usual = rng.choice(_EXTRA), str(unit.constants["a"])
    parameters = ", ".join(unit.template.parameters)
    text = unit.template.text.replace(f"({parameters}):", f"({parameters}, {extra}):", 1)

    def write(reference: str, arguments: Sequence[str]) -> str:
        return plain_call(reference, [*arguments, usual])

    def observed(name: str, arguments: Sequence[str], number: int) -> str:
        return plain_call(name, [*arguments, str(int(usual) + number % 3)])

    return Change(
        fill(text, unit.name, {**unit.constants, "a": extra}),
        Form(unit.module, unit.name, write),
        f"{_place(unit)} now takes one more argument, `{extra}`, without a default. Its callers "
        f"must pass {usual}, which is what they relied on so far.",
        observed,
        _refused(plain_call("changed", _sample(unit)), "TypeError", _named(unit, "changed")),
    )


def _named(unit: Unit, name: str) -> str:
    return f"from {unit.module} import {unit.name} as {name}"


def _argument_order(rng: random.Random, unit: Unit, package: Package) -> Change:
    first, second = unit.template.parameters
    text = unit.template.text.replace(f"({first}, {second}):", f"({second}, {first}):", 1)

    def write(reference: str, arguments: Sequence[str]) -> str:
        return plain_call(reference, arguments[::-1])

    return Change(
        fill(text, unit.name, unit.constants),
        Form(unit.module, unit.name, write),
        f"{_place(unit)} now takes `{second}` first and `{first}` second.",
        _as_called(write),
        is_silent=True,
    )


def _keyword_only(rng: random.Random, unit: Unit, package: Package) -> Change:
    *before, last = unit.template.parameters
    whole = ", ".join([*before, last])
    starred = ", ".join([*before, "*", last])
    text = unit.template.text.replace(f"({whole}):", f"({starred}):", 1)

    def write(reference: str, arguments: Sequence[str]) -> str:
        return plain_call(reference, [*arguments[:-1], f"{last}={arguments[-1]}"])

    return Change(
        fill(text, unit.name, unit.constants),
        Form(unit.module, unit.name, write),
        f"{_place(unit)} now takes `{last}` by keyword only.",
        _as_called(write),
        _refused(plain_call("changed", _sample(unit)), "TypeError", _named(unit, "changed")),
    )


def _returning(unit: Unit, note: str, pattern: str) -> str:
    """Return the definition with each returned value put into a pattern, and the note on it."""
    text = unit.definition(plain_call)
    text = _DOCSTRING.sub(lambda m: f'"""{m[1]}\n\n    {note}\n    """', text, count=1)
    return _RETURN.sub(lambda m: f"{m[1]}return {pattern.format(m[2])}", text)


def _returns_pair(rng: random.Random, unit: Unit, package: Package) -> Change:
    word = rng.choice(_UNITS)
    return Change(
        _returning(unit, f"The result is a pair: this number, and {word!r}.", f'{{}}, "{word}"'),
        Form(unit.module, unit.name, lambda r, a: plain_call(r, a) + "[0]"),
        f"{_place(unit)} now returns a pair: the number that it returned so far, and '{word}'.",
        lambda name, arguments, _: f"list({plain_call(name, arguments)})",
    )


def _returns_dict(rng: random.Random, unit: Unit, package: Package) -> Change:
    key = rng.choice(("number", "result", "value"))
    return Change(
        _returning(
            unit,
            f"The result is a dictionary with this number under {key!r}.",
            f'{{{{"{key}": {{}}}}}}',
        ),
        Form(unit.module, unit.name, lambda r, a: plain_call(r, a) + f'["{key}"]'),
        f"{_place(unit)} now returns a dictionary; what it returned so far is under '{key}'.",
        _as_called(),
    )


def _other_unit(rng: random.Random, unit: Unit, package: Package) -> Change:
    factor = rng.choice((10, 60, 100, 1000))
    return Change(
        _returning(unit, f"The result counts in parts of 1/{factor}.", f"({{}}) * {factor}"),
        Form(unit.module, unit.name, lambda r, a: f"{plain_call(r, a)} // {factor}"),
        f"{_place(unit)} now counts in parts of 1/{factor}: it returns {factor} times what it "
        f"returned so far. Its callers must give the same results as before.",
        _as_called(),
    )


def _to_method(rng: random.Random, unit: Unit, package: Package) -> Change:
    name = unit.name.split("_")[0].title() + rng.choice(CLASSES)
    text = unit.definition(plain_call).replace(f"def {unit.name}(", f"def {unit.name}(self, ", 1)
    note = f'class {name}:\n    """Made without arguments."""\n\n'
    return Change(
        note + textwrap.indent(text, "    "),
        Form(unit.module, name, lambda r, a: f"{r}().{plain_call(unit.name, a)}"),
        f"{_place(unit)} is now a method of the class `{name}`, which is made without arguments.",
        lambda _, arguments, __: f"{name}().{plain_call(unit.name, arguments)}",
        _absent(unit),
    )


def _raises(rng: random.Random, unit: Unit, package: Package) -> Change:
    text = unit.template.text
    usual = text.partition(_GUARD)[2].partition("\n")[0]
    text = text.replace(_GUARD + usual, '    if not values:\n        raise ValueError("no values")')
    text = text.replace(f"{usual} for no values", "ValueError for no values")
    value = str(unit.constants[usual[1:]]) if usual.startswith("$") else usual
    return Change(
        fill(text, unit.name, unit.constants),
        Form(unit.module, unit.name, lambda r, a: f"({plain_call(r, a)} if {a[0]} else {value})"),
        f"{_place(unit)} now raises ValueError for an empty list, where it returned {value} so "
        f"far. Its callers must still work with {value} then.",
        lambda name, arguments, _: "" if arguments[0] == "[]" else plain_call(name, arguments),
        _refused("changed([])", "ValueError", _named(unit, "changed")),
    )


def _move_module(rng: random.Random, unit: Unit, package: Package) -> Change:
    parent = unit.module.rpartition(".")[0]
    taken = {module.rpartition(".")[2] for module in package.modules}
    place = f"{parent}.{rng.choice([word for word in MODULES if word not in taken])}"
    return Change(
        "",
        Form(place, unit.name),
        f"The module {path_of(unit.module)} is now {path_of(place)}.",
        _as_called(),
        _refused(
            f"importlib.import_module({unit.module!r})", "ModuleNotFoundError", "import importlib"
        ),
        {unit.module: place},
    )


def _has_plain_parameters(template: Template) -> bool:
    return all("=" not in parameter for parameter in template.parameters)


def _has_order(template: Template) -> bool:
    return template.signature == "nn->n" and template.key != "turned"  # where it makes none


def _gives_number(template: Template) -> bool:
    return template.signature.endswith("->n")


def _can_grow(template: Template) -> bool:
    if template.key == "known" or template.signature[0] == "t" or "a" not in template.constants:
        return False
    return _has_plain_parameters(template)


def _any(template: Template) -> bool:
    return True


_KINDS: dict[
    str,
    tuple[Callable[[Template], bool], Callable[[random.Random, Unit, Package], Change]],
] = {
    "renamed-function": (_any, _rename),
    "new-parameter": (_can_grow, _new_parameter),
    "argument-order": (_has_order, _argument_order),
    "keyword-only": (_has_plain_parameters, _keyword_only),
    "returns-pair": (_gives_number, _returns_pair),
    "returns-dictionary": (_gives_number, _returns_dict),
    "other-unit": (_gives_number, _other_unit),
    "function-to-method": (lambda template: template.key != "known", _to_method),
    "raises-for-empty": (lambda template: _GUARD in template.text, _raises),
    "moved-module": (_any, _move_module),
}
API_KINDS = tuple(_KINDS)
