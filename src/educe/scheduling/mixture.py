"""Which domain comes next: static weights, met exactly at every prefix.

The next prompt goes to the domain that is furthest behind its share (Hamilton's largest deficit),
so shares hold over any stretch of the run, no draw is needed, and the state is one counter each.
"""

from __future__ import annotations

from collections.abc import Mapping

from educe.core.errors import DomainError
from educe.core.seeds import derive
from educe.core.types import JSON


class StaticMixture:
    """Picks domains in proportion to fixed weights.

    Args:
        weights: by domain, ``>= 0``; zero means never.
        seed: breaks ties, so that runs with different seeds start at different domains.

    Raises:
        DomainError: when no weight is positive.
    """

    def __init__(self, weights: Mapping[str, float], seed: int = 0) -> None:
        self._shares = {name: w for name, w in weights.items() if w > 0}
        if not self._shares:
            raise DomainError("no domain has a positive weight; give at least one")
        total = sum(self._shares.values())
        self._shares = {name: w / total for name, w in self._shares.items()}
        self._order = sorted(self._shares, key=lambda name: derive("mixture", seed, name))
        self._issued = dict.fromkeys(self._order, 0)

    @property
    def shares(self) -> Mapping[str, float]:
        return self._shares

    def next_domain(self) -> str:
        """Return the domain furthest behind its share, and count it."""
        total = sum(self._issued.values()) + 1
        name = max(self._order, key=lambda n: self._shares[n] * total - self._issued[n])
        self._issued[name] += 1
        return name

    def state(self) -> JSON:
        return dict(self._issued)

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a saved state; domains added or removed since then are tolerated.

        A domain that is new starts level with its share, not with the whole backlog.
        """
        known = {n: int(state[n]) for n in self._order if n in state}
        total = sum(known.values())
        covered = sum(self._shares[n] for n in known)
        for name in self._order:
            if name not in known and covered:
                known[name] = round(total * self._shares[name] / covered)
        self._issued = {n: known.get(n, 0) for n in self._order}
