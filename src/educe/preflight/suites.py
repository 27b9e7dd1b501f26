"""Checks on the suite that a recipe's evaluation asks: its names, before hours of training."""

from __future__ import annotations

from collections.abc import Iterator

from educe.core.errors import EduceError, did_you_mean
from educe.core.stages import stage_kind
from educe.evaluation.dimensions import SUITES, dimension_names
from educe.preflight.plan import Plan


def check_suite(plan: Plan) -> Iterator[EduceError]:
    """Yield a problem for a suite, a dimension or a dimension's options that do not exist."""
    settings = plan.recipe.eval
    if not settings.suite or "eval" not in {stage_kind(s) for s in plan.recipe.stages}:
        return
    if settings.suite not in SUITES:
        hint = did_you_mean(settings.suite, SUITES)
        known = f"there is no suite {settings.suite!r}; known: {', '.join(SUITES)}.{hint}"
        yield plan.error("eval.suite", known)
        return
    known_dimensions = dimension_names()
    for name in settings.dimensions:
        if name not in known_dimensions and ":" not in name:
            hint = did_you_mean(name, known_dimensions)
            yield plan.error(
                "eval.dimensions",
                f"there is no dimension {name!r}; known: {', '.join(known_dimensions)}.{hint}",
            )
    asked = settings.dimensions or SUITES[settings.suite]
    for name in settings.suite_options:
        if name not in asked:
            yield plan.error(
                "eval.suite_options",
                f"options are given for {name!r}, which the suite does not ask; it asks "
                f"{', '.join(asked)}.{did_you_mean(name, asked)}",
            )
