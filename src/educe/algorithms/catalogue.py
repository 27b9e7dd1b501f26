"""Algorithms as named bundles: advantage + loss + aggregation + KL, with the paper's defaults.

Torch-free, so that preflight and ``educe explain`` can print them. A name means what its paper
says; what deviates has a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from educe.core.errors import RecipeError, did_you_mean


@dataclass(frozen=True, slots=True)
class Bundle:
    """A resolved algorithm.

    Attributes:
        advantage: key of ``advantages.ADVANTAGES``.
        loss: key of ``losses.build_loss``.
        aggregation: see ``aggregate.sequence_weights``.
        clip_low, clip_high: offsets from 1 (of log r in ``geometric_mean``; limits of the
            divergence in ``divergence_tv`` and ``divergence_kl``).
        kl_coefficient: weight of the reference KL in the loss; 0 needs no reference.
        correction: how proximal / behaviour weighs the loss: ``importance.CORRECTIONS``.
        importance_floor, importance_cap: its bounds; a cap of 0 switches the correction off.
        entropy_coefficient: weight of the entropy bonus.
        options: numbers of this loss that others do not have, as (name, value) pairs.
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
    correction: str = "token_truncated"
    importance_floor: float = 0.0
    entropy_coefficient: float = 0.0
    options: tuple[tuple[str, float], ...] = ()
    mask_truncated: bool = False
    drop_trivial: bool = False
    proximal: str = "recompute"
    paper: str = ""

    @property
    def needs_group(self) -> bool:
        """Whether a group of one completion has no baseline."""
        return self.advantage in _GROUP_BASELINES

    @property
    def trains_without_advantage(self) -> bool:
        """Whether a sample of advantage 0 still has a gradient."""
        return self.kl_coefficient > 0 or self.entropy_coefficient != 0

    def option(self, name: str, default: float) -> float:
        """Return the named option, or what the loss takes without it."""
        return dict(self.options).get(name, default)

    def formula(self) -> str:
        """Return the resolved objective as one line of text, different for different losses."""
        advantage = _ADVANTAGE_TEXT[self.advantage].format(eps=_shown(self.advantage_eps))
        body = _LOSS_TEXT[self.loss].format(
            low=_shown(1 - self.clip_low),
            high=_shown(1 + self.clip_high),
            clip_low=_shown(self.clip_low),
            clip_high=_shown(self.clip_high),
        )
        if self.options:
            body += " with " + ", ".join(f"{k} = {_shown(v)}" for k, v in self.options)
        kl = (
            f" + {_shown(self.kl_coefficient)} * {self.kl_estimator}(policy || reference)"
            if self.kl_coefficient
            else ""
        )
        entropy = f" - {_shown(self.entropy_coefficient)} * entropy"
        bonus = entropy if self.entropy_coefficient else ""
        return f"loss = {self.aggregation}[ {self._weight()}{body}{kl}{bonus} ],  {advantage}"

    def _weight(self) -> str:
        if not self.importance_cap:
            return ""
        low, high = _shown(self.importance_floor), _shown(self.importance_cap)
        if self.correction == "token_truncated" and not self.importance_floor:
            return f"min(proximal/behaviour, {high}) * "
        return _CORRECTION_TEXT[self.correction].format(low=low, high=high) + " * "


def _shown(value: float) -> str:
    """Twelve digits: rounding of 1 - 0.2 is gone, and different settings stay different."""
    return f"{value:.12g}"


_GROUP_BASELINES = (
    "group_normalised",
    "group_centred",
    "leave_one_out",
    "mean_scaled",
    "best_over_second",
)

_ADVANTAGE_TEXT = {
    "group_normalised": "A = (s - mean_group) / (std_group + {eps})",
    "group_centred": "A = s - mean_group",
    "leave_one_out": "A_i = s_i - mean of the group's others",
    "mean_scaled": "A = (s - mean_group) / mean_group",
    "best_over_second": "A = s - second best of the group for the best, 0 for the others",
    "score": "A = s",
}

_LOSS_TEXT = {
    "clipped_surrogate": "-min(r A, clip(r, {low}, {high}) A), r = policy/proximal per token",
    "sequence_surrogate": (
        "-min(r A, clip(r, {low}, {high}) A), r = geometric mean of policy/proximal per sequence"
    ),
    "truncated_reinforce": "-sg(clip(r, {low}, {high})) A log policy, r = policy/proximal",
    "reinforce": "-A log policy",
    "soft_adaptive": "-A 4/tau sigmoid(tau (r - 1)), r = policy/proximal, tau by the sign of A",
    "geometric_mean": (
        "-A exp(mean of log r), log r <= {clip_high} where A > 0, >= -{clip_low} where A < 0"
    ),
    "divergence_tv": (
        "-keep sg(min(r, cap)) A log policy, r = policy/proximal, drop A > 0 at "
        "p_policy - p_behaviour > {clip_high}, A < 0 at p_behaviour - p_policy > {clip_low}"
    ),
    "divergence_kl": (
        "-keep sg(min(r, cap)) A log policy, r = policy/proximal, drop A > 0 (A < 0) that rose "
        "(fell) by a two-outcome KL > {clip_high} ({clip_low})"
    ),
    "cross_entropy": "-log policy",
}

