"""[balance], [forgetting] and [optimizer.back_off]: that no domain pays for another's gain."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from educe.config.section import Section


class BalanceSettings(Section):
    """[balance] How much each domain moves the weights in a step of ``rl``."""

    advantages: Literal["own", "alike"] = Field(
        "own",
        description="own: as the algorithm gives them. alike: each domain's advantages are scaled "
        "to the run's usual size (running root mean square).",
    )
    advantage_limit: float = Field(
        4.0, ge=1, description="alike: a domain is scaled up or down by this at most."
    )
    denominators: Literal["algorithm", "domain"] = Field(
        "algorithm",
        description="algorithm: token-mean divides by the tokens of all domains, so long answers "
        "outvote short ones. domain: by a domain's own; its say is its share of the prompts.",
    )
    measure_every: int = Field(
        0,
        ge=0,
        description="Rollout batches between measurements of the domains' gradients (norms, "
        "cosines); 0 measures nothing.",
    )
    clusters: int = Field(
        24,
        ge=2,
        le=200,
        description="Rows of the matrix at most: domains, else their families, else their kinds.",
    )
    sketch: int = Field(
        4096, ge=64, description="Numbers that a gradient is reduced to; cosines err by 1/sqrt."
    )
    sample: int = Field(
        2**22, ge=2**10, description="Weights whose gradient is looked at; adapters: all of them."
    )
    memory: float = Field(
        8.0, gt=0, description="Measurements after which an earlier one counts half."
    )
    norms: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Brings the sizes of domains' gradients (a prompt) together: 0 leaves them, 1 "
        "makes them equal.",
    )
    conflicts: Literal["sum", "project"] = Field(
        "sum",
        description="project: of two domains whose gradients point against each other, each "
        "loses what undoes the other (PCGrad, by weights from the measured cosines).",
    )
    weight_limit: float = Field(
        4.0, ge=1, description="norms and conflicts scale a domain up or down by this at most."
    )
    rates: Literal["same", "follow"] = Field(
        "same",
        description="follow: a domain's rate falls while its KL is over rate_kl or its score "
        "sinks, and rises while its score does.",
    )
    rate_kl: float = Field(0.05, gt=0, description="follow: KL that is too far, nats a token.")
    rate_step: float = Field(0.1, gt=0, lt=1, description="follow: change a rollout batch at most.")
    rate_least: float = Field(0.25, gt=0, le=1, description="follow: least factor of a rate.")
    rate_most: float = Field(2.0, ge=1, description="follow: largest factor of a rate.")


class BackOffSettings(Section):
    """[optimizer.back_off] The learning rate of ``rl`` gives way to the KL."""

    kl: float = Field(
        0.0, ge=0, description="KL over which the rate is lowered, nats a token; 0 is off."
    )
    of: Literal["update", "reference"] = Field(
        "update",
        description="KL of a batch's own updates (needs several), or to the reference policy.",
    )
    factor: float = Field(0.7, gt=0, lt=1, description="The rate is multiplied by this.")
    recovery: float = Field(
        1.05, ge=1, description="And by this, back to the schedule's, while KL is under half."
    )
    least: float = Field(0.05, gt=0, le=1, description="The factor never falls below this.")


class ForgettingSettings(Section):
    """[forgetting] Cheap looks, a trial on fresh tasks before an alarm, and what follows it."""

    every: int = Field(0, ge=0, description="Rollout batches of rl between looks; 0 is off.")
    domains: tuple[str, ...] = Field(
        (), description="Names or globs that are watched; empty is all of the run."
    )
    at_once: int = Field(
        16, gt=0, description="Domains a look at most; the others have later ones."
    )
    tasks: int = Field(8, gt=0, description="Screen tasks a domain and look, others each time.")
    start_tasks: int = Field(32, gt=0, description="Screen tasks a domain at the stage's start.")
    trial_tasks: int = Field(64, gt=0, description="Fresh tasks of a trial.")
    replay: int = Field(
        4,
        ge=0,
        description="Completions a domain that the start samples and keeps: KL to the start is "
        "measured on them, and add_replay and add_anchor train on them.",
    )
    kl_limit: float = Field(
        0.0, ge=0, description="KL to the start that is suspect, nats a token; 0 looks at scores."
    )
    margin: float = Field(0.05, gt=0, lt=1, description="Fall of the score that is tolerated.")
    level: float = Field(
        0.05, gt=0, lt=0.5, description="Chance of any false alarm in the whole stage."
    )
    actions: tuple[Literal["tell", "raise_share", "add_replay", "add_anchor", "roll_back"], ...] = (
        Field(
            ("raise_share", "add_anchor"),
            description="What follows a domain's first, second … alarm; the last one repeats. "
            "add_replay imitates the right ones of what was kept, add_anchor holds the "
            "log-probabilities of all of it, roll_back is [guards]' own.",
        )
    )
    raise_by: float = Field(2.0, gt=1, description="raise_share: the weight is multiplied by this.")
    strength: float = Field(
        0.1,
        gt=0,
        description="add_replay, add_anchor: weight of their loss beside that of the step.",
    )
