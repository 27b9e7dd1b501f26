"""Credit that needs more than one group: statistics of a batch, several rewards, running means.

K reward parts, G siblings. A batch is a list of groups, or of token arrays; group sizes may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from educe.algorithms.advantages.group import (
    BoolArray,
    FloatArray,
    group_centred,
    group_normalised,
    is_flat,
    scored_mask,
)


def whitened(
    values: Sequence[FloatArray], masks: Sequence[BoolArray], eps: float = 1e-8
) -> list[FloatArray]:
    """(A - mean) / sqrt(var + eps) with the statistics of everything that is in the masks.

    ``values[i]`` and ``masks[i]`` have one shape; outside the mask the result is 0. The mean and
    the population variance are over the whole list, which should be the global batch.
    """
    used = [np.asarray(m, np.bool_) & np.isfinite(v) for v, m in zip(values, masks, strict=True)]
    kept = np.concatenate([v[m] for v, m in zip(values, used, strict=True)] or [np.zeros(0)])
    out = [np.zeros(len(v)) for v in values]
    if is_flat(kept):
        return out
    mean, scale = kept.mean(), np.sqrt(kept.var() + eps)
    for result, value, mask in zip(out, values, used, strict=True):
        result[mask] = (value[mask] - mean) / scale
    return out


def multi_reward(
    parts_KG: FloatArray,
    in_baseline_G: BoolArray,
    weights_K: Sequence[float],
    eps: float = 1e-6,
) -> FloatArray:
    """sum_k w_k (s_k - mean_k) / (std_k + eps): each reward normalised on its own.

    (GDPO, arXiv 2601.05242.) A part without a value is NaN: that sibling leaves that part's
    statistics and gets nothing from it; everything else is as if it had not been there. Whiten the
    result over the batch with :func:`whitened`.
    """
    parts = np.atleast_2d(np.asarray(parts_KG, np.float64))
    if len(weights_K) != len(parts):
        raise ValueError(f"{len(parts)} reward parts need as many weights, got {len(weights_K)}")
    total = np.zeros(parts.shape[1])
    for weight, scores_G in zip(weights_K, parts, strict=True):
        total += weight * group_normalised(scores_G, in_baseline_G, eps)
    return total


def gdpo(
    groups: Sequence[tuple[FloatArray, BoolArray]],
    weights_K: Sequence[float],
    eps: float = 1e-6,
) -> list[FloatArray]:
    """GDPO for a batch of groups, each (parts_KG, in_baseline_G): normalise, sum, whiten.

    Statistics of the whitening are over samples that have a value in every part or in some; a
    sibling without any value stays out.
    """
    summed = [multi_reward(parts, mask, weights_K, eps) for parts, mask in groups]
    masks = [
        np.asarray(mask, np.bool_) & np.isfinite(np.atleast_2d(parts)).any(0)
        for parts, mask in groups
    ]
    return whitened(summed, masks)


def centred_then_whitened(
    groups: Sequence[tuple[FloatArray, BoolArray]], lengths: Sequence[Sequence[int]]
) -> list[FloatArray]:
    """s - mean of the group, then whitened over all action tokens of the batch.

    (REINFORCE++-baseline, Hu 2025, arXiv 2501.03262.) Each group is (scores_G, in_baseline_G);
    ``lengths`` are its siblings' action tokens: a long completion counts as often as it has tokens.
    The advantage is constant over a completion.
    """
    centred = [group_centred(scores, mask) for scores, mask in groups]
    pairs = list(zip(groups, centred, lengths, strict=True))
    values = np.concatenate([c for _, c, _ in pairs] or [np.zeros(0)])
    counts = np.concatenate(
        [np.where(scored_mask(s, m), np.asarray(n), 0) for (s, m), _, n in pairs] or [np.zeros(0)]
    )
    if counts.sum() == 0 or is_flat(values[counts > 0]):
        return [np.zeros(len(c)) for c in centred]
    mean = np.average(values, weights=counts)
    scale = np.sqrt(np.average((values - mean) ** 2, weights=counts) + 1e-8)
    return [
        np.where(scored_mask(scores, mask), (own - mean) / scale, 0.0)
        for (scores, mask), own, _ in pairs
    ]


@dataclass(slots=True)
class RoleBaselines:
    """A running mean of scores for each role of a game (RAE, SPIRAL, arXiv 2506.24119).

    A = s - b_role with b from before the batch; then b <- decay b + (1 - decay) s, score by score
    in the order given. A role starts with its first score, not with 0.
    """

    decay: float = 0.95
    baselines: dict[str, float] = field(default_factory=dict)

    def credit(self, role: str, scores_G: FloatArray, in_baseline_G: BoolArray) -> FloatArray:
        """Return the advantages of a role's scores and take them into its mean."""
        used = scored_mask(scores_G, in_baseline_G)
        scored = np.asarray(scores_G, np.float64)[used]
        out = np.zeros(len(scores_G))
        if len(scored) == 0:
            return out
        baseline = self.baselines.get(role, float(scored[0]))
        out[used] = scored - baseline
        for value in scored:
            baseline = self.decay * baseline + (1.0 - self.decay) * float(value)
        self.baselines[role] = baseline
        return out

    def state(self) -> dict[str, object]:
        """Return everything that the next credit depends on, as JSON."""
        return {"decay": self.decay, "baselines": dict(self.baselines)}

    @staticmethod
    def from_state(state: Mapping[str, object]) -> RoleBaselines:
        baselines, decay = state["baselines"], state["decay"]
        if not isinstance(baselines, Mapping) or not isinstance(decay, int | float):
            raise ValueError(f"expected decay and baselines, got {dict(state)}")
        return RoleBaselines(float(decay), {str(k): float(v) for k, v in baselines.items()})
