"""Where generators announce themselves: one entry for each (topic, level)."""

from __future__ import annotations

import random
from collections.abc import Callable

from educe.domains.builtin.python_functions.problem import Problem

Generator = Callable[[random.Random], Problem]

LEVELS = ("tiny", "easy", "medium", "hard")
GENERATORS: dict[tuple[str, str], Generator] = {}


def generator(topic: str, level: str) -> Callable[[Generator], Generator]:
    """Register a function that draws problems of one topic and level."""

    def register(function: Generator) -> Generator:
        key = (topic, level)
        if level not in LEVELS or key in GENERATORS:
            raise ValueError(f"generator {topic}/{level}: unknown level or registered twice")
        GENERATORS[key] = function
        return function

    return register
