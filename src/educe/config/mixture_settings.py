"""[mixture] and [curriculum]: which domain, which level and which task comes next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from educe.config.section import Section


class MixtureSettings(Section):
    """[mixture] Shares are relative to a domain's own share by weight."""

    strategy: Literal[
        "static",
        "size",
        "temperature",
        "expected_gain",
        "success_variance",
        "learning_progress",
        "regret",
    ] = Field(
        "static",
        description="static: the weights. size, temperature: weights by tasks. The others "
        "move shares after each rollout batch: expected_gain by signal, response to training, room "
        "and cost; success_variance, learning_progress and regret by that alone, and cost.",
    )
    temperature: float = Field(
        2.0, ge=1, description="temperature: tasks to the power of 1 / this; 1 is size."
    )
    size_limit: int = Field(
        10_000, gt=0, description="size, temperature: tasks that a domain counts at most."
    )
    cost: Literal["prompts", "tokens", "seconds"] = Field(
        "tokens",
        description="What is scarce: prompts (all cost the same), tokens computed, or seconds of "
        "generation and scoring (measured, kept in the journal).",
    )
    cost_power: float = Field(
        1.0, ge=0, le=2, description="0 ignores costs; 1 asks for the most gain at equal cost."
    )
    sharpness: float = Field(
        1.5,
        ge=0,
        le=4,
        description="Power of the wishes: 0 is the weights, 4 nearly the best only.",
    )
    settle: float = Field(
        4.0,
        ge=0,
        description="Groups a domain, on average, after which wishes have half their power: the "
        "first ones are mostly noise.",
    )
    floor: float = Field(0.1, ge=0, le=1, description="Least share, relative to its own.")
    ceiling: float = Field(8.0, ge=1, description="Largest share, relative to its own.")
    lowest: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Part of the domains, those of the lowest scores, that is not left behind; "
        "who never succeeds is not among them.",
    )
    lowest_floor: float = Field(
        0.5, ge=0, le=1, description="Least share of those, relative to its own."
    )
    visit_within: float = Field(
        8.0,
        gt=0,
        description="Rounds (as many prompts as there are domains) within which every domain has "
        "its turn, however small its share.",
    )
    half_life: float = Field(
        32.0, gt=0, description="Groups of a domain after which what they said counts half."
    )
    pooling: float = Field(
        4.0, gt=0, description="Groups that the family's mean weighs in a domain's estimate."
    )
    optimism: float = Field(
        0.0, ge=0, description="Deviations of doubt that count in a domain's favour."
    )
    protected: tuple[str, ...] = Field(
        (), description="Names or globs that keep their own share, and get more once they slip."
    )
    protect_boost: float = Field(
        3.0,
        ge=1,
        description="Least share of a protected domain that slipped, relative to its own.",
    )
    slip: float = Field(
        0.03, ge=0, lt=1, description="Fall of the training score below its best that is a slip."
    )
    long: tuple[str, ...] = Field(
        ("long-document/*", "long-dialogue/*"),
        description="Names or globs of domains that depend on long contexts.",
    )
    long_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="What those get together, of what cost counts (prompts, tokens or seconds); 0 "
        "leaves it to weights and strategy.",
    )


class CurriculumSettings(Section):
    """[curriculum]"""

    levels: Literal["fixed", "band"] = Field(
        "fixed",
        description="fixed: levels are domains like others. band: of a family's levels in the run, "
        "one is trained most; it moves to keep success in a band.",
    )
    band_low: float = Field(
        0.2, ge=0, lt=1, description="Chance-corrected success below which the level goes down."
    )
    band_high: float = Field(
        0.8, gt=0, le=1, description="Chance-corrected success above which the level goes up."
    )
    tasks: Literal["in_order", "predicted"] = Field(
        "in_order",
        description="in_order: tasks in turn. predicted: of finite domains, tasks whose groups are "
        "predicted to be all right or all wrong are passed over.",
    )
    min_signal: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="predicted: least probability of a group that is neither all right nor wrong.",
    )
    revisit: int = Field(
        4, gt=0, description="predicted: rounds after which a skipped task is tried again."
    )
    lengths: Literal["all", "growing"] = Field(
        "all",
        description="growing: domains whose prompts are longer than a limit wait; the limit grows "
        "from length_first to the longest.",
    )
    length_first: int = Field(256, gt=0, description="growing: the limit at first, in tokens.")
    length_steps: int = Field(
        0,
        ge=0,
        description="growing: rollout batches until all take part; 0 takes half of rl.steps.",
    )
    length_early: float = Field(
        0.05, ge=0, lt=1, description="growing: part of its weight that a domain has before that."
    )
