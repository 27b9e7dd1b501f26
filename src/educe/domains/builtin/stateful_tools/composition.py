"""From worlds to tasks: several requests on an evolving state, and the tools that are listed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.domains.builtin.stateful_tools.bank import BANK
from educe.domains.builtin.stateful_tools.calendar import CALENDAR
from educe.domains.builtin.stateful_tools.files import FILES
from educe.domains.builtin.stateful_tools.home import HOME
from educe.domains.builtin.stateful_tools.notes import NOTES
from educe.domains.builtin.stateful_tools.stock import STOCK
from educe.domains.builtin.stateful_tools.tools import Section, Tool
from educe.domains.builtin.stateful_tools.world import (
    Call,
    Maker,
    Request,
    World,
    apply_calls,
    find_tool,
)

WORLDS: dict[str, World] = {w.name: w for w in (NOTES, HOME, BANK, STOCK, FILES, CALENDAR)}
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a level asks for.

    Attributes:
        num_simple: requests fulfilled by one call.
        num_lookups: requests whose call depends on a tool's reply.
        num_tools: tools listed of the world itself (0: all of them).
        num_other_worlds: worlds whose tools are listed too, as distractors or (in ``mixed``) for
            requests of their own.
        max_turns: assistant turns, with room for two mistakes.
    """

    num_simple: int
    num_lookups: int
    num_tools: int
    num_other_worlds: int
    max_turns: int


PLANS: dict[str, Plan] = {
    "tiny": Plan(1, 0, 3, 0, 3),
    "easy": Plan(2, 0, 4, 0, 5),
    "medium": Plan(0, 1, 0, 0, 5),
    "hard": Plan(1, 2, 0, 1, 8),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A drawn task, before its split is known. ``key`` names what is to be done, not the state."""

    request: str
    state: dict[str, Section]
    calls: tuple[Call, ...]
    goal: dict[str, Section]
    tools: tuple[Tool, ...]

    @property
    def key(self) -> str:
        return json.dumps(self.calls, sort_keys=True)


def draw_scenario(world_name: str, level: str, rng: random.Random) -> Scenario:
    """Draw the state, requests that each change it (and all together too), and the tools."""
    while True:
        scenario = _draw_once(world_name, level, rng)
        if views(scenario.goal) != views(scenario.state):
            return scenario


def _draw_once(world_name: str, level: str, rng: random.Random) -> Scenario:
    plan = PLANS[level]
    names = [rng.choice(sorted(WORLDS))] if world_name == MIXED else [world_name]
    others = sorted(set(WORLDS) - set(names))
    num_others = max(plan.num_other_worlds, int(world_name == MIXED))
    names += rng.sample(others, num_others)
    active = names if world_name == MIXED else names[:1]
    worlds = {name: WORLDS[name] for name in names}
    state = {name: world.draw(rng) for name, world in worlds.items()}
    kinds = ["simple"] * plan.num_simple + ["lookup"] * plan.num_lookups
    if world_name == MIXED and len(kinds) < 2:
        kinds.append("simple")
    rng.shuffle(kinds)
    requests: list[Request] = []
    now: Mapping[str, Section] = state
    for position, kind in enumerate(kinds):
        world = worlds[active[position % len(active)]]
        request, now = _changing_request(world, kind, worlds, now, rng)
        requests.append(request)
    calls = tuple(call for request in requests for call in request.calls)
    return Scenario(
        request=_join([r.text for r in requests]),
        state=state,
        calls=calls,
        goal=dict(now),
        tools=_listed(worlds, calls, plan, rng),
    )


def views(state: Mapping[str, Section]) -> dict[str, JSON]:
    """Return what of a state counts when it is compared with a goal."""
    return {name: WORLDS[name].view(section) for name, section in state.items()}


def _changing_request(
    world: World,
    kind: str,
    worlds: Mapping[str, World],
    now: Mapping[str, Section],
    rng: random.Random,
) -> tuple[Request, Mapping[str, Section]]:
    makers: Sequence[Maker] = world.simple if kind == "simple" else world.lookups
    while True:
        section = now[world.name]
        # Makers may need a pair of entries; a world that has run empty is refilled by "add" ones.
        request = rng.choice(makers if len(section) > 1 else world.simple[:1])(rng, section)
        after = apply_calls(worlds, now, request.calls)
        if views(after) != views(now):
            return request, after


def _join(texts: Sequence[str]) -> str:
    first, *rest = texts
    return ". ".join([first, *(f"Then {t[0].lower()}{t[1:]}" for t in rest)]) + "."


def _listed(
    worlds: Mapping[str, World], calls: Sequence[Call], plan: Plan, rng: random.Random
) -> tuple[Tool, ...]:
    """The tools the calls need plus distractors, in random order."""
    needed = {name for name, _ in calls}
    everything = [tool for world in worlds.values() for tool in world.tools]
    spare = [tool for tool in everything if tool.name not in needed]
    if plan.num_tools:
        spare = rng.sample(spare, max(1, plan.num_tools - len(needed)))
    listed = [find_tool(worlds, name)[1] for name in sorted(needed)] + spare
    rng.shuffle(listed)
    return tuple(listed)
