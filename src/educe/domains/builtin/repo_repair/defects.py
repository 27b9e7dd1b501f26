"""A defect planted in a package: the files before and after its repair, and the tests that tell."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from educe.core.errors import DomainError
from educe.domains.builtin.repo_repair.changes import (
    Change,
    draw_change,
    kinds_for,
)
from educe.domains.builtin.repo_repair.checks import Check, draw_checks, steps_to, test_files
from educe.domains.builtin.repo_repair.leaves import LEAVES
from educe.domains.builtin.repo_repair.loading import Failure, same, watch
from educe.domains.builtin.repo_repair.package import (
    TEMPLATES,
    Package,
    Size,
    View,
    draw_package,
    path_of,
)
from educe.domains.builtin.repo_repair.templates import Bug, Form, Template, Unit

BUG_KINDS = tuple(sorted({bug.kind for t in TEMPLATES.values() for bug in t.bugs}))
_FOLLOWING_SHARE = 0.25
# Bugs that may show for a single input, so that to treat this input alone is a repair.
_SINGLE_KINDS = ("missing-edge-case", "off-by-one", "wrong-comparison", "wrong-default")
_FOLLOW = (
    "The rest of the package does not follow yet: repair it. The old form must not come back.",
    "Its callers are still written for the old form. Adapt them; the old form stays gone.",
    "Adapt every caller that was left behind, and do not bring the old form back.",
)
_COMPLAINTS = (
    "In {path}, {call} {gives}, but {expected} is right.",
    "{path}: {call} {gives}; it should give {expected}.",
    "For {path} we expect {expected} from {call}, but it {gives}.",
)
_FIND = (
    "Find the bug and repair it.",
    "Repair the package.",
    "The docstrings are right: find what differs from them and repair it.",
)


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong, before there is a package around it. ``planted`` is None for an API change."""

    kind: str
    template: Template
    constants: Mapping[str, int]
    planted: Bug | None = None

    @property
    def key(self) -> str:
        """Names the defect: tasks that share it belong to one split."""
        constants = ",".join(f"{k}{v}" for k, v in sorted(self.constants.items()))
        changes = repr(self.planted.changes) if self.planted else ""
        return f"{self.kind}|{self.template.key}|{constants}|{changes}"


def draw_bug(rng: random.Random, kinds: Sequence[str]) -> Defect:
    """Draw a bug: first its kind, then the place."""
    kind = rng.choice(kinds)
    found = [(t, bug) for t in TEMPLATES.values() for bug in t.bugs if bug.kind == kind]
    template, planted = rng.choice(found)
    return Defect(kind, template, template.draw_constants(rng), planted)


def draw_api_change(rng: random.Random, kinds: Sequence[str]) -> Defect:
    """Draw a kind of API change and the function that it happens to."""
    kind = rng.choice(kinds)
    template = rng.choice([leaf for leaf in LEAVES if kind in kinds_for(leaf)])
    return Defect(kind, template, template.draw_constants(rng))


@dataclass(frozen=True, slots=True)
class Problem:
    """A package with a defect.

    Attributes:
        start: the files at the beginning, test files included.
        goal: the same after the repair.
        before: for an API change: the changed module as it was, by its path.
        required: all checks, with the values that they must observe.
        failing: ids of the checks that fail at the start.
        shown_failing: ids of the test files' tests that fail at the start.
        target: the file that holds the bug or the changed definition.
        first_looks: calls of tools with which a repair may begin.
        story: what the model is told.
        known: for a bug of a function: its name, and the calls of it whose results can be seen,
            with them; knowing these must not be enough.
    """

    package: str
    defect: Defect
    start: Mapping[str, str]
    goal: Mapping[str, str]
    before: Mapping[str, str]
    required: Sequence[tuple[Check, list[Any]]]
    failing: Sequence[str]
    shown_failing: Sequence[str]
    target: str
    story: str
    first_looks: Sequence[tuple[str, dict[str, str]]] = ()
    known: tuple[str, list[tuple[str, Any]]] | None = None


@dataclass(frozen=True, slots=True)
class _Watched:
    """A check with what must be and what is observed."""

    check: Check
    expected: list[Any]
    observed: list[Any | Failure]

    @property
    def wrong(self) -> list[int]:
        pairs = zip(self.expected, self.observed, strict=True)
        return [i for i, (one, other) in enumerate(pairs) if not same(one, other)]

    @property
    def shows_failure(self) -> bool:
        return any(i < self.check.num_shown for i in self.wrong)


def build(rng: random.Random, size: Size, defect: Defect) -> Problem | None:
    """Return a package around a defect; None when no test, or too few, would tell of it."""
    package, target = draw_package(rng, size, defect.template, defect.constants)
    change, start, goal = None, View(), View()
    if defect.planted is not None:
        start = View(planted={target.name: defect.planted})
    else:
        change = draw_change(defect.kind, rng, target, package)
        start, goal = _views(change, rng, size, target, package)
        if not start.behind:
            return None
    files, after = package.files(start), package.files(goal)
    checks = draw_checks(rng, package, goal, target, change, size.shown_share)
    watched = [_watch(check, files, after) for check in checks]
    if size.shows_failure:
        watched = [_with_failure_shown(w, files, after) for w in watched]
    found = _story(rng, defect, change, size, watched, target, package, files)
    if found is None:
        return None
    story, told, known = found
    tests = test_files([(w.check, w.expected) for w in watched])
    home = path_of(target.module)
    reads = dict.fromkeys([path_of(told.module), home])
    looks: list[tuple[str, dict[str, str]]] = [("read_file", {"path": path}) for path in reads]
    if change is not None:
        term = target.module.rpartition(".")[2] if change.moved else target.name
        looks = [("search", {"text": term})]
    return Problem(
        package.name,
        defect,
        dict(sorted({**files, **tests}.items())),
        dict(sorted({**after, **tests}.items())),
        {home: package.files(View())[home]} if change else {},
        [(w.check, w.expected) for w in watched],
        [w.check.test_id for w in watched if w.wrong],
        [w.check.test_id for w in watched if w.shows_failure],
        path_of(goal.moved.get(target.module, target.module)),
        story,
        looks,
        (target.name, known) if known and not target.is_class else None,
    )


