"""Tools that act on a state, over several turns: notes, home, bank, stock, files and calendar.

``tools/WORLD/LEVEL``; ``tools/mixed/LEVEL`` needs the tools of two worlds. Tools answer mistakes
with an error message and the episode goes on; the score looks at the final state only.
"""

from __future__ import annotations

import functools

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import Domain, DomainSpec
from educe.domains.builtin.stateful_tools.composition import MIXED, PLANS, WORLDS
from educe.domains.builtin.stateful_tools.domain import StatefulTools
from educe.domains.builtin.stateful_tools.tools import describe_tools

__all__ = ["create", "describe_tools", "specs"]

_TOKENS_A_TURN = 64
# Upper bounds of what the best fixed turn scored in 200 tasks, sprays of calls included.
_FLOORS = {"tiny": 0.05, "easy": 0.02, "medium": 0.04, "hard": 0.02}


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains, by world and level."""
    return tuple(_spec(world, level) for world in (*WORLDS, MIXED) for level in PLANS)


def create(name: str, *, partial: bool = False) -> Domain:
    """Return a domain.

    Args:
        name: ``tools/WORLD/LEVEL``.
        partial: pay the share of the wanted changes when nothing else was changed.

    Raises:
        DomainError: for an unknown name.
    """
    known = {spec.name: spec for spec in specs()}
    if name not in known:
        raise DomainError(f"there is no domain {name!r}.{did_you_mean(name, known)}")
    return StatefulTools(known[name], partial=partial)


def _spec(world: str, level: str) -> DomainSpec:
    where = "two worlds" if world == MIXED else world
    return DomainSpec(
        name=f"tools/{world}/{level}",
        family=f"tools/{world}",
        kind="tools",
        description=f"Call tools over several turns to change a state as asked: {where}.",
        floor=_FLOORS[level],
        max_turns=PLANS[level].max_turns + int(world == MIXED and level != "hard"),
        max_completion_tokens=_TOKENS_A_TURN,
        tags=("tools", "multi-turn", world, level),
    )
