"""Growing lengths: domains with long prompts wait until a limit has reached them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NEVER_ZERO = 1e-9


@dataclass(slots=True)
class LengthRamp:
    """The limit grows by the same factor each rollout batch, from ``first`` to the longest domain.

    Args:
        lengths: typical prompt tokens by domain.
        first: the limit of the first batch, tokens.
        steps: batches until all domains take part; 0 lets them at once.
        early: part of its weight that a domain has before its turn.
        num_batches: that are over.
    """

    lengths: Mapping[str, int]
    first: int
    steps: int
    early: float = 0.05
    num_batches: int = 0

    @property
    def limit(self) -> float:
        """The longest prompt that takes part now; never less than the shortest domain's."""
        longest = max(self.lengths.values(), default=0)
        if self.num_batches >= self.steps or longest <= self.first:
            return float(max(longest, self.first))
        done = self.num_batches / self.steps
        grown = float(self.first * (longest / self.first) ** done)
        return max(grown, float(min(self.lengths.values())))

    def factors(self) -> dict[str, float]:
        """Return what each domain's weight is multiplied by; never quite 0, since a domain that
        waits must be able to come back."""
        limit = self.limit
        early = max(self.early, _NEVER_ZERO)
        return {n: 1.0 if length <= limit else early for n, length in self.lengths.items()}