def _views(
    change: Change, rng: random.Random, size: Size, target: Unit, package: Package
) -> tuple[View, View]:
    """Return the package with callers left behind, and with all of them following."""
    changed = [u for u in package.units if u == target or u.module in change.moved]
    forms = {u.name: Form(change.moved.get(u.module, u.module), u.name) for u in changed}
    forms[target.name] = change.form
    callers = [unit.name for unit in package.callers_of(forms)]
    behind = {name for name in callers if rng.random() > _FOLLOWING_SHARE}
    # Of two arguments of one kind, a call does not show which order it follows.
    if size.num_callers[1] <= 2 or len(behind) < 2 or change.is_silent:
        behind = set(callers)
    definitions = {target.name: change.definition} if change.definition else {}
    goal = View(definitions, {}, forms, moved=change.moved)
    return replace(goal, behind=frozenset(behind)), goal


def _watch(check: Check, files: Mapping[str, str], after: Mapping[str, str]) -> _Watched:
    expected = watch(after, check.imports, check.script)
    broken = next((value for value in expected if isinstance(value, Failure)), None)
    if broken is not None:
        raise DomainError(f"{check.test_id}: a repaired package fails its own test: {broken.text}")
    return _Watched(check, expected, watch(files, check.imports, check.script))


def _with_failure_shown(
    watched: _Watched, files: Mapping[str, str], after: Mapping[str, str]
) -> _Watched:
    """Return the check with a failing observation among the shown ones, if there is one."""
    check, wrong = watched.check, watched.wrong
    if not wrong or watched.shows_failure or not check.shown:
        return watched
    if any(not is_seen for _, is_seen in check.script):
        return watched
    steps = list(check.script)
    steps[0], steps[wrong[0]] = steps[wrong[0]], steps[0]
    count = check.num_shown
    return _watch(
        replace(check, shown=tuple(steps[:count]), hidden=tuple(steps[count:])), files, after
    )


def _story(
    rng: random.Random,
    defect: Defect,
    change: Change | None,
    size: Size,
    watched: Sequence[_Watched],
    target: Unit,
    package: Package,
    files: Mapping[str, str],
) -> tuple[str, Unit, list[tuple[str, Any]]] | None:
    """Return what the model is told, of which unit, and what can be seen of the target; or None.

    None when the defect does not show as it should: in a shown test where the size wants that, and
    in something of the target that is neither shown nor told (unless one input is all there is).
    """
    if size.shows_failure and not any(w.shows_failure for w in watched):
        return None
    if change is not None:
        is_noticed = any(w.wrong and w.check.unit != target.name for w in watched)
        return (f"{change.story} {rng.choice(_FOLLOW)}", target, []) if is_noticed else None
    own = next(w for w in watched if w.check.unit == target.name)
    others = [w for w in watched if w.wrong and w is not own]
    if size.shows_failure:
        if not own.shows_failure:
            return None
        told, index = own, own.wrong[0]
    elif not own.wrong:
        return None
    else:
        told = rng.choice(others) if others else own
        index = told.wrong[0]
    count = own.check.num_shown
    is_more_wrong = any(i >= count and (told is not own or i != index) for i in own.wrong)
    if not is_more_wrong and (len(own.wrong) > 1 or defect.kind not in _SINGLE_KINDS):
        return None
    seen = set(range(count)) | ({index} if told is own else set())
    codes = [code for code, is_seen in own.check.script if is_seen]
    known = [(codes[i], own.expected[i]) for i in sorted(seen)] if is_more_wrong else []
    unit = package.unit(told.check.unit)
    return _complaint(rng, told, index, path_of(unit.module), files), unit, known


def _complaint(
    rng: random.Random, told: _Watched, index: int, path: str, files: Mapping[str, str]
) -> str:
    steps = steps_to(told.check, index)
    alone = watch(files, told.check.imports, steps[-1:])
    if alone and not isinstance(alone[0], Failure) and same(alone[0], told.expected[index]):
        is_alone = False  # an earlier call is what makes this one wrong
    else:
        is_alone = steps[0][1]
    before = "; ".join(code for code, _ in steps[:-1])
    call = f"`{steps[-1][0]}`" if is_alone else f"after `{before}` the call `{steps[-1][0]}`"
    observed = told.observed[index]
    if isinstance(observed, Failure):
        gives = f"raises {_short(observed.text)}"
    else:
        gives = f"gives {_short(repr(observed))}"
    text = rng.choice(_COMPLAINTS).format(
        path=path,
        call=call,
        gives=gives,
        expected=_short(repr(told.expected[index])),
    )
    return f"{text} {rng.choice(_FIND)}"


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "..."
