"""A resolved algorithm and its objective as one line of text. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

OPTIONS: dict[str, tuple[str, ...]] = {
    "gamma": ("gae", "returns"),
    "lam": ("gae",),
    "lam_alpha": ("gae",),
    "k": ("best_of_k",),
    "dual_clip": ("clipped_surrogate", "sequence_surrogate"),
    "sequence_drop": (
        "clipped_surrogate",
        "sequence_surrogate",
        "truncated_reinforce",
        "soft_adaptive",
        "geometric_mean",
    ),
}
"""Numbers that a recipe may give, and the advantages or losses that read them."""

_CLIPPED = (
    "clipped_surrogate",
    "sequence_surrogate",
    "truncated_reinforce",
    "geometric_mean",
    "divergence_tv",
    "divergence_kl",
)
READERS: dict[str, tuple[str, ...]] = {
    **OPTIONS,
    "clip_low": _CLIPPED,
    "clip_high": _CLIPPED,
    "advantage_eps": ("group_normalised", "multi_reward", "process"),
}
"""The same with the fields that every bundle has and not every one reads."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A resolved algorithm.

    Attributes:
        advantage: how scores become credit, a key of ``ADVANTAGE_TEXT``.
        loss: key of ``losses.build_loss``.
        aggregation: see ``aggregate.sequence_weights``.
        clip_low, clip_high: offsets from 1 (of log r in ``geometric_mean``; limits of the
            divergence in ``divergence_tv`` and ``divergence_kl``).
        kl_coefficient: weight of the reference KL; 0 needs no reference.
        kl_place: whether that KL is a term of the ``loss`` or is taken off the ``reward``.
        correction: how proximal / behaviour weighs the loss: ``importance.CORRECTIONS``.
        importance_floor, importance_cap: its bounds; a cap of 0 switches the correction off.
        entropy_coefficient: weight of the entropy bonus.
        whitening: advantages less their mean, over their deviation, of a whole rollout batch: over
            its action ``tokens``, over its ``samples``, or not at all (empty).
        options: numbers that others do not have, as (name, value) pairs.
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
    kl_place: str = "loss"
    whitening: str = ""

    @property
    def needs_group(self) -> bool:
        """Whether a group of one completion has no baseline."""
        return self.advantage in GROUP_BASELINES

    @property
    def needs_values(self) -> bool:
        """Whether credit needs a value head."""
        return self.advantage == "gae"

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt also needs a greedy completion."""
        return self.advantage == "over_greedy"

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen model must be held beside the policy."""
        return self.kl_coefficient > 0

    @property
    def kl_in_loss(self) -> bool:
        return self.kl_coefficient > 0 and self.kl_place == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl_coefficient > 0 and self.kl_place == "reward"

    @property
    def is_scale_free(self) -> bool:
        """Whether the unit of the rewards drops out and a rare success may be worth any number.

        One right answer among N is worth sqrt(N - 1) deviations of a batch, N - 1 means of a group.
        """
        return bool(self.whitening) or self.advantage == "mean_scaled"

    @property
    def trains_without_advantage(self) -> bool:
        """Whether a sample of advantage 0 still has a gradient."""
        return (
            self.kl_in_loss
            or self.entropy_coefficient != 0
            or self.option("entropy_target", 0.0) > 0
            or self.needs_values
        )

    def option(self, name: str, default: float) -> float:
        """Return the named option, or what the loss takes without it."""
        return dict(self.options).get(name, default)

    def setting(self, name: str) -> object:
        """Return a field or an option by its recipe name; None where this bundle has none."""
        return getattr(self, name) if hasattr(self, name) else dict(self.options).get(name)

    def formula(self) -> str:
        """Return the resolved objective as one line of text, different for different losses."""
        advantage = ADVANTAGE_TEXT[self.advantage].format(eps=_shown(self.advantage_eps))
        if self.whitening:
            advantage += f", then whitened over the batch's {self.whitening}"
        if self.kl_in_reward:
            advantage += f", reward - {self._coefficient()} * {self._kl()}"
        body = _LOSS_TEXT[self.loss].format(
            low=_shown(1 - self.clip_low),
            high=_shown(1 + self.clip_high),
            clip_low=_shown(self.clip_low),
            clip_high=_shown(self.clip_high),
        )
        if self.options:
            body += " with " + ", ".join(f"{k} = {_shown(v)}" for k, v in self.options)
        kl = f" + {self._coefficient()} * {self._kl()}" if self.kl_in_loss else ""
        entropy = f" - {_shown(self.entropy_coefficient)} * entropy"
        bonus = entropy if self.entropy_coefficient else ""
        if self.option("entropy_target", 0.0) > 0:
            bonus = " - alpha * entropy"
        value = " + value_coefficient * value loss" if self.needs_values else ""
        return (
            f"loss = {self.aggregation}[ {self._weight()}{body}{kl}{bonus}{value} ],  {advantage}"
        )

    def _kl(self) -> str:
        return f"{self.kl_estimator}(policy || reference)"

    def _coefficient(self) -> str:
        start = _shown(self.kl_coefficient)
        return f"(beta from {start})" if self.option("kl_target", 0.0) > 0 else start

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


GROUP_BASELINES = (
    "group_normalised",
    "group_centred",
    "leave_one_out",
    "mean_scaled",
    "best_over_second",
    "best_of_k",
    "length_weighted",
    "multi_reward",
    "process",
)

ADVANTAGE_TEXT = {
    "group_normalised": "A = (s - mean_group) / (std_group + {eps})",
    "group_centred": "A = s - mean_group",
    "leave_one_out": "A_i = s_i - mean of the group's others",
    "mean_scaled": "A = (s - mean_group) / mean_group",
    "best_over_second": "A = s - second best of the group for the best, 0 for the others",
    "best_of_k": "A = mean over subsets of k of what a sample adds to their best",
    "length_weighted": "A = s - sum(length s) / sum(length) of the group",
    "over_greedy": "A = s - score of the greedy completion",
    "multi_reward": "A = sum over rewards of w (s - mean_group) / (std_group + {eps})",
    "process": "A_t = sum of steps ending at or after t of (s - mean_group) / (std_group + {eps})",
    "returns": "A_t = R_t + gamma A_(t+1) over action tokens",
    "gae": "A_t = R_t + gamma V_(t+1) - V_t + gamma lam A_(t+1) over action tokens",
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
