"""Settings of a model's positions, and of what is made ready ahead of training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from educe.config.section import Section


class RopeSettings(Section):
    """[model.rope] Contexts longer than the model was made for."""

    kind: Literal["own", "linear", "yarn", "llama3"] = Field(
        "own",
        description="How rotary positions are scaled: as in the model's config; linear (all "
        "alike); yarn (slow ones only, and attention a little sharper); llama3 (slow ones only).",
    )
    factor: float = Field(
        1.0, ge=1, description="Context as a multiple of what the model was made for."
    )


class PrefetchSettings(Section):
    """[prefetch] Tasks, rendering and tokens made ahead, in other processes."""

    workers: int = Field(
        0,
        ge=0,
        description="Processes that make tasks, render and tokenise; 0 does it when a step asks. "
        "The order is the same at every number.",
    )
    ahead: int = Field(
        64, gt=0, description="Tasks or examples that are made ready before they are asked for."
    )
