"""What is trained on instead of the raw score: named parts, length, repetition, normalisation.

The raw score stays what it is: filters, metrics, goals and reports read that one. A sample whose
named part has no value is out of the baseline and the loss, like an unscored one; it never counts
as 0 and never moves its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from educe.algorithms.shaping import (
    RunningScale,
    length_share,
    repetition_share,
    soft_bounded,
    soft_overlong_penalty,
)
from educe.config.algorithm_settings import ShapingSettings
from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.core.types import JSON, Group, Trajectory

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShapedGroup:
    """Rewards of G siblings, NaN where there is none.

    Attributes:
        rewards_G: the sum that is trained on.
        parts_KG: its K terms, before weights: the score first.
        weights_K: theirs.
        names_K: theirs.
    """

    rewards_G: FloatArray
    parts_KG: FloatArray
    weights_K: tuple[float, ...]
    names_K: tuple[str, ...]


def shaped_group(group: Group, settings: ShapingSettings) -> ShapedGroup:
    """Return a group's rewards, neither normalised nor bounded."""
    lengths = [t.num_completion_tokens for t in group.trajectories]
    limit = group.request.max_completion_tokens * group.request.max_turns
    rows: list[tuple[str, float, Sequence[float] | FloatArray]] = [
        ("score", settings.score_weight, [_score(t, settings) for t in group.trajectories])
    ]
    for name, weight in settings.parts.items():
        rows.append((name, weight, [_number(t.score.parts.get(name)) for t in group.trajectories]))
    if settings.overlong:
        cache = min(settings.overlong_tokens or max(limit // 5, 1), limit)
        rows.append(("overlong", settings.overlong, soft_overlong_penalty(lengths, limit, cache)))
    if settings.length:
        rows.append(("length", -settings.length, length_share(lengths, limit)))
    if settings.repetition:
        shares = [_repetition(t, settings.repetition_width) for t in group.trajectories]
        rows.append(("repetition", -settings.repetition, shares))
    parts = np.array([values for _, _, values in rows], np.float64)
    weights = tuple(float(weight) for _, weight, _ in rows)
    summed = np.asarray(weights) @ np.where(np.isfinite(parts), parts, 0.0)
    known = np.isfinite(parts).all(0)
    return ShapedGroup(
        np.where(known, summed, np.nan), parts, weights, tuple(name for name, _, _ in rows)
    )


@dataclass(slots=True)
class RewardShaper:
    """Shapes the rewards of rollout batches; keeps each domain's running mean and deviation.

    Attributes:
        settings: by domain.
        scales: of the domains whose rewards are normalised, once seen.
    """

    settings: Mapping[str, ShapingSettings]
    scales: dict[str, RunningScale] = field(default_factory=dict)

    @staticmethod
    def of(run: ShapingSettings, domains: Mapping[str, DomainSettings]) -> RewardShaper:
        """Return the shaper of a run: a domain's own settings replace the run's as a whole."""
        return RewardShaper({name: own.shaping or run for name, own in domains.items()})

    def shape(self, groups: Sequence[Group]) -> list[ShapedGroup]:
        """Return the batch's rewards, in order; takes them into the running statistics first.

        Raises:
            EduceError: a part is named that none of a domain's scores has.
        """
        shaped = [shaped_group(g, self.settings[g.request.domain]) for g in groups]
        for domain in dict.fromkeys(g.request.domain for g in groups):
            own = [i for i, g in enumerate(groups) if g.request.domain == domain]
            settings = self.settings[domain]
            _require_parts(domain, settings, [groups[i] for i in own])
            if settings.normalise:
                scale = self.scales.setdefault(domain, RunningScale(decay=settings.decay))
                scale.update(np.concatenate([_sampled(groups[i], shaped[i]) for i in own]))
            for i in own:
                shaped[i] = self._finished(domain, shaped[i])
        return shaped

    def _finished(self, domain: str, group: ShapedGroup) -> ShapedGroup:
        settings, rewards = self.settings[domain], group.rewards_G
        if settings.normalise:
            rewards = self.scales[domain].normalise(rewards)
        rewards = soft_bounded(rewards, settings.limit)
        return ShapedGroup(rewards, group.parts_KG, group.weights_K, group.names_K)

    def state(self) -> dict[str, JSON]:
        """Return everything that the next batch's rewards depend on, as JSON."""
        return {name: scale.state() for name, scale in self.scales.items()}

    def restore(self, state: Mapping[str, JSON]) -> None:
        self.scales = {name: RunningScale.from_state(raw) for name, raw in state.items()}


def _sampled(group: Group, shaped: ShapedGroup) -> FloatArray:
    """The rewards of what was sampled, without the greedy baseline."""
    return shaped.rewards_G[: group.request.num_sampled]


def _score(trajectory: Trajectory, settings: ShapingSettings) -> float:
    if trajectory.score.value is not None and settings.truncated is not None:
        return settings.truncated if trajectory.is_truncated else trajectory.score.value
    return _number(trajectory.score.value)


def _number(value: float | None) -> float:
    return float("nan") if value is None or not np.isfinite(value) else float(value)


def _repetition(trajectory: Trajectory, width: int) -> float:
    ids = [token for turn in trajectory.turns for token in turn.completion_token_ids]
    return repetition_share(ids, width)


def _require_parts(domain: str, settings: ShapingSettings, groups: Sequence[Group]) -> None:
    known = {name for g in groups for score in g.scores for name in score.parts}
    for name in settings.parts:
        # A batch without any part may just be one of unreadable answers; it trains nothing.
        if known and name not in known:
            raise EduceError(
                f"shaping.parts names {name!r}, but no score of {domain} has such a part; it has "
                f"{', '.join(sorted(known))}. Name one of these, or give the domain a "
                f'[domains."{domain}".shaping] of its own.'
            )
