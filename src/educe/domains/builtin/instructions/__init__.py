"""Verifiable instructions: write a text that keeps 1 to 4 checkable rules at once.

Domains are called ``instructions/N-constraints/SET``: ``tiny`` (a handful of easy rules and very
short texts), one set for each category of rules, and ``mixed``. Every task names words that the
text must use and limits its length, so no constant text scores; its demonstration is written by
rule and verified when the task is made.
"""

from __future__ import annotations

import functools
from typing import Any

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import DomainSpec
from educe.domains.builtin.instructions.constraints import CATEGORIES, KINDS
from educe.domains.builtin.instructions.domain import InstructionDomain, Level

_TINY = (
    "lowercase",
    "uppercase",
    "start-word",
    "question",
    "exclamations",
    "no-full-stops",
    "end-word",
    "quoted",
    "include-number",
    "words-at-most",
    "sentences",
)
# A text that uses its words and ignores the rest would often keep rules such as 'no commas'; a
# constant text would have to guess the words first.
_FLOOR = 0.03


def _levels() -> dict[str, tuple[Level, str]]:
    levels: dict[str, tuple[Level, str]] = {
        "instructions/1-constraints/tiny": (Level(1, _TINY, 1, 8), "one easy rule, short texts"),
        "instructions/2-constraints/tiny": (Level(2, _TINY, 1, 9), "two easy rules, short texts"),
    }
    for category in CATEGORIES:
        kinds = tuple(k.name for k in KINDS.values() if k.category == category)
        levels[f"instructions/1-constraints/{category}"] = (
            Level(1, kinds, 1, 30),
            f"one rule about {category}",
        )
    everything = tuple(KINDS)
    for count in (1, 2, 3, 4):
        levels[f"instructions/{count}-constraints/mixed"] = (
            Level(count, everything, 1 if count == 1 else 2, 40),
            f"{count} rules of any kind" if count > 1 else "one rule of any kind",
        )
    levels["instructions/6-constraints/mixed"] = (Level(6, everything, 2, 50), "six rules")
    return levels


_LEVELS = _levels()


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains of this module."""
    return tuple(
        DomainSpec(
            name=name,
            family=name.rpartition("/")[0],
            kind="instructions",
            description=f"Write a text that keeps checkable rules: {text}",
            floor=_FLOOR,
            max_completion_tokens=32 if level.max_words <= 12 else 128,
            tags=(name.rpartition("/")[2],),
        )
        for name, (level, text) in _LEVELS.items()
    )


def create(name: str, *, mode: str = "strict", **unknown: Any) -> InstructionDomain:
    """Return the domain called ``name``.

    Args:
        mode: ``strict`` or ``loose`` (see :class:`InstructionDomain`).

    Raises:
        DomainError: unknown name, mode or option.
    """
    if unknown:
        raise DomainError(
            f"{name}: unknown option {sorted(unknown)[0]!r}; the only option is 'mode'"
        )
    if name not in _LEVELS:
        raise DomainError(f"no instruction domain {name!r}.{did_you_mean(name, _LEVELS)}")
    spec = next(s for s in specs() if s.name == name)
    return InstructionDomain(spec, _LEVELS[name][0], mode=mode)
