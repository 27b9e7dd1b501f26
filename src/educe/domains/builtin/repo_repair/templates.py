"""Definitions as templates: a text with constants and calls left open, and the bugs it can have.

A text is written with ``$name`` for the defined name, ``$a``, ``$b`` and ``$c`` for whole-number
constants, and ``<f: x; y>`` for a call of another function with two arguments; ``<g: …>`` calls a
second one, and ``{f}`` speaks of it. Calls stay open because an API change alters how they are
written.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template as Text

Step = tuple[str, bool]
"""A statement to run (False) or an expression to observe (True)."""
Script = tuple[Step, ...]

_CALL = re.compile(r"<([fg]): ([^<>]*)>")
_PARAMETERS = re.compile(r"def \$name\((.*)\):")


@dataclass(frozen=True, slots=True)
class Bug:
    """A defect: texts of the template that occur once, each with what stands there instead."""

    kind: str
    changes: tuple[tuple[str, str], ...]


def bug(kind: str, *texts: str) -> Bug:
    """Return a bug of texts and replacements in turn."""
    return Bug(kind, tuple(zip(texts[::2], texts[1::2], strict=True)))


@dataclass(frozen=True, slots=True)
class Template:
    """A function or class that packages are made of.

    Attributes:
        signature: kinds of the arguments and of the result: ``n`` whole number, ``v`` list of
            them, ``t`` text; ``class`` for a class.
        names: words that its name may begin with.
        constants: letter to (least, largest).
        calls: signatures of what ``f`` and ``g`` are.
        script: for a class: draws statements and observations that use it.
    """

    key: str
    signature: str
    names: tuple[str, ...]
    text: str
    bugs: tuple[Bug, ...] = ()
    constants: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    script: Callable[[random.Random, str, Mapping[str, int]], Script] | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters as they are written in the definition."""
        match = _PARAMETERS.search(self.text)
        return tuple(match.group(1).split(", ")) if match else ()

    def draw_constants(self, rng: random.Random) -> dict[str, int]:
        return {letter: rng.randint(*bounds) for letter, bounds in self.constants.items()}


Writer = Callable[[str, Sequence[str]], str]
"""Makes the text of a call from how a function is reached and its arguments' texts."""


def plain_call(reference: str, arguments: Sequence[str]) -> str:
    return f"{reference}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Form:
    """How callers use a function: where it is, what they import, how a call is written."""

    module: str
    name: str
    write: Writer = plain_call


@dataclass(frozen=True, slots=True)
class Unit:
    """A template that was given a name, a place, constants and the units it calls."""

    template: Template
    name: str
    module: str
    constants: Mapping[str, int]
    callees: tuple[str, ...] = ()

    @property
    def form(self) -> Form:
        return Form(self.module, self.name)

    @property
    def is_class(self) -> bool:
        return self.template.signature == "class"

    def definition(
        self, write: Callable[[str, Sequence[str]], str], planted: Bug | None = None
    ) -> str:
        """Return the source text. ``write`` makes the text of a call of a unit by its name."""
        text = self.template.text
        for old, new in planted.changes if planted else ():
            text = text.replace(old, new)
        return fill(text, self.name, self.constants, self.callees, write)


def fill(
    text: str,
    name: str,
    constants: Mapping[str, int | str],
    callees: Sequence[str] = (),
    write: Callable[[str, Sequence[str]], str] = plain_call,
) -> str:
    """Return a template's text with its name, constants and calls put in."""
    text = Text(text).substitute(constants, name=name)
    for letter, callee in zip("fg", callees, strict=False):
        text = text.replace("{" + letter + "}", callee.replace("_", " "))

    def call(match: re.Match[str]) -> str:
        callee = callees["fg".index(match.group(1))]
        return write(callee, [part.strip() for part in match.group(2).split(";")])

    while _CALL.search(text):  # the innermost calls first
        text = _CALL.sub(call, text)
    return text.strip("\n") + "\n"
