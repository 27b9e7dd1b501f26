"""[guards]: what watches a training stage, and what follows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from educe.config.section import Section


class GuardSettings(Section):
    """[guards] What watches training, and what follows. 0 switches a limit off."""

    action: Literal["rollback", "alarm", "off"] = Field(
        "rollback",
        description="rollback: go back to the last good checkpoint and lower the learning rate; "
        "alarm: only say so; off: look at nothing but non-finite gradients.",
    )
    window: int = Field(5, ge=2, description="Steps that are averaged before a judgement.")
    grad_norm: float = Field(0.0, ge=0, description="A step with a larger gradient is skipped.")
    update_norm: float = Field(
        0.0, ge=0, description="A step that moves the weights further is scaled down to this."
    )
    max_skipped: int = Field(3, ge=0, description="Skipped steps in a row before going back.")
    update_kl: float = Field(
        1.0, ge=0, description="KL of one step (k3, nats a token) that is a break, not a step."
    )
    advantage: float = Field(
        20.0,
        ge=0,
        description="Largest advantage of a sample; more says that rewards are unscaled.",
    )
    entropy_fraction: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Part of the first entropy below which a policy has collapsed, unless its "
        "reward rose.",
    )
    drop: float = Field(
        0.5,
        ge=0,
        description="Part of its best level by which the reward may fall (sft: the loss may rise), "
        "beyond its noise.",
    )
    oscillation: float = Field(
        0.2,
        ge=0,
        description="Swing, relative to the mean, of a reward or entropy that turns at each step.",
    )
    screen_every: int = Field(
        0,
        ge=0,
        description="Steps of rl between looks at screen tasks, which catch a reward that pays for "
        "the wrong thing; 0 looks never.",
    )
    screen_tasks: int = Field(8, gt=0, description="Screen tasks a domain and look.")
    screen_drop: float = Field(
        0.1, gt=0, description="Fall of the mean screen score below its best that is too much."
    )
    anchor_every: int = Field(
        20, gt=0, description="Steps between checkpoints that may become the last good one."
    )
    back_off: float = Field(
        0.3, gt=0, le=1, description="The learning rate is multiplied by this after each trip."
    )
    max_rollbacks: int = Field(
        3,
        ge=0,
        description="Times to go back in a stage; the next one ends it at the last good one.",
    )