_CORRECTION_TEXT = {
    "token_truncated": "clip(proximal/behaviour, {low}, {high})",
    "sequence_truncated": "clip(product of proximal/behaviour, {low}, {high})",
    "icepop": "[w if {low} <= w <= {high} else 0], w = proximal/behaviour,",
    "sequence_mask": "[{low} <= product of proximal/behaviour <= {high}]",
    "geometric_mask": "[{low} <= geometric mean of proximal/behaviour <= {high}]",
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
            "seq-mean-token-sum-norm",
            paper="Ahmadian et al. 2024, arXiv 2402.14740 (sums over tokens, divided by Lmax)",
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
        Bundle(
            "reinforce",
            "score",
            "reinforce",
            "seq-mean-token-sum-norm",
            paper="Williams 1992 (without a baseline; sums over tokens, divided by Lmax)",
        ),
        Bundle(
            "pass_at_k",
            "best_over_second",
            "clipped_surrogate",
            "seq-mean-token-mean",
            paper="Tang et al. 2025, arXiv 2503.19595, k = the group size",
        ),
        Bundle(
            "sapo",
            "group_normalised",
            "soft_adaptive",
            "seq-mean-token-mean",
            options=(("tau_positive", 1.0), ("tau_negative", 1.05)),
            paper="arXiv 2511.20347",
        ),
        Bundle(
            "gmpo",
            "group_normalised",
            "geometric_mean",
            "seq-mean-token-mean",
            clip_low=0.4,
            clip_high=0.4,
            paper="Zhao et al. 2025, arXiv 2507.20673",
        ),
        Bundle(
            "dppo_tv",
            "group_normalised",
            "divergence_tv",
            "token-mean",
            proximal="behaviour",
            importance_cap=0.0,
            options=(("weight_cap", 20.0),),
            paper="Qi et al. 2026, arXiv 2602.04879",
        ),
        Bundle(
            "dppo_kl",
            "group_normalised",
            "divergence_kl",
            "token-mean",
            clip_low=0.05,
            clip_high=0.05,
            proximal="behaviour",
            importance_cap=0.0,
            options=(("weight_cap", 20.0),),
            paper="Qi et al. 2026, arXiv 2602.04879",
        ),
    )
}


CORRECTION_BOUNDS = {
    "token_truncated": (0.0, 2.0),
    "sequence_truncated": (0.0, 5.0),
    "icepop": (0.5, 5.0),
    "sequence_mask": (0.0, 3.0),
    "geometric_mask": (0.99, 1.01),
}
"""What a correction takes for (floor, cap) where a recipe names it without them."""

_CHOICES = {
    "correction": tuple(CORRECTION_BOUNDS),
    "kl_estimator": ("k1", "k2", "k3", "k1+", "k3+"),
    "aggregation": (
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "prompt-mean",
    ),
}


def resolve_bundle(name: str, overrides: dict[str, Any] | None = None) -> Bundle:
    """Return the named bundle with given (non-None) fields replaced.

    A correction that is named without bounds takes its own, see ``CORRECTION_BOUNDS``.

    Raises:
        RecipeError: for an unknown name (lists the nearest ones), an unknown choice, or overrides
            that contradict each other.
    """
    if name not in BUNDLES:
        raise RecipeError(
            f"algorithm.name must be one of {', '.join(sorted(BUNDLES))}; got {name!r}."
            + did_you_mean(name, BUNDLES)
        )
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    for key, choices in _CHOICES.items():
        if key in given and given[key] not in choices:
            raise RecipeError(
                f"algorithm.{key} must be one of {', '.join(choices)}; got {given[key]!r}."
            )
    bounds = CORRECTION_BOUNDS.get(given.get("correction", ""), ())
    defaults = dict(zip(("importance_floor", "importance_cap"), bounds, strict=False))
    bundle = replace(BUNDLES[name], **(defaults | given))
    _check_correction(bundle, given)
    return bundle


def _check_correction(bundle: Bundle, given: dict[str, Any]) -> None:
    low, high = bundle.importance_floor, bundle.importance_cap
    if high == 0 and (given.get("correction") or given.get("importance_floor")):
        raise RecipeError(
            f"algorithm.importance_cap is 0, so {bundle.name} corrects nothing and "
            "algorithm.correction and importance_floor would do nothing. Give a cap, or remove "
            "them."
        )
    if high and low >= high:
        raise RecipeError(
            f"algorithm.importance_floor = {low:g} must be below importance_cap = {high:g}. "
            "Lower the floor or raise the cap."
        )
