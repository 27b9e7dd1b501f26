"""What preflight says of model-written code: the level that is enforced, and whose tests train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import educe.sandbox
from educe.config.loader import LoadedRecipe
from educe.config.settings import Recipe
from educe.preflight import make_plan
from educe.sandbox import Level, SandboxError

MODULE = """\
from educe.core.protocols import DomainBase, DomainSpec

class Programs(DomainBase):
    def __init__(self, executes_code=True, integrity="outside"):
        self.spec = DomainSpec("programs", "programs", "code", "Write.",
                               executes_code=executes_code, integrity=integrity)
    def task(self, split, index): raise IndexError
    def score(self, task, state, transcript, services): raise AssertionError
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "preflight_programs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


class Opened:
    """A sandbox that was opened, as far as preflight looks."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def host_with(best: Level) -> Callable[..., Opened]:
    def open_sandbox(*, minimum: str) -> Opened:
        if Level.parse(minimum) > best:
            raise SandboxError(
                f"no sandbox of level {minimum} or better on this host: user: EPERM. Run `educe "
                f"sandbox doctor` for what would help."
            )
        return Opened(best)

    return open_sandbox


def planned(
    monkeypatch: pytest.MonkeyPatch, best: Level, **sections: Any
) -> tuple[list[str], list[str]]:
    """Return the notes and problems that speak of isolation, on a host of one level."""
    options = sections.pop("options", {})
    monkeypatch.setattr(educe.sandbox, "open_sandbox", host_with(best))
    domain = {"function": "preflight_programs:Programs", "options": options}
    recipe = Recipe.model_validate(
        {"domains": {"programs": domain}, "model": {"name": "absent"}, **sections}
    )
    plan, problems = make_plan(LoadedRecipe(recipe))
    told = [str(problem) for problem in problems if "sandbox." in str(problem)]
    return [note for note in plan.notes if "sandbox" in note], told


def test_the_level_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, problems = planned(monkeypatch, Level.CGROUPS)
    assert notes == ["model-written code runs at sandbox level cgroups"] and problems == []


def test_a_host_that_enforces_less_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, (problem,) = planned(monkeypatch, Level.CONFINED)
    assert notes == []
    for part in (
        "sandbox.minimum: programs run model-written code",
        'does not enforce the level "namespaces"',
        "user: EPERM",
        "`educe sandbox doctor`",
        'sandbox.minimum = "confined" (files, system calls and the network are confined',
        '"plain" (limits and a deadline only',
    ):
        assert part in problem
    assert problem.count("educe sandbox doctor") == 1


@pytest.mark.parametrize("minimum", ["confined", "plain"])
def test_less_is_accepted_by_name_and_told(monkeypatch: pytest.MonkeyPatch, minimum: str) -> None:
    notes, problems = planned(monkeypatch, Level.parse(minimum), sandbox={"minimum": minimum})
    assert problems == []
    assert notes[0].startswith(f"model-written code runs at sandbox level {minimum}: ")


def test_more_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (problem,) = planned(monkeypatch, Level.NAMESPACES, sandbox={"minimum": "cgroups"})
    assert 'does not enforce the level "cgroups"' in problem


def test_in_process_tests_train_by_opting_in(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"integrity": "in_process"}
    _, (problem,) = planned(monkeypatch, Level.CGROUPS, options=options)
    assert "sandbox.in_process_tests" in problem and "forge a pass" in problem
    notes, problems = planned(
        monkeypatch, Level.CGROUPS, options=options, sandbox={"in_process_tests": True}
    )
    assert problems == [] and any("may train" in note for note in notes)
    _, problems = planned(monkeypatch, Level.CGROUPS, options=options, stages=["eval"])
    assert problems == []


def test_recipes_without_programs_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, problems = planned(monkeypatch, Level.PLAIN, options={"executes_code": False})
    assert notes == [] and problems == []
    _, problems = planned(monkeypatch, Level.PLAIN, stages=["sft"])
    assert problems == []
