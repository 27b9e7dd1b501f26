"""Python functions that are really executed: written, written with feedback, or corrected.

``python/TOPIC/LEVEL`` is one turn; ``python-repair/TOPIC/LEVEL`` shows the model the real outcome
of failing tests and lets it try again; ``python-debug/TOPIC/LEVEL`` hands it a broken function.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import Domain, DomainSpec
from educe.core.types import Task
from educe.domains.builtin.python_functions import (
    algorithms,
    mappings,
    number_theory,
    numbers,
    sequences,
    text_codes,
    texts,
)
from educe.domains.builtin.python_functions.domain import (
    PythonDebugging,
    PythonFunctions,
    PythonRepair,
)
from educe.domains.builtin.python_functions.extract import extract_function
from educe.domains.builtin.python_functions.registry import GENERATORS, Generator
from educe.domains.code_quality import QualityDomain

__all__ = ["GENERATORS", "create", "specs"]

# The generators register themselves when their module is imported.
TOPIC_MODULES = (algorithms, mappings, number_theory, numbers, sequences, text_codes, texts)

# Half as much again as the longest reference solutions need.
_TOKENS = {"tiny": 56, "easy": 96, "medium": 176, "hard": 352}
# Upper bounds of how often the most frequent reference solution (names included) was right in 200
# tasks; a fixed answer to a fixed name cannot do better.
_FLOORS = {"tiny": 0.03, "easy": 0.02, "medium": 0.01, "hard": 0.01}
_TURNS = {"tiny": 2, "easy": 3, "medium": 3, "hard": 3}
_DESCRIPTIONS = {
    "python": "Write a Python function that passes hidden tests",
    "python-repair": "Write a Python function; failing tests come back and it may be corrected",
    "python-debug": "Correct a broken Python function, given its failing tests",
}
_CLASSES: dict[str, type[PythonFunctions]] = {
    "python": PythonFunctions,
    "python-repair": PythonRepair,
    "python-debug": PythonDebugging,
}


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains: each generator as writing, repairing and debugging."""
    return tuple(_spec(family, topic, level) for family in _CLASSES for topic, level in GENERATORS)


def create(
    name: str, *, partial: bool = False, quality: Mapping[str, float] | None = None
) -> Domain:
    """Return a domain.

    Args:
        name: ``python/TOPIC/LEVEL``, ``python-repair/…`` or ``python-debug/…``.
        partial: pay the chance-corrected share of hidden tests passed instead of all or nothing.
        quality: weights of quality parts, e.g. ``{"lint": 0.2, "secure": 0.5}`` beside the tests'
            1: what a right program is paid less for (see ``domains.code_quality``).

    Raises:
        DomainError: for an unknown name, or a weight of a part that does not exist.
    """
    spec = _by_name().get(name)
    if spec is None:
        raise DomainError(f"there is no domain {name!r}.{did_you_mean(name, _by_name())}")
    family, topic, level = name.split("/")
    domain = _CLASSES[family](spec, _generator(topic, level), partial=partial)
    return QualityDomain(domain, _written, quality) if quality else domain


def _written(task: Task, text: str) -> str:
    return extract_function(text, task.metadata["entry_point"]).source or ""


def _generator(topic: str, level: str) -> Generator:
    return GENERATORS[topic, level]


@functools.cache
def _by_name() -> dict[str, DomainSpec]:
    return {spec.name: spec for spec in specs()}


def _spec(family: str, topic: str, level: str) -> DomainSpec:
    return DomainSpec(
        name=f"{family}/{topic}/{level}",
        family=f"{family}/{topic}",
        kind="code",
        description=f"{_DESCRIPTIONS[family]}: {topic.replace('-', ' ')}.",
        floor=_FLOORS[level],
        max_turns=_TURNS[level] if family == "python-repair" else 1,
        max_completion_tokens=_TOKENS[level],
        executes_code=True,
        tags=("python", topic, level),
    )
