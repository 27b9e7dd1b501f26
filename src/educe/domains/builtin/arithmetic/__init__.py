"""Numbers, word problems and algebra: unlimited generated tasks with exact checks.

Domains are called ``arithmetic/FAMILY/LEVEL``, ``word-problems/FAMILY/LEVEL`` and
``algebra/FAMILY/LEVEL`` with the levels tiny, easy, medium and hard. Answers are checked by value
(numbers as literals, symbols by the maths checker with the form that the task asks for).
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import DomainSpec
from educe.domains.builtin.arithmetic import algebra, numbers, word_problems
from educe.domains.builtin.arithmetic.family import Family, ProblemDomain, find_family, make_specs

FAMILIES: tuple[Family, ...] = numbers.FAMILIES + word_problems.FAMILIES + algebra.FAMILIES


def floors() -> dict[str, float]:
    """Return the measured score of the best constant answer, by domain (see measure_floors)."""
    text = resources.files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    loaded: dict[str, float] = json.loads(text)
    return loaded


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains of this module."""
    measured = floors()
    return (
        make_specs(numbers.FAMILIES, measured, "arithmetic")
        + make_specs(word_problems.FAMILIES, measured, "word-problems")
        + make_specs(algebra.FAMILIES, measured, "algebra")
    )


def create(name: str, *, worked: bool = False, **unknown: Any) -> ProblemDomain:
    """Return the domain called ``name``.

    Args:
        worked: gold answers show a short worked solution and end in ``Answer: N``.

    Raises:
        DomainError: unknown name or option.
    """
    if unknown:
        raise DomainError(
            f"{name}: unknown option {sorted(unknown)[0]!r}; the only option is 'worked'"
        )
    spec = next((s for s in specs() if s.name == name), None)
    if spec is None:
        known = [s.name for s in specs()]
        raise DomainError(f"no arithmetic domain {name!r}.{did_you_mean(name, known)}")
    if worked:
        from dataclasses import replace

        spec = replace(spec, max_completion_tokens=max(128, spec.max_completion_tokens))
    return ProblemDomain(spec, find_family(FAMILIES, name), worked=worked)
