"""Which cached segments should lie side by side: pure arithmetic, no torch.

A decode step reads every segment that its rows refer to. Segments on one shelf are read by one
call, padded to the longest and to the one with most readers; a shelf is read whole. So few shelves
save calls, and shelves of what is really read save padding. Copying a segment to another shelf
costs about what reading it costs in two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CALL = 1000.0
"""One attention call with its gathers, in tokens read by one row.

Measured on two CPU cores: 0.1 ms a call and layer, 0.1 us a token (docs/design/0004)."""
READER = 0.2
"""What each further row that reads a token adds to its cost."""
COPY = 1.7
"""Copying a token to another shelf, in steps of reading it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A shelf as it is: its segments' lengths, and the readers of those that rows refer to.

    ``readers`` is by place; places nobody reads are missing.
    """

    lengths: Sequence[int]
    readers: Mapping[int, int]

    @property
    def cost(self) -> float:
        """What one step pays for this shelf."""
        return cost_of(len(self.lengths), max(self.lengths), max(self.readers.values()))


@dataclass(frozen=True, slots=True)
class Plan:
    """New shelves of (shelf, place) pairs, what a step saves by them and what copying costs."""

    shelves: Sequence[Sequence[tuple[int, int]]]
    saving: float
    copying: float


def cost_of(num_segments: int, longest: int, readers: int) -> float:
    """Return what one step pays for a shelf, in tokens read by one row."""
    return CALL + num_segments * longest * (1.0 + READER * (readers - 1))


def best_plan(shelves: Sequence[Placed]) -> Plan:
    """Return the rearrangement that saves most for what it copies; no shelves if none saves.

    Either everything is arranged anew, or everything but the largest shelf, which in a steady
    stream of new rows stays where it is.
    """
    everything = list(range(len(shelves)))
    plans = [_plan(shelves, everything)]
    if len(shelves) > 1:
        largest = max(everything, key=lambda s: shelves[s].cost)
        plans.append(_plan(shelves, [s for s in everything if s != largest]))
    return max(plans, key=lambda p: p.saving / p.copying if p.saving > 0 else 0.0)


def _plan(shelves: Sequence[Placed], pooled: Sequence[int]) -> Plan:
    members = [
        (shelves[s].lengths[place], readers, (s, place))
        for s in pooled
        for place, readers in shelves[s].readers.items()
    ]
    # Many readers apart from few, then by length: what is padded to what differs little.
    members.sort(key=lambda m: (m[1] <= _FEW, -m[0]))
    groups: list[list[tuple[int, int, tuple[int, int]]]] = []
    waste = 0.0
    for member in members:
        if groups:
            longest, readers, _ = groups[-1][0]
            waste += (longest - member[0]) * (1.0 + READER * (readers - 1))
        if not groups or waste > CALL or (groups[-1][0][1] <= _FEW) != (member[1] <= _FEW):
            groups.append([])
            waste = 0.0
        groups[-1].append(member)
    cost = sum(cost_of(len(g), g[0][0], max(m[1] for m in g)) for g in groups)
    copied = sum(len(g) * g[0][0] for g in groups)
    now = sum(shelves[s].cost for s in pooled)
    return Plan([[m[2] for m in g] for g in groups], now - cost, max(1.0, COPY * copied))


_FEW = 4
