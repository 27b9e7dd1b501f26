"""The dimensions of evaluation, by name; each is one module and loads when it is asked for.

A package adds its own through the entry point group ``educe.dimensions`` (name = ``module:attr``).
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import cast

from educe.core.errors import EduceError, did_you_mean
from educe.evaluation.dimensions.protocol import (
    TIERS,
    Dimension,
    Findings,
    ItemValue,
    Measure,
    MeasureContext,
    Part,
    PlanContext,
    Table,
    TierName,
)

ENTRY_POINT_GROUP = "educe.dimensions"

BUILT_IN: dict[str, str] = {
    "completion": "educe.evaluation.dimensions.completion:COMPLETION",
    "stability": "educe.evaluation.dimensions.stability:STABILITY",
    "long_context": "educe.evaluation.dimensions.long_context:LONG_CONTEXT",
    "code_quality": "educe.evaluation.dimensions.code_quality:CODE_QUALITY",
    "safety": "educe.evaluation.dimensions.safety:SAFETY",
}
SUITES: dict[str, tuple[str, ...]] = {
    "standard": tuple(BUILT_IN),
}

__all__ = [
    "BUILT_IN",
    "SUITES",
    "TIERS",
    "Dimension",
    "Findings",
    "ItemValue",
    "Measure",
    "MeasureContext",
    "Part",
    "PlanContext",
    "Table",
    "TierName",
    "dimension_names",
    "load_dimension",
    "load_suite_dimensions",
]


def dimension_names() -> dict[str, str]:
    """Return the known dimensions: name and ``module:attribute``."""
    found = dict(BUILT_IN)
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, point.value)
    return found


def load_dimension(name: str) -> Dimension:
    """Return a dimension by its name, or by ``module:attribute``.

    Raises:
        EduceError: unknown, or not importable.
    """
    known = dimension_names()
    reference = known.get(name, name if ":" in name else "")
    if not reference:
        raise EduceError(
            f"there is no dimension {name!r}; known: {', '.join(known)}.{did_you_mean(name, known)}"
        )
    module, _, attribute = reference.partition(":")
    try:
        return cast(Dimension, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise EduceError(f"the dimension {name} = {reference} does not load: {error}") from error


def load_suite_dimensions(suite: str, only: Sequence[str] = ()) -> list[Dimension]:
    """Return the dimensions of a suite, or those named in ``only``, in the suite's order.

    Raises:
        EduceError: unknown suite or dimension.
    """
    if suite not in SUITES:
        raise EduceError(
            f"there is no suite {suite!r}; known: {', '.join(SUITES)}.{did_you_mean(suite, SUITES)}"
        )
    return [load_dimension(name) for name in only or SUITES[suite]]
