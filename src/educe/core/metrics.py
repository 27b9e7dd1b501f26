"""Mergeable metrics: sums and maxima that add up over micro-batches, ranks and processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Means as (sum, count) and maxima, by name; merging is exact up to rounding."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def mean(self, name: str, total: float, count: float = 1.0) -> None:
        """Add ``total`` over ``count`` items to the mean called ``name``."""
        self.sums[name] = self.sums.get(name, 0.0) + total
        self.counts[name] = self.counts.get(name, 0.0) + count

    def maximum(self, name: str, value: float) -> None:
        self.maxima[name] = max(self.maxima.get(name, value), value)

    def merge(self, other: Tally) -> None:
        for name, total in other.sums.items():
            self.mean(name, total, other.counts[name])
        for name, value in other.maxima.items():
            self.maximum(name, value)

    def without(self, *names: str) -> Tally:
        """Return a tally without the means of these names, overall and of every domain."""
        kept = [n for n in self.sums if n.rpartition("/")[2] not in names]
        return Tally(
            {n: self.sums[n] for n in kept}, {n: self.counts[n] for n in kept}, dict(self.maxima)
        )

    def values(self) -> dict[str, float]:
        """Return name -> mean or maximum; a mean over nothing is left out."""
        means = {n: s / self.counts[n] for n, s in self.sums.items() if self.counts[n]}
        return {**means, **self.maxima}

    def to_json(self) -> dict[str, dict[str, float]]:
        return {"sums": self.sums, "counts": self.counts, "maxima": self.maxima}

    @staticmethod
    def from_json(raw: Mapping[str, Mapping[str, float]]) -> Tally:
        return Tally(dict(raw["sums"]), dict(raw["counts"]), dict(raw["maxima"]))
