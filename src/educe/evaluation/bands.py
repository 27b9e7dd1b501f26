"""The gain by difficulty: what domains gained that were hard, middling or easy at the start.

A domain that was lucky before is banded too high and falls back afterwards, whatever training did.
So the tasks of a domain are halved: each half is banded by the start's score on the *other* half,
and its gain is measured on itself. Levels (``tiny`` … ``hard``) are in the names and need none of
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from educe.core.types import JSON
from educe.evaluation.records import EvalResult, item_scores
from educe.evaluation.statistics import (
    Estimate,
    PairedDifference,
    macro_difference,
    paired_difference,
)

# Upper ends of the bands of the chance-corrected score at the start.
_ENDS = (0.1, 0.4, 0.7, 1.0)
LEVELS = ("tiny", "easy", "medium", "hard")
_FEWEST_TASKS = 4


@dataclass(frozen=True, slots=True)
class BandGain:
    """One band.

    Attributes:
        band: ``10 to 40 % at the start``, or a level's name.
        num_domains: domains with tasks in it; one near an end can be in two bands.
        before: mean score at the start, of the tasks that the gain is measured on.
        difference: paired, every domain's half (level: every domain) with the same weight.
    """

    band: str
    num_domains: int
    num_tasks: int
    before: float
    difference: Estimate

    def to_json(self) -> dict[str, JSON]:
        return {
            "band": self.band,
            "num_domains": self.num_domains,
            "num_tasks": self.num_tasks,
            "before": self.before,
            "difference": self.difference.to_json(),
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """Tasks of a domain that are in one band."""

    band: int | str
    domain: str
    num_tasks: int
    before: float
    difference: PairedDifference


def gain_by_difficulty(
    before: EvalResult, after: EvalResult, *, level: float = 0.95
) -> tuple[BandGain, ...]:
    """Return the gain by band of the start's score, then by level where there are several.

    Domains with fewer than four common scored tasks are in no band of scores.
    """
    names = sorted(set(before.domains) & set(after.domains))
    domains = [_common(before, after, name) for name in names]
    parts = [part for d in domains for part in d.halves(level)]
    found = [
        _gain(_label(band), [p for p in parts if p.band == band]) for band in range(len(_ENDS))
    ]
    own = [part for d in domains for part in d.whole(level)]
    present = [at for at in LEVELS if any(p.band == at for p in own)]
    if len(present) > 1:
        found += [_gain(at, [p for p in own if p.band == at]) for at in present]
    return tuple(gain for gain in found if gain is not None)


def _label(band: int) -> str:
    low = 0.0 if band == 0 else _ENDS[band - 1]
    return f"{100 * low:.0f} to {100 * _ENDS[band]:.0f} % at the start"


def _gain(band: str, parts: Sequence[_Part]) -> BandGain | None:
    if not parts:
        return None
    return BandGain(
        band,
        len({p.domain for p in parts}),
        sum(p.num_tasks for p in parts),
        fmean(p.before for p in parts),
        macro_difference([p.difference for p in parts]),
    )


@dataclass(frozen=True, slots=True)
class _Domain:
    """The tasks of a domain that have scores on both sides: mean scores and contents."""

    name: str
    floor: float
    before: tuple[float, ...]
    after: tuple[float, ...]
    clusters: tuple[str, ...]

    def halves(self, level: float) -> list[_Part]:
        if len(self.before) < _FEWEST_TASKS:
            return []
        return [
            self._part(self._band(1 - start), range(start, len(self.before), 2), level)
            for start in (0, 1)
        ]

    def whole(self, level: float) -> list[_Part]:
        if not self.before:
            return []
        return [self._part(self.name.rpartition("/")[2], range(len(self.before)), level)]

    def _band(self, start: int) -> int:
        """The band of every second task from ``start`` on."""
        mean = (fmean(self.before[start::2]) - self.floor) / (1.0 - self.floor)
        return next((i for i, end in enumerate(_ENDS) if mean < end), len(_ENDS) - 1)

    def _part(self, band: int | str, at: Sequence[int], level: float) -> _Part:
        before, after = ([side[i] for i in at] for side in (self.before, self.after))
        found = paired_difference(
            np.array(before), np.array(after), [self.clusters[i] for i in at], level=level
        )
        return _Part(band, self.name, len(before), fmean(before), found)


def _common(before: EvalResult, after: EvalResult, name: str) -> _Domain:
    first, second = (item_scores(side.rows_in(name)) for side in (before, after))
    places = [{index: i for i, index in enumerate(s.indices)} for s in (first, second)]
    indices = sorted(set(places[0]) & set(places[1]))
    return _Domain(
        name,
        min(before.floors.get(name, 0.0), 0.99),
        tuple(fmean(first.samples[places[0][i]]) for i in indices),
        tuple(fmean(second.samples[places[1][i]]) for i in indices),
        tuple(first.clusters[places[0][i]] for i in indices),
    )
