"""What is known of each domain from its rollouts: signal, level, response to training, cost.

Everything is an array of shape (..., D): one run has no leading axis, the simulator has one for its
worlds, and both use this very code. Estimates are pooled: a domain with a handful of samples is
read through its family, a family through the run. All of it is a few numbers a domain.

Scores are chance-corrected: 0 is chance, 1 is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prior of the response filter: no response, known to this standard deviation (score a unit of
# exposure). What is seen is 0.001 to 0.1; a wider prior lets noise carry the level away.
_RATE_SD = 0.1
# The level walks a little each step (others' lessons, drift); what is known of the response counts
# half after so many groups.
_LEVEL_WALK = 2e-5
_RATE_LIFE = 64.0
# Samples of one task are alike: the share of the variance that lies between tasks.
_BETWEEN_TASKS = 0.3
# How far responses differ, relative to the run's mean, before anything is known of it; what that
# weighs, in domains known to their own mean; bounds of the variance; and the parts of families
# among each other and of domains in one.
_SPREAD, _SPREAD_WEIGHT, _SPREAD_BOUNDS = 0.8, 5.0, (0.001, 1.5)
_BETWEEN, _WITHIN = 0.65, 0.75
_SMALLEST_RATE = 1e-3
# How lessons move the score q along its curve: q ** rise * (1 - q) ** fall. A plain logistic has 1
# and 1; low rates rise sooner than that (some tasks of a hard domain are easy) and high ones stall
# sooner (a domain's ceiling is often below 1). Chosen on tuning worlds, see the design page.
_RISE, _FALL = 0.3, 2.5
# Variance of one group's spread (and regret), and of levels within a family, beforehand.
_GROUP_NOISE = 0.06
_LEVEL_SPREAD = 0.015
# Squared coefficients of variation: of a group's cost, and of domains' mean costs in a family
# beforehand; groups that the run's mean cost weighs in a family's.
_COST_NOISE, _COST_SPREAD, _FAMILY_COST = 0.12, 0.2, 4.0
# What such an expectation weighs, in domains known that well; the least part of it that is left.
_ALIKE_DOMAINS, _LEAST = 5.0, 0.002


@dataclass(slots=True)
class BatchCounts:
    """What one rollout batch said, by domain; sums over its groups, arrays (..., D).

    Attributes:
        groups: groups that ended, scored or not.
        scored_groups: groups with a scored sample.
        scored: scored samples.
        score_sum: chance-corrected score, summed over scored samples.
        spread_sum: of each group twice the standard deviation of its rewards, at most 1: what a
            group-relative advantage has to work with. 1 is half right, half wrong; 0 teaches
            nothing.
        regret_sum: of each group its best minus its mean score.
        cost_sum: cost of the groups in the run's unit.
    """

    groups: Floats
    scored_groups: Floats
    scored: Floats
    score_sum: Floats
    spread_sum: Floats
    regret_sum: Floats
    cost_sum: Floats

    @staticmethod
    def zeros(shape: tuple[int, ...]) -> BatchCounts:
        return BatchCounts(*(np.zeros(shape) for _ in fields(BatchCounts)))


@dataclass(slots=True)
class Evidence:
    """Running estimates; see the module.

    Args:
        family: (..., D) index of each domain's family, counted from 0 in each run.
        chance: (..., D) chance level of the raw reward.
        half_life: groups after which what was seen of a domain counts half.
        pooling: groups that the family's mean weighs in a domain's estimate.
    """

    family: Ints
    chance: Floats
    half_life: float = 32.0
    pooling: float = 4.0
    visits: Floats = field(init=False)
    groups: Floats = field(init=False)
    spread: Floats = field(init=False)
    regret: Floats = field(init=False)
    cost: Floats = field(init=False)
    missing: Floats = field(init=False)
    fast: Floats = field(init=False)
    slow: Floats = field(init=False)
    level: Floats = field(init=False)
    level_variance: Floats = field(init=False)
    rate: Floats = field(init=False)
    rate_variance: Floats = field(init=False)
    covariance: Floats = field(init=False)
    pending: Floats = field(init=False)
    gap: Floats = field(init=False)
    peak: Floats = field(init=False)
    _slots: Ints = field(init=False)
    _num_slots: int = field(init=False)

    def __post_init__(self) -> None:
        shape = self.family.shape
        for name in STATE:
            setattr(self, name, np.zeros(shape))
        self.level = np.full(shape, 0.5)
        self.level_variance = np.full(shape, 0.25)
        self.rate_variance = np.full(shape, _RATE_SD**2)
        self.peak = np.full(shape, -1.0)
        # One slot a (world, family), so that one bincount sums over all of them.
        width = int(self.family.max(initial=0)) + 1
        num_runs = self.family.size // max(1, shape[-1])
        offsets = np.arange(num_runs).reshape((*shape[:-1], 1)) * width
        self._slots = (self.family + offsets).ravel()
        self._num_slots = num_runs * width

    def update(self, counts: BatchCounts) -> None:
        """Take in one batch. What it trains shows in later batches only."""
        fade = 0.5 ** (counts.groups / self.half_life)
        self.visits += counts.groups
        self.groups = self.groups * fade + counts.groups
        self.spread = self.spread * fade + counts.spread_sum
        self.regret = self.regret * fade + counts.regret_sum
        self.cost = self.cost * fade + counts.cost_sum
        self.missing = self.missing * fade + (counts.groups - counts.scored_groups)
        is_seen = counts.scored > 0
        score = np.where(is_seen, counts.score_sum / np.maximum(counts.scored, 1.0), self.level)
        self._follow(counts, score, is_seen)
        self._filter(counts, score, is_seen)

    def _follow(self, counts: BatchCounts, score: Floats, is_seen: NDArray[np.bool_]) -> None:
        """Two running means of the score, a fast and a slow one, started at the first score."""
        is_first = is_seen & (self.peak < 0)
        self.fast = np.where(is_first, score, self.fast)
        self.slow = np.where(is_first, score, self.slow)
        for mean, life in ((self.fast, self.half_life / 4), (self.slow, self.half_life)):
            gain = 1.0 - 0.5 ** (counts.scored_groups / life)
            mean += np.where(is_seen, gain * (score - mean), 0.0)

    def _filter(self, counts: BatchCounts, score: Floats, is_seen: NDArray[np.bool_]) -> None:
        """A Kalman filter of (level, rate): the level moves by rate times exposure.

        Exposure is the spread of the trained groups times the slope of the curve where the domain
        stands, so that the rate is a property of the domain and not of its level.
        """
        self.gap += 1.0
        step = np.where(is_seen, self.pending, 0.0)
        walk = np.where(is_seen, self.gap * _LEVEL_WALK, 0.0)
        level = self.level + self.rate * step
        variance = (
            self.level_variance + 2.0 * step * self.covariance + step**2 * self.rate_variance + walk
        )
        covariance = self.covariance + step * self.rate_variance
        rate_variance = self.rate_variance * 2.0 ** (counts.scored_groups / _RATE_LIFE)
        total = variance + self._noise(counts, level)
        wrong = np.where(is_seen, score - level, 0.0)
        gain_level = np.where(is_seen, variance / total, 0.0)
        gain_rate = np.where(is_seen, covariance / total, 0.0)
        self.level = np.where(is_seen, level + gain_level * wrong, self.level)
        self.rate = self.rate + gain_rate * wrong
        self.level_variance = np.where(is_seen, (1.0 - gain_level) * variance, self.level_variance)
        self.rate_variance = rate_variance - gain_rate * covariance
        self.covariance = np.where(is_seen, (1.0 - gain_level) * covariance, self.covariance)
        self.gap = np.where(is_seen, 0.0, self.gap)
        self.pending = np.where(is_seen, 0.0, self.pending) + counts.spread_sum * self.slope(
            self.level
        )
        surely = self.level - np.sqrt(self.level_variance)
        self.peak = np.where(is_seen, np.maximum(self.peak, np.maximum(surely, 0.0)), self.peak)

    def _noise(self, counts: BatchCounts, level: Floats) -> Floats:
        """Variance of a batch's mean score: binomial, with samples of one task alike."""
        q = np.clip(level, 0.02, 0.98)
        each = (1.0 - q) * (q + self.chance / (1.0 - self.chance))
        groups = np.maximum(counts.scored_groups, 1.0)
        share = _BETWEEN_TASKS + (1.0 - _BETWEEN_TASKS) * groups / np.maximum(counts.scored, 1.0)
        return np.asarray(each * share / groups)

    # Estimates

    @staticmethod
    def slope(level: Floats) -> Floats:
        """Return how far a lesson moves the score at a level, relative to the best level."""
        q = np.clip(level, 0.02, 0.98)
        best = _RISE / (_RISE + _FALL)
        top = best**_RISE * (1.0 - best) ** _FALL
        return np.asarray(q**_RISE * (1.0 - q) ** _FALL / top)

    def is_known(self) -> NDArray[np.bool_]:
        """Return which domains have a scored sample."""
        return np.asarray(self.peak >= 0)

    def pooled(self, sums: Floats, prior: float) -> Floats:
        """Return ``sums`` per group, read through the family and the run.

        How many groups the family's mean weighs follows from how far domains of one family differ
        beyond noise, so that domains that are alike are not told apart by it; ``pooling`` is what
        is expected of that beforehand.

        Args:
            sums: faded sums over groups (``spread``, ``regret``).
            prior: what is expected before anything was seen.
        """
        run = (_all(sums) + prior) / (_all(self.groups) + 1.0)
        weight = 2.0 * self.pooling
        family = (self.by_family(sums) + weight * run) / (self.by_family(self.groups) + weight)
        own = sums / np.maximum(self.groups, 1e-9)
        between = self._between(
            self.groups / _GROUP_NOISE, own - family, _GROUP_NOISE / self.pooling
        )
        groups = _GROUP_NOISE / between
        return np.asarray((sums + groups * family) / (self.groups + groups))

    def pooled_level(self) -> Floats:
        """Return each domain's level, read through its family and the run as far as it is in
        doubt."""
        information = np.where(self.is_known(), 1.0 / self.level_variance, 0.0)
        run = (_all(information * self.level) + 0.5) / (_all(information) + 1.0)
        weight = 1.0 / _LEVEL_SPREAD
        family = (self.by_family(information * self.level) + weight * run) / (
            self.by_family(information) + weight
        )
        between = self._between(information, self.level - family, _LEVEL_SPREAD)
        precision = 1.0 / between
        return np.asarray(
            (information * self.level + precision * family) / (information + precision)
        )

    def _between(self, information: Floats, deviation: Floats, expected: float) -> Floats:
        """Return the variance between domains of one family, by moments: what deviations from the
        family's mean show beyond their noise."""
        seen = (information > 0).astype(np.float64)
        lost = seen / np.maximum(self.by_family(seen), 1.0)  # a family's mean costs one degree
        excess = _all(information * deviation**2) - _all(seen - lost)
        scale = _all(information * (1.0 - lost))
        weight = _ALIKE_DOMAINS / expected
        found = (excess + weight * expected) / (scale + weight)
        return np.asarray(np.maximum(found, _LEAST * expected))

    def mean_cost(self) -> Floats:
        """Return the cost of a group; what was not seen costs what its family or the run does.

        Groups of one domain differ in length: domains are told apart only as far as their means
        differ beyond that.
        """
        run = _all(self.cost) / np.maximum(_all(self.groups), 1e-9)
        run = np.where(run > 0, run, 1.0)
        weight = _FAMILY_COST
        family = (self.by_family(self.cost) + weight * run) / (self.by_family(self.groups) + weight)
        own = self.cost / np.maximum(self.groups, 1e-9)
        deviation = np.where(self.groups > 0, own / family - 1.0, 0.0)
        information = self.groups / _COST_NOISE
        precision = 1.0 / self._between(information, deviation, _COST_SPREAD)
        part = information / (information + precision)
        return np.asarray(family * (1.0 + part * deviation))

    def response(self) -> tuple[Floats, Floats]:
        """Return each domain's response to training over the run's mean: (mean, deviation).

        Empirical Bayes on what the filters learnt beyond their prior: the run's mean, then the
        family's shrunk towards it, then the domain's shrunk towards the family's. How far domains
        differ is itself estimated, so that domains that are alike are not told apart by noise.
        """
        information, own = self._learnt_rates()
        mean = self._run_rate(information, own, 0.0)
        spread = self._rate_spread(information, own, mean)
        mean = self._run_rate(information, own, (spread * mean) ** 2)
        within, between = _WITHIN * spread * mean, _BETWEEN * spread * mean
        weight = information / (1.0 + information * within**2)
        precision = 1.0 / between**2
        family = (self.by_family(weight * own) + precision * mean) / (
            self.by_family(weight) + precision
        )
        precision = 1.0 / within**2
        posterior = (information * own + precision * family) / (information + precision)
        deviation = 1.0 / np.sqrt(information + precision)
        return np.asarray(posterior / mean), np.asarray(deviation / mean)

    def run_rate(self) -> Floats:
        """Return the score that a unit of exposure adds, over the run (..., 1)."""
        return self._run_rate(*self._learnt_rates(), 0.0)

    def _learnt_rates(self) -> tuple[Floats, Floats]:
        """Return what the filters learnt of each domain's rate beyond their prior: (information,
        estimate)."""
        information = np.maximum(1.0 / self.rate_variance - 1.0 / _RATE_SD**2, 0.0)
        return information, self.rate / self.rate_variance / np.maximum(information, 1e-12)

    @staticmethod
    def _run_rate(information: Floats, own: Floats, variance: Floats | float) -> Floats:
        weight = information / (1.0 + information * variance)
        mean = _all(weight * own) / np.maximum(_all(weight), 1e-9)
        return np.asarray(np.maximum(mean, _SMALLEST_RATE))

    @staticmethod
    def _rate_spread(information: Floats, own: Floats, mean: Floats) -> Floats:
        """Return the standard deviation of true responses over their mean, by the moments of
        DerSimonian and Laird (1986), averaged with the prior's by the information there is."""
        total = np.maximum(_all(information), 1e-12)
        seen = (information > 0).astype(np.float64)
        excess = _all(information * (own - mean) ** 2) - (_all(seen) - 1.0)
        scale = np.maximum(total - _all(information**2) / total, 1e-12)
        relative = excess / scale / mean**2
        known = _all(information * mean**2)
        squared = (known * relative + _SPREAD_WEIGHT * _SPREAD**2) / (known + _SPREAD_WEIGHT)
        return np.asarray(np.sqrt(np.clip(squared, *_SPREAD_BOUNDS)))

    def by_family(self, values: Floats) -> Floats:
        """Return the family's sum of ``values`` at each of its domains."""
        sums = np.bincount(self._slots, values.ravel(), self._num_slots)
        return np.asarray(sums[self._slots].reshape(values.shape))

    # State

    def state(self) -> dict[str, list[float]]:
        """Return the running numbers by name, each a list over domains (no leading axis)."""
        return {name: getattr(self, name).tolist() for name in STATE}

    def load(self, state: Mapping[str, Floats]) -> None:
        """Set the running numbers; what is missing keeps its value."""
        for name in STATE:
            if name in state:
                setattr(self, name, np.array(state[name], dtype=np.float64))


STATE = (
    "visits",
    "groups",
    "spread",
    "regret",
    "cost",
    "missing",
    "fast",
    "slow",
    "level",
    "level_variance",
    "rate",
    "rate_variance",
    "covariance",
    "pending",
    "gap",
    "peak",
)


def _all(values: Floats) -> Floats:
    return np.asarray(values.sum(axis=-1, keepdims=True))
