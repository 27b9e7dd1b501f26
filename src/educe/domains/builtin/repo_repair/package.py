"""A generated package: units in modules that import each other, drawn and written as files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from educe.domains.builtin.repo_repair.callers import CALLERS
from educe.domains.builtin.repo_repair.classes import CLASSES
from educe.domains.builtin.repo_repair.leaves import LEAVES
from educe.domains.builtin.repo_repair.templates import Bug, Form, Template, Unit
from educe.domains.builtin.repo_repair.vocabulary import FOLDERS, MODULES, NOUNS, PACKAGES

TEMPLATES: Mapping[str, Template] = {t.key: t for t in (*LEAVES, *CALLERS, *CLASSES)}
_CALLER_SHARE, _CLASS_SHARE = 0.7, 0.1


@dataclass(frozen=True, slots=True)
class Size:
    """How large packages are, and how much of them is shown.

    Attributes:
        num_units: functions and classes a module.
        num_callers: functions that call the target.
        num_folders: sub-packages; 0 puts all modules side by side.
        shown_share: share of units that have a test file's test.
        shows_files: the prompt holds the modules' texts.
        shows_failure: at least one of the shown tests fails at the start.
    """

    name: str
    num_modules: tuple[int, int]
    num_units: tuple[int, int]
    num_callers: tuple[int, int]
    num_folders: int
    shown_share: float
    shows_files: bool
    shows_failure: bool
    max_turns: int
    max_completion_tokens: int


SIZES: Mapping[str, Size] = {
    size.name: size
    for size in (
        Size("tiny", (3, 3), (1, 1), (1, 2), 0, 1.0, True, True, 6, 224),
        Size("small", (5, 6), (1, 2), (2, 2), 0, 1.0, False, True, 10, 256),
        Size("medium", (9, 12), (1, 2), (2, 3), 0, 0.9, False, True, 14, 256),
        Size("large", (16, 20), (1, 3), (3, 5), 2, 0.75, False, False, 18, 256),
        Size("huge", (26, 30), (1, 3), (4, 7), 3, 0.6, False, False, 24, 256),
    )
}


@dataclass(frozen=True, slots=True)
class View:
    """A state of a package: what differs from how it was drawn.

    Attributes:
        definitions: texts that stand instead of a unit's own.
        planted: bugs of units.
        forms: how units are called now.
        behind: units that still call others in the old way.
        moved: new names of modules.
    """

    definitions: Mapping[str, str] = field(default_factory=dict)
    planted: Mapping[str, Bug] = field(default_factory=dict)
    forms: Mapping[str, Form] = field(default_factory=dict)
    behind: frozenset[str] = frozenset()
    moved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Package:
    """Units by module. ``imports_names`` says of a module whether it imports names or modules."""

    name: str
    units: tuple[Unit, ...]
    imports_names: Mapping[str, bool]

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.imports_names)

    def unit(self, name: str) -> Unit:
        return next(unit for unit in self.units if unit.name == name)

    def callers_of(self, names: Iterable[str]) -> list[Unit]:
        wanted = set(names)
        return [unit for unit in self.units if wanted & set(unit.callees)]

    def files(self, view: View) -> dict[str, str]:
        """Return the package's files, by path in order."""
        found = {f"{self.name}/__init__.py": ""}
        for module in self.modules:
            place = view.moved.get(module, module)
            path = path_of(place)
            for depth in range(2, place.count(".") + 1):
                found["/".join([*place.split(".")[:depth], "__init__.py"])] = ""
            found[path] = self._source(module, view)
        return dict(sorted(found.items()))

    def _source(self, module: str, view: View) -> str:
        units = [unit for unit in self.units if unit.module == module]
        imports: dict[str, set[str]] = {}
        texts: list[str] = []
        for unit in units:
            write = self._writer(unit, view, imports, self.imports_names[module])
            text = unit.definition(write, view.planted.get(unit.name))
            texts.append(view.definitions.get(unit.name, text))
        lines = [
            _import_line(where, sorted(names), self.imports_names[module])
            for where, names in sorted(imports.items())
        ]
        return "\n\n".join(["\n".join([*lines, ""])] * bool(lines) + texts)

    def _writer(
        self, unit: Unit, view: View, imports: dict[str, set[str]], has_names: bool
    ) -> Callable[[str, Sequence[str]], str]:
        def write(callee: str, arguments: Sequence[str]) -> str:
            form = self.unit(callee).form
            if unit.name not in view.behind:
                form = view.forms.get(callee, form)
            imports.setdefault(form.module, set()).add(form.name)
            last = form.module.rpartition(".")[2]
            return form.write(form.name if has_names else f"{last}.{form.name}", arguments)

        return write


def path_of(module: str) -> str:
    """Return the file of a dotted module name."""
    return module.replace(".", "/") + ".py"


