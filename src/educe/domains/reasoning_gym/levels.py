"""Which families of reasoning-gym are offered at which levels, and why others are not.

A level is a set of overrides of the family's configuration, chosen so that prompts stay short:
``tiny`` is meant for models of about a hundred million parameters, ``hard`` is the family's default
or above it. Families whose parameters span little have fewer levels.
"""

from __future__ import annotations

from educe.domains.reasoning_gym.level_tables import Levels
from educe.domains.reasoning_gym.number_levels import ALGEBRA, ARITHMETIC, GEOMETRY
from educe.domains.reasoning_gym.puzzle_levels import GAMES, LOGIC
from educe.domains.reasoning_gym.text_levels import ALGORITHMS, TEXT

FAMILIES: dict[str, tuple[str, Levels]] = {
    family: (kind, levels)
    for kind, families in (
        ("arithmetic", ARITHMETIC),
        ("algebra", ALGEBRA),
        ("text", TEXT),
        ("algorithms", ALGORITHMS),
        ("logic", LOGIC),
        ("games", GAMES),
        ("geometry", GEOMETRY),
    )
    for family, levels in families.items()
}
"""Family: its kind and the overrides of each level."""

_NO_GOLD = "the generator gives no gold answer, so a perfect attempt cannot be shown or checked"
_TOO_LONG = "prompts exceed 1,000 tokens"

EXCLUDED: dict[str, str] = {
    "arc_agi": f"{_TOO_LONG}, and the puzzles are a fixed public set, not generated",
    "boxnet": _NO_GOLD,
    "codeio": f"{_TOO_LONG}, and scoring compares long JSON against a fixed public set",
    "composite": "a mixture of other families; mix domains in the recipe instead",
    "graph_color": _NO_GOLD,
    "knight_swap": "making one task takes 0.3 to 1.6 s",
    "mahjong_puzzle": _TOO_LONG,
    "propositional_logic": _NO_GOLD,
    "puzzle24": "making one task takes some 50 ms, a held-out one 0.3 s; countdown is alike",
    "rearc": _TOO_LONG,
    "rubiks_cube": _NO_GOLD,
    "rush_hour": _NO_GOLD,
    "sudoku": "making one task takes some 70 ms, a held-out one 0.5 s; mini_sudoku is alike",
}
"""Family of reasoning-gym that is not offered: the reason."""
