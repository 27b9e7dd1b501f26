"""What the mixture is told of a finished group; a batch of groups as counts by domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from educe.scheduling.evidence import BatchCounts


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One finished group.

    Attributes:
        order: the request's id; results are used in this order, whenever they arrived.
        index: of the task in its split.
        rewards: raw, in sample order; None is unscored.
        tokens: computed for the group: its prompt once, every completion.
    """

    order: int
    domain: str
    index: int
    rewards: tuple[float | None, ...]
    tokens: int


@dataclass(slots=True)
class RewardRange:
    """The range of a domain's rewards: [0, 1], or wider once others were seen."""

    low: float = 0.0
    high: float = 1.0

    def widen(self, rewards: Sequence[float]) -> None:
        self.low = min(self.low, *rewards)
        self.high = max(self.high, *rewards)

    def unit(self, reward: float) -> float:
        return (reward - self.low) / (self.high - self.low)


def count_results(
    results: Iterable[GroupResult],
    places: Mapping[str, int],
    chance: Mapping[str, float],
    ranges: dict[str, RewardRange],
    seconds: Mapping[str, float] | None = None,
) -> BatchCounts:
    """Return a batch's sums by domain, the same for any order of arrival.

    Args:
        places: column of each domain; results of others are left out.
        chance: chance level by domain.
        ranges: by domain; widened by what is seen.
        seconds: measured cost of the batch by domain; None counts tokens.
    """
    counts = BatchCounts.zeros((len(places),))
    for result in sorted(results, key=lambda r: r.order):
        at = places.get(result.domain)
        if at is None:
            continue
        counts.groups[at] += 1
        if seconds is None:
            counts.cost_sum[at] += result.tokens
        scored = [r for r in result.rewards if r is not None]
        if scored:
            own = ranges.setdefault(result.domain, RewardRange())
            own.widen(scored)
            _count_scored(counts, at, [own.unit(r) for r in scored], chance[result.domain])
    for name, cost in sorted((seconds or {}).items()):
        if name in places:
            counts.cost_sum[places[name]] += cost
    return counts


def _count_scored(counts: BatchCounts, at: int, rewards: list[float], chance: float) -> None:
    room = 1.0 - chance
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((r - mean) ** 2 for r in rewards) / len(rewards)
    counts.scored_groups[at] += 1
    counts.scored[at] += len(rewards)
    counts.score_sum[at] += len(rewards) * (mean - chance) / room
    counts.spread_sum[at] += min(1.0, 2.0 * math.sqrt(variance))
    counts.regret_sum[at] += min(1.0, (max(rewards) - mean) / room)


def quantise_cost(seconds: float) -> float:
    """Return a measured cost on a grid of quarter powers of two (within 9 %).

    Measured times differ in every run; what the controller is told is coarse, so that equal
    conditions give equal decisions far more often.
    """
    if not math.isfinite(seconds) or seconds <= 0:
        return 0.0
    return float(2.0 ** (round(4.0 * math.log2(seconds)) / 4.0))
