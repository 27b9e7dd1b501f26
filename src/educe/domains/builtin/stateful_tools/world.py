"""A world: a section of state, the tools that act on it, and makers of requests."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.domains.builtin.stateful_tools.tools import Section, Tool

Call = tuple[str, dict[str, JSON]]


@dataclass(frozen=True, slots=True)
class Request:
    """Something to be done: its wording and the calls of a perfect attempt, in order."""

    text: str
    calls: tuple[Call, ...]


Maker = Callable[[random.Random, Section], Request]


@dataclass(frozen=True, slots=True)
class World:
    """One world.

    Attributes:
        draw: makes an initial section of state (nested dicts of strings, numbers and booleans).
        simple: makers of requests that one call fulfils.
        lookups: makers of requests whose right call depends on what a tool first tells.
        view: what of a section counts when it is compared with the goal (ids made up on the way
            do not).
    """

    name: str
    tools: tuple[Tool, ...]
    draw: Callable[[random.Random], Section]
    simple: tuple[Maker, ...]
    lookups: tuple[Maker, ...]
    view: Callable[[Section], Section] = dict


def apply_calls(
    worlds: Mapping[str, World], state: Mapping[str, Section], calls: Sequence[Call]
) -> dict[str, Section]:
    """Return the state after calls that must succeed (those of a perfect attempt)."""
    after = copy.deepcopy(dict(state))
    for name, arguments in calls:
        section, tool = find_tool(worlds, name)
        tool.run(after[section], arguments)
    return after


def find_tool(worlds: Mapping[str, World], name: str) -> tuple[str, Tool]:
    """Return the section and the tool of that name; raises KeyError."""
    for world in worlds.values():
        for tool in world.tools:
            if tool.name == name:
                return world.name, tool
    raise KeyError(name)


def pick(rng: random.Random, *texts: str) -> str:
    """Return one of several wordings."""
    return rng.choice(texts)
