"""Settings of ``[review]``: what is looked for in rollouts, and what follows from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from educe.config.section import Section


class ReviewSettings(Section):
    """[review] Output review of rollouts (docs/safety.md)."""

    mode: Literal["off", "observe", "penalise", "mask", "stop"] = Field(
        "off",
        description="What an unsafe completion costs in training: nothing but a note (observe), "
        "the penalty, its place in the batch (mask), or all it earned and further turns (stop). "
        "Evaluation only observes.",
    )
    layers: tuple[Literal["rules", "words", "code", "injection", "classifier", "judge"], ...] = (
        Field(("rules", "injection", "code"), description="Layers of the review, cheap ones first.")
    )
    penalty: float = Field(1.0, ge=0, description="Taken off an unsafe completion's score.")
    block_at: float = Field(
        0.7, gt=0, le=1, description="Severity from which a completion is unsafe."
    )
    words: str = Field("", description="Word list of the layer 'words': one entry a line.")
    classifier: str = Field("", description="File that `educe safety train` wrote.")
