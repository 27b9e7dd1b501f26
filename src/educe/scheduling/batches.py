"""How many prompts a rollout batch holds: so many, or as many as are predicted to fill its tokens.

A group's tokens are its prompt, once, and all its completions. They are predicted from the groups
that were seen, by domain; nothing is measured by a clock, so the same run plans the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON, TaskRequest

# What was seen of a domain counts half after so many of its groups.
_HALF_LIFE = 16.0
# Of its limit, what a group is taken to fill before any was seen; weighs as much as one group.
_FIRST_PART = 0.5


def limit_of(request: TaskRequest) -> int:
    """Return the completion tokens that a group may have at most."""
    return request.num_samples * request.max_turns * request.max_completion_tokens


@dataclass(slots=True)
class TokenForecast:
    """Tokens that the next group of a domain will have.

    A domain is its mean over recent groups. One that was hardly seen is read through the run: the
    part of its limit that groups of the run fill.
    """

    # By domain: faded sums of tokens, of limits and of groups.
    _seen: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def observe(self, groups: Iterable[tuple[str, int, int]]) -> None:
        """Take in a batch's groups (domain, tokens, limit), in the order of issue."""
        fade = 0.5 ** (1.0 / _HALF_LIFE)
        for domain, tokens, limit in groups:
            used, limits, count = self._seen.get(domain, (0.0, 0.0, 0.0))
            self._seen[domain] = (fade * used + tokens, fade * limits + limit, fade * count + 1.0)

    def tokens(self, domain: str, limit: int) -> float:
        """Return what a group of a domain is predicted to have; more than 0.

        Args:
            limit: completion tokens that it may have.
        """
        used = sum(s[0] for s in self._seen.values()) + _FIRST_PART * limit
        limits = sum(s[1] for s in self._seen.values()) + limit
        own, _, count = self._seen.get(domain, (0.0, 0.0, 0.0))
        return max(1.0, (own + limit * used / max(1.0, limits)) / (count + 1.0))

    def state(self) -> JSON:
        return {name: list(sums) for name, sums in sorted(self._seen.items())}

    def restore(self, state: Mapping[str, JSON]) -> None:
        """Continue from a saved state; what is known of domains that left still tells of the
        run."""
        self._seen = {n: (float(a), float(b), float(c)) for n, (a, b, c) in state.items()}


@dataclass(slots=True)
class BatchSize:
    """Says when a rollout batch has enough orders.

    Attributes:
        prompts: orders at most.
        tokens: that the batch is to hold; 0 always takes ``prompts`` orders.
        least: orders at least, whatever their tokens.
    """

    prompts: int
    tokens: int = 0
    least: int = 1
    forecast: TokenForecast = field(default_factory=TokenForecast)

    def is_full(self, orders: Sequence[TaskRequest]) -> bool:
        """Return whether the batch ends here: at the order that reaches its tokens."""
        if len(orders) >= self.prompts:
            return True
        if not self.tokens or len(orders) < self.least:
            return False
        return self.planned(orders) >= self.tokens

    def planned(self, orders: Iterable[TaskRequest]) -> float:
        """Return the predicted tokens of some orders' groups."""
        return sum(self.forecast.tokens(o.domain, limit_of(o)) for o in orders)
