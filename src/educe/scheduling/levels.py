"""Difficulty: which level of a family is trained most, moved by the success at it.

Families whose levels are in the run (``rg/gcd/tiny``, ``rg/gcd/easy`` ...) form a ladder. The
ladder keeps the weight that its levels have together; most of it goes to the active level, a part
to the ones beside it (the next is probed, the last is kept), a little to the rest. The active level
moves up when success there is surely above the band, down when it is surely below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON

LEVELS = ("tiny", "easy", "medium", "hard")

_BESIDE = 0.15
_ELSEWHERE = 0.02
_MIN_GROUPS = 4.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a domain: chance-corrected success, its deviation, groups seen so far."""

    success: float
    deviation: float
    groups: float


@dataclass(slots=True)
class LevelControl:
    """Moves each ladder's active level.

    Args:
        ladders: family: its domains, easiest first (see ``ladders_of``).
        weights: by domain, as the recipe gives them.
        low, high: the band in which success at the active level is kept.
    """

    ladders: Mapping[str, Sequence[str]]
    weights: Mapping[str, float]
    low: float = 0.2
    high: float = 0.8
    active: dict[str, int] = field(init=False)
    _seen: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high <= 1.0:
            raise ValueError(f"a band needs 0 <= low < high <= 1, got {self.low} and {self.high}")
        self.active = dict.fromkeys(self.ladders, 0)
        self._seen = dict.fromkeys(self.ladders, 0.0)

    def move(self, standings: Mapping[str, Standing]) -> dict[str, tuple[str, str]]:
        """Move active levels by what is known; return family: (from, to) of those that moved."""
        moved = {}
        for family, rungs in self.ladders.items():
            at = self.active[family]
            now = standings[rungs[at]]
            if now.groups - self._seen[family] < _MIN_GROUPS:
                continue
            if now.success - now.deviation > self.high and at + 1 < len(rungs):
                step = 1
            elif now.success + now.deviation < self.low and at > 0:
                step = -1
            else:
                continue
            self.active[family] = at + step
            self._seen[family] = standings[rungs[at + step]].groups
            moved[family] = (rungs[at], rungs[at + step])
        return moved

    def current_weights(self) -> dict[str, float]:
        """Return the weights of all domains as the active levels have them."""
        weights = dict(self.weights)
        for family, rungs in self.ladders.items():
            total = sum(self.weights[name] for name in rungs)
            parts = [self._part(abs(i - self.active[family])) for i in range(len(rungs))]
            for name, part in zip(rungs, parts, strict=True):
                weights[name] = total * part / sum(parts)
        return weights

    @staticmethod
    def _part(distance: int) -> float:
        return {0: 1.0 - 2.0 * _BESIDE, 1: _BESIDE}.get(distance, _ELSEWHERE)

    def state(self) -> JSON:
        return {f: [self.active[f], self._seen[f]] for f in self.ladders}

    def restore(self, state: Mapping[str, JSON]) -> None:
        """Continue from a saved state; ladders that are new or gone are tolerated."""
        for family, rungs in self.ladders.items():
            if family in state:
                active, seen = state[family]
                self.active[family] = min(int(active), len(rungs) - 1)
                self._seen[family] = float(seen)


def ladders_of(families: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the families with two or more known levels in the run: domains, easiest first.

    Args:
        families: domain name: family.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(families):
        if name.rpartition("/")[2] in LEVELS:
            found.setdefault(families[name], []).append(name)
    return {
        family: tuple(sorted(names, key=lambda n: LEVELS.index(n.rpartition("/")[2])))
        for family, names in sorted(found.items())
        if len(names) > 1
    }
