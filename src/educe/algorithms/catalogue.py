"""Algorithms as named bundles: advantage + loss + aggregation + KL, with the paper's defaults.

Torch-free, so that preflight and ``educe explain`` can print them. A name means what its paper
says; what deviates has a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from educe.core.errors import RecipeError, did_you_mean

OFF = float("inf")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A resolved algorithm.

    Attributes:
        advantage: key of ``advantages.ADVANTAGES``.
        loss: key of ``losses.build_loss``.
        aggregation: see ``aggregate.sequence_weights``.
        clip_low, clip_high: offsets from 1.
        kl_coefficient: weight of the reference KL in the loss; 0 needs no reference.
        importance_cap: cap of proximal / behaviour; 0 switches the correction off.
        advantage_eps: added to the group's standard deviation.
        mask_truncated: leave completions cut by the token limit out of the loss (they stay in the
            baseline).
        drop_trivial: do not count groups without signal towards the batch.
        proximal: "recompute" at the start of the update, or "behaviour".
        paper: where the formula comes from.
    """

    name: str
    advantage: str
    loss: str
    aggregation: str
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    importance_cap: float = 2.0
    advantage_eps: float = 1e-6
    mask_truncated: bool = False
    drop_trivial: bool = False
    proximal: str = "recompute"
    paper: str = ""

    @property
    def needs_group(self) -> bool:
        """Whether a group of one completion has no baseline."""
        return self.advantage in _GROUP_BASELINES

    def formula(self) -> str:
        """Return the resolved objective as one line of text."""
        advantage = _ADVANTAGE_TEXT[self.advantage].format(eps=self.advantage_eps)
        body = _LOSS_TEXT[self.loss].format(
            low=f"{1 - self.clip_low:g}", high=f"{1 + self.clip_high:g}"
        )
        weight = (
            f"min(proximal/behaviour, {self.importance_cap:g}) * " if self.importance_cap else ""
        )
        kl = (
            f" + {self.kl_coefficient:g} * {self.kl_estimator}(policy || reference)"
            if self.kl_coefficient
            else ""
        )
        return f"loss = {self.aggregation}[ {weight}{body}{kl} ],  {advantage}"


_GROUP_BASELINES = ("group_normalised", "group_centred", "leave_one_out", "mean_scaled")

_ADVANTAGE_TEXT = {
    "group_normalised": "A = (s - mean_group) / (std_group + {eps:g})",
    "group_centred": "A = s - mean_group",
    "leave_one_out": "A_i = s_i - mean of the group's others",
    "mean_scaled": "A = (s - mean_group) / mean_group",
}

_LOSS_TEXT = {
    "clipped_surrogate": "-min(r A, clip(r, {low}, {high}) A), r = policy/proximal per token",
    "sequence_surrogate": (
        "-min(r A, clip(r, {low}, {high}) A), r = geometric mean of policy/proximal per sequence"
    ),
    "truncated_reinforce": "-sg(clip(r, {low}, {high})) A log policy, r = policy/proximal",
    "cross_entropy": "-log policy",
}

BUNDLES: dict[str, Bundle] = {
    bundle.name: bundle
    for bundle in (
        Bundle(
            "grpo",
            "group_normalised",
            "clipped_surrogate",
            "seq-mean-token-mean",
            paper="Shao et al. 2024, arXiv 2402.03300",
        ),
        Bundle(
            "dr_grpo",
            "group_centred",
            "clipped_surrogate",
            "seq-mean-token-sum-norm",
            paper="Liu et al. 2025, arXiv 2503.20783",
        ),
        Bundle(
            "dapo",
            "group_normalised",
            "clipped_surrogate",
            "token-mean",
            clip_high=0.28,
            mask_truncated=True,
            drop_trivial=True,
            paper="Yu et al. 2025, arXiv 2503.14476 (without its soft length penalty)",
        ),
        Bundle(
            "rloo",
            "leave_one_out",
            "clipped_surrogate",
            "seq-mean-token-mean",
            paper="Ahmadian et al. 2024, arXiv 2402.14740",
        ),
        Bundle(
            "gspo",
            "group_normalised",
            "sequence_surrogate",
            "seq-mean-token-mean",
            clip_low=3e-4,
            clip_high=4e-4,
            paper="Zheng et al. 2025, arXiv 2507.18071",
        ),
        Bundle(
            "cispo",
            "group_normalised",
            "truncated_reinforce",
            "token-mean",
            clip_low=1.0,
            clip_high=4.0,
            paper="MiniMax 2025, arXiv 2506.13585; upper bound 5 as in arXiv 2510.13786",
        ),
        Bundle(
            "maxrl",
            "mean_scaled",
            "clipped_surrogate",
            "token-mean",
            paper="arXiv 2602.02710",
        ),
    )
}


def resolve_bundle(name: str, overrides: dict[str, Any] | None = None) -> Bundle:
    """Return the named bundle with given (non-None) fields replaced.

    Raises:
        RecipeError: for an unknown name; lists the nearest ones.
    """
    if name not in BUNDLES:
        raise RecipeError(
            f"algorithm.name must be one of {', '.join(sorted(BUNDLES))}; got {name!r}."
            + did_you_mean(name, BUNDLES)
        )
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    return replace(BUNDLES[name], **given)