def _import_line(module: str, names: Sequence[str], has_names: bool) -> str:
    if has_names:
        return f"from {module} import {', '.join(names)}"
    parent, _, last = module.rpartition(".")
    return f"from {parent} import {last}"


# ---- drawing ----


def draw_package(
    rng: random.Random, size: Size, target: Template, constants: Mapping[str, int]
) -> tuple[Package, Unit]:
    """Draw a package around a target, which some of the other units call."""
    return _Draft(rng, size, rng.choice(PACKAGES)).draw(target, constants)


class _Draft:
    """A package while it is drawn: modules in the order in which they may import each other."""

    def __init__(self, rng: random.Random, size: Size, name: str) -> None:
        self._rng, self._size, self._name = rng, size, name
        self._units: list[Unit] = []
        self._nouns = rng.sample(NOUNS, len(NOUNS))
        folders = rng.sample(FOLDERS, size.num_folders)
        words = rng.sample(MODULES, rng.randint(*size.num_modules))
        self._modules = [
            ".".join([name, *([rng.choice(folders)] if folders else []), word]) for word in words
        ]

    def draw(self, target: Template, constants: Mapping[str, int]) -> tuple[Package, Unit]:
        """Put the target (after what it calls) into the first modules, then fill all of them."""
        rng = self._rng
        needed = [self._leaf_like(signature) for signature in target.calls]
        slots = [
            [index] * rng.randint(*self._size.num_units) for index in range(len(self._modules))
        ]
        home = len(needed)
        later = [place for module in slots[home + 1 :] for place in enumerate(module)]
        count = min(len(later), rng.randint(*self._size.num_callers))
        callers = set() if target.signature == "class" else set(rng.sample(later, count))
        hub: Unit | None = None
        for index, module in enumerate(slots):
            for place in enumerate(module):
                if place[0] == 0 and index < home:
                    self._add(needed[index], index)
                elif place == (0, home):
                    found = tuple(unit.name for unit in self._units if unit.template in needed)
                    hub = self._add(target, index, dict(constants), self._order(target, found))
                elif hub is not None and place in callers:
                    self._add_caller(index, hub)
                else:
                    self._fill(index)
        assert hub is not None
        styles = {
            module: self._size.name == "tiny" or rng.random() < 0.6
            for module in sorted(self._modules)
        }
        return Package(self._name, tuple(self._units), styles), hub

    def _leaf_like(self, signature: str) -> Template:
        return self._rng.choice([leaf for leaf in LEAVES if leaf.signature == signature])

    def _order(self, target: Template, names: Sequence[str]) -> tuple[str, ...]:
        """Return the units to call, one of each signature of the target's calls."""
        by_signature = {u.template.signature: u.name for u in self._units if u.name in names}
        return tuple(by_signature[signature] for signature in target.calls)

    def _fill(self, index: int) -> None:
        roll = self._rng.random()
        if index and roll < _CALLER_SHARE:
            self._add_caller(index)
        elif self._size.name != "tiny" and roll > 1 - _CLASS_SHARE:
            self._add(self._rng.choice(CLASSES), index)
        else:
            self._add(self._rng.choice(LEAVES), index)

    def _add_caller(self, index: int, hub: Unit | None = None) -> None:
        """Add a caller of earlier modules' units, of the hub if one is given."""
        rng, module = self._rng, self._modules[index]
        earlier = [u for u in self._units if u.module != module and not u.is_class]
        if hub is None:
            if not earlier:  # there are only classes
                self._add(rng.choice(LEAVES), index)
                return
            hub = rng.choice(earlier)
        signature = hub.template.signature
        for template in rng.sample(CALLERS, len(CALLERS)):
            if signature not in template.calls:
                continue
            callees = []
            for wanted in template.calls:
                others = [u.name for u in earlier if u.template.signature == wanted]
                if wanted == signature and hub.name not in callees:
                    callees.append(hub.name)
                elif others:
                    callees.append(rng.choice(others))
            if len(callees) == len(template.calls):
                self._add(template, index, callees=tuple(callees))
                return

    def _add(
        self,
        template: Template,
        index: int,
        constants: dict[str, int] | None = None,
        callees: tuple[str, ...] = (),
    ) -> Unit:
        if constants is None:
            constants = template.draw_constants(self._rng)
        name = self._fresh_name(template)
        unit = Unit(template, name, self._modules[index], constants, callees)
        self._units.append(unit)
        return unit

    def _fresh_name(self, template: Template) -> str:
        taken = {unit.name.lower() for unit in self._units}
        while True:
            noun = self._nouns[len(self._units) % len(self._nouns)]
            word = self._rng.choice(template.names)
            name = noun.title() + word if template.signature == "class" else f"{noun}_{word}"
            if name.lower() not in taken:
                return name
            self._rng.shuffle(self._nouns)
