"""Settings of ``[algorithm]`` with its credit, KL and values; of shaping and exploration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from educe.config.section import Section


class CreditSettings(Section):
    """[algorithm.credit] Empty values take the named bundle's published default."""

    whitening: Literal["tokens", "samples", ""] | None = Field(
        None,
        description="Advantages less their mean, over their deviation, of the rollout batch: over "
        "its action tokens, over its samples, or (empty) not at all.",
    )
    gamma: float | None = Field(
        None, ge=0, le=1, description="Discount from an action token to the next (ppo, returns)."
    )
    lam: float | None = Field(None, ge=0, le=1, description="GAE's lambda (ppo).")
    lam_alpha: float | None = Field(
        None,
        gt=0,
        description="Lambda by length, 1 - 1 / (lam_alpha length), for the advantages; the returns "
        "that values learn then take lambda 1 (ppo; VAPO has 0.05).",
    )
    k: int | None = Field(None, ge=2, description="Best of how many (pkpo).")


class KLSettings(Section):
    """[algorithm.kl] The coefficient and the estimator stand in [algorithm]."""

    place: Literal["loss", "reward"] | None = Field(
        None, description="A term of the loss, or taken off the reward."
    )
    target: float = Field(
        0.0,
        ge=0,
        description="Steer the coefficient to this KL, nats a token; 0 keeps it fixed.",
    )
    horizon: float = Field(
        10000.0, gt=0, description="Sequences in which an error of 100 % doubles the coefficient."
    )
    reference: Literal["start", "base"] = Field(
        "start",
        description="KL to the policy as the stage began, or to the model before any training.",
    )
    refresh_steps: int = Field(
        0,
        ge=0,
        description="Rollout batches after which the reference becomes the policy; 0 never.",
    )
    stop_update: float = Field(
        0.0,
        ge=0,
        description="End a rollout batch's updates when KL(policy || its start) exceeds this, nats "
        "a token; 0 is off.",
    )
    stop: float = Field(
        0.0,
        ge=0,
        description="End the stage when the KL to the reference exceeds this, nats a token; 0 is "
        "off.",
    )


class ValueSettings(Section):
    """[algorithm.value] The value head of ppo."""

    coefficient: float | None = Field(None, ge=0, description="Weight of the value loss.")
    clip: float | None = Field(
        None, ge=0, description="How far a value may move in an update; 0 is no limit."
    )
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of the value head.")
    trunk: bool = Field(
        False, description="Let the value loss train the model below the head as well."
    )


class ExplorationSettings(Section):
    """[rl.exploration]"""

    temperature: float = Field(
        0.0, ge=0, description="Where the sampling temperature goes; 0 leaves it as it is."
    )
    steps: int = Field(0, ge=0, description="Rollout batches on the way there; 0 takes rl.steps.")
    shape: Literal["linear", "cosine"] = Field("linear", description="The way there.")
    entropy_target: float = Field(
        0.0,
        ge=0,
        description="Raise the entropy bonus while the policy's entropy is below this, lower it "
        "above; nats a token, 0 is off.",
    )
    entropy_step: float = Field(0.005, gt=0, description="How much the bonus changes a step.")
    entropy_most: float = Field(0.1, gt=0, description="The bonus never exceeds this.")


class ShapingSettings(Section):
    """[shaping] What is added to a domain's score for training; filters and reports never see it.

    A domain's own [domains."NAME".shaping] replaces the run's as a whole.
    """

    parts: dict[str, float] = Field(
        default_factory=dict,
        description="Named parts of the score to add, with their weights (format, style …).",
    )
    score_weight: float = Field(1.0, description="Weight of the score itself.")
    overlong: float = Field(
        0.0, ge=0, description="Soft overlong penalty: up to this at the token limit (DAPO: 1)."
    )
    overlong_tokens: int = Field(
        0, ge=0, description="Tokens before the limit where it starts; 0 takes a fifth of it."
    )
    length: float = Field(0.0, description="Penalty of a completion of full length; linear below.")
    repetition: float = Field(
        0.0, ge=0, description="Penalty of repeated n-grams, times their share."
    )
    repetition_width: int = Field(4, gt=0, description="Tokens of such an n-gram.")
    truncated: float | None = Field(
        None, description="Score, for training, of a completion cut at the token limit (-1, say)."
    )
    normalise: bool = Field(
        False, description="Rewards less their domain's running mean, over its deviation."
    )
    decay: float = Field(
        0.99, ge=0, lt=1, description="Share of the past that a batch leaves in these."
    )
    limit: float = Field(
        0.0, ge=0, description="Soft bound of rewards, limit * tanh(reward / limit); 0 is none."
    )


class AlgorithmSettings(Section):
    """[algorithm] Empty values take the named bundle's published default."""

    name: str = Field("grpo", description="Named bundle: grpo, dr_grpo, dapo, rloo, reinforce …")
    clip_low: float | None = Field(None, ge=0, description="Lower clip offset.")
    clip_high: float | None = Field(None, ge=0, description="Upper clip offset.")
    kl_coefficient: float | None = Field(None, ge=0, description="Weight of the reference KL.")
    kl_estimator: Literal["k1", "k2", "k3", "k1+", "k3+", "rk3"] | None = Field(
        None,
        description="KL estimator; + keeps its value with the gradient of k2, rk3 weighs k3 by "
        "the ratio (unbiased off-policy).",
    )
    aggregation: (
        Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "prompt-mean"]
        | None
    ) = Field(None, description="How token losses become one number.")
    proximal: Literal["behaviour", "recompute"] | None = Field(
        None,
        description="Ratio denominator: recomputed at the start of the update, or what sampled.",
    )
    correction: (
        Literal[
            "token_truncated", "sequence_truncated", "icepop", "sequence_mask", "geometric_mask"
        ]
        | None
    ) = Field(None, description="How proximal/behaviour weighs the loss; brings its own bounds.")
    importance_cap: float | None = Field(
        None, ge=0, description="Cap of the proximal/behaviour weight (2); 0 switches off."
    )
    importance_floor: float | None = Field(
        None, ge=0, description="Lower bound of that weight; masks drop what is below."
    )
    entropy_coefficient: float | None = Field(
        None, description="Weight of the entropy bonus; negative lowers the entropy."
    )
    advantage_eps: float | None = Field(None, gt=0, description="Added to the group's deviation.")
    mask_truncated: bool | None = Field(
        None,
        description="Leave completions cut at the token limit out of the loss (overlong "
        "filtering); they stay in the baseline and the denominators.",
    )
    dual_clip: float | None = Field(
        None,
        ge=0,
        description="Bound of the loss where A < 0, times |A| (PPO and kin; 3); 0 is off.",
    )
    sequence_drop: float | None = Field(
        None,
        ge=0,
        description="Leave out sequences of A < 0 that the policy left behind by more than this, "
        "mean nats a token; 0 is off.",
    )
    credit: CreditSettings = Field(default_factory=lambda: CreditSettings())
    kl: KLSettings = Field(default_factory=lambda: KLSettings())
    value: ValueSettings = Field(default_factory=lambda: ValueSettings())
