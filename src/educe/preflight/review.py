"""Checks on ``[review]``: every layer has what it needs, before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from educe.core.errors import EduceError
from educe.preflight.plan import Plan


def check_review(plan: Plan) -> Iterator[EduceError]:
    """Yield an error for a layer without its file or model; note what the review will do."""
    settings = plan.recipe.review
    if settings.mode == "off":
        return
    from educe.rewards.review import build_reviewer

    if not settings.layers:
        yield plan.error("review.layers", "a review without layers finds nothing; name some.")
        return
    try:
        build_reviewer(settings)
    except EduceError as error:
        yield plan.error("review.layers", str(error))
        return
    does = {
        "observe": "is noted",
        "penalise": f"costs {settings.penalty:g}",
        "mask": "leaves the batch",
        "stop": "ends the trajectory and earns nothing",
    }[settings.mode]
    plan.notes.append(f"review ({', '.join(settings.layers)}): an unsafe completion {does}")
