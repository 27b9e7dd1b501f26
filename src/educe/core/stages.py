"""Names of a recipe's stages: the first of a kind has the kind's name, later ones a number.

``["sft", "rl", "sft"]`` are the stages sft, rl and sft-2: each has its own metrics, steps and saved
model, and all of one kind read the same section of the recipe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_NUMBER = re.compile(r"-[1-9]\d*$")


def stage_names(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return one name a stage, all different.

    >>> stage_names(["sft", "rl", "sft", "eval"])
    ('sft', 'rl', 'sft-2', 'eval')
    """
    seen: Counter[str] = Counter()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
    return tuple(names)


def stage_kind(name: str) -> str:
    """Return the kind of a stage from its name.

    >>> stage_kind("sft-2"), stage_kind("rl")
    ('sft', 'rl')
    """
    return _NUMBER.sub("", name)
