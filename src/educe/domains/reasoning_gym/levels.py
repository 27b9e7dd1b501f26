"""Which families of reasoning-gym are offered at which levels, and why others are not.

A level is a set of overrides of the family's configuration, chosen so that prompts stay short:
``tiny`` is meant for models of about a hundred million parameters, ``hard`` is the family's default
or above it. Families whose parameters span little have fewer levels.
"""

from __future__ import annotations

from typing import Any

Overrides = dict[str, Any]

LEVEL_NAMES = ("tiny", "easy", "medium", "hard")


def _ranges(*names: str, **levels: tuple[Any, ...]) -> dict[str, Overrides]:
    """Return levels over ``min_<name>``/``max_<name>`` pairs: one (low, high) per name."""
    return {
        level: {
            f"{end}_{name}": value
            for name, pair in zip(names, pairs, strict=True)
            for end, value in zip(("min", "max"), pair, strict=True)
        }
        for level, pairs in levels.items()
    }


def _with(levels: dict[str, Overrides], **extra: Any) -> dict[str, Overrides]:
    """Return the levels with the same further overrides in each."""
    return {level: {**overrides, **extra} for level, overrides in levels.items()}


def _values(name: str, **levels: Any) -> dict[str, Overrides]:
    return {level: {name: value} for level, value in levels.items()}


def _grid(width: str, height: str, **levels: int) -> dict[str, Overrides]:
    return {level: {width: size, height: size} for level, size in levels.items()}


ARITHMETIC: dict[str, dict[str, Overrides]] = {
    "basic_arithmetic": {
        "tiny": {
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 1,
            "operators": ("+", "-"),
            "allow_parentheses": False,
            "allow_negation": False,
        },
        "easy": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
        "medium": {"min_terms": 3, "max_terms": 4, "min_digits": 1, "max_digits": 3},
        "hard": {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 4},
    },
    "bitwise_arithmetic": _values("difficulty", tiny=1, easy=2, medium=3, hard=5),
    "calendar_arithmetic": _values(
        "tasks",
        easy=["weekday_of_date"],
        medium=["weekday_offset", "weekday_of_date_from_first_date", "count_days"],
        hard=["count_days", "count_business_days", "recurring_event_day"],
    ),
    "chain_sum": _ranges(
        "terms",
        "digits",
        tiny=((2, 2), (1, 1)),
        easy=((2, 2), (2, 2)),
        medium=((3, 4), (2, 3)),
        hard=((4, 6), (3, 4)),
    ),
    "count_bits": _values("max_n", tiny=255, easy=65_535, medium=16_777_215, hard=2_147_483_647),
    "decimal_arithmetic": _with(
        _ranges(
            "num_decimal_places",
            "terms",
            tiny=((1, 1), (2, 2)),
            easy=((1, 1), (2, 3)),
            medium=((2, 2), (2, 4)),
            hard=((3, 3), (3, 6)),
        ),
        precision=8,
    ),
    "decimal_chain_sum": _ranges(
        "terms",
        "digits",
        "decimal_places",
        tiny=((2, 2), (1, 1), (1, 1)),
        easy=((2, 2), (1, 2), (1, 1)),
        medium=((2, 4), (2, 3), (1, 2)),
        hard=((4, 6), (3, 4), (2, 4)),
    ),
    "dice": {
        "medium": {"num_dice": 3, "max_dice_size": 12},
        "hard": {"num_dice": 4, "max_dice_size": 20},
    },
    "fraction_simplification": _with(
        _ranges(
            "value",
            "factor",
            tiny=((1, 9), (2, 5)),
            easy=((1, 20), (2, 10)),
            medium=((1, 100), (2, 30)),
            hard=((1, 1000), (2, 100)),
        ),
        styles=("plain",),
    ),
    "gcd": _ranges(
        "numbers",
        "value",
        tiny=((2, 2), (1, 20)),
        easy=((2, 2), (1, 100)),
        medium=((2, 2), (1, 1000)),
        hard=((3, 3), (1, 10_000)),
    ),
    "gsm_symbolic": {"medium": {}},
    "lcm": _ranges(
        "numbers",
        "value",
        tiny=((2, 2), (1, 12)),
        easy=((2, 2), (1, 30)),
        medium=((2, 2), (1, 100)),
        hard=((3, 3), (1, 100)),
    ),
    "leg_counting": _ranges(
        "animals",
        "instances",
        tiny=((1, 2), (1, 3)),
        easy=((2, 3), (1, 5)),
        medium=((3, 6), (1, 10)),
        hard=((6, 12), (1, 15)),
    ),
    "number_format": {
        "tiny": {"max_num_candidates": 2, "min_n": 10, "max_n": 1000},
        "easy": {"max_num_candidates": 3, "min_n": 1000, "max_n": 100_000},
        "medium": {"max_num_candidates": 5, "max_delta": 1.0},
        "hard": {"min_num_candidates": 5, "max_num_candidates": 12, "max_delta": 0.001},
    },
    "power_function": _ranges(
        "base",
        "exponent",
        tiny=((1.0, 9.0), (1, 2)),
        easy=((1.0, 20.0), (2, 2)),
        medium=((-100.0, 100.0), (2, 3)),
        hard=((-1000.0, 1000.0), (2, 8)),
    ),
    "prime_factorization": _ranges(
        "value", tiny=((4, 120),), easy=((10, 400),), medium=((100, 2000),), hard=((1000, 20_000),)
    ),
    "products": _ranges(
        "terms",
        "digits",
        tiny=((2, 2), (1, 1)),
        easy=((2, 2), (1, 2)),
        medium=((2, 2), (2, 3)),
        hard=((2, 3), (3, 5)),
    ),
    "time_intervals": {
        "tiny": {"task_types": ["time"], "max_time_difference_seconds": 3600},
        "easy": {"task_types": ["time"]},
        "medium": {"task_types": ["time", "time_seconds", "date"]},
        "hard": {},
    },
}

ALGEBRA: dict[str, dict[str, Overrides]] = {
    "complex_arithmetic": {
        level: {
            "min_real": -size,
            "max_real": size,
            "min_imag": -size,
            "max_imag": size,
            "operations_weights": weights,
        }
        for level, size, weights in (
            ("tiny", 5, [0.5, 0.5, 0.0, 0.0]),
            ("easy", 20, [0.5, 0.5, 0.0, 0.0]),
            ("medium", 10, [0.3, 0.3, 0.4, 0.0]),
            ("hard", 100, [0.25, 0.25, 0.25, 0.25]),
        )
    },
    "intermediate_integration": {
        "medium": {"problem_type_weights": [1, 0, 0, 0, 0, 0, 0, 0]},
    },
    "polynomial_equations": {
        "tiny": {"min_terms": 2, "max_terms": 2, "max_value": 12, "max_degree": 1},
        "easy": {"min_terms": 2, "max_terms": 3, "max_value": 50, "max_degree": 1},
        "medium": {"max_value": 20, "min_degree": 2, "max_degree": 2},
        "hard": {"max_value": 100, "min_degree": 2, "max_degree": 3},
    },
    "polynomial_multiplication": {
        level: {
            "min_terms": 2,
            "max_terms": terms,
            "max_value": value,
            "max_degree": degree,
            "min_polynomials": 2,
            "max_polynomials": polynomials,
            "variables": ("x",),
        }
        for level, terms, value, degree, polynomials in (
            ("tiny", 2, 5, 1, 2),
            ("easy", 2, 12, 2, 2),
            ("medium", 3, 30, 3, 2),
            ("hard", 4, 100, 3, 3),
        )
    },
    "simple_equations": _ranges(
        "terms",
        "value",
        tiny=((2, 2), (1, 10)),
        easy=((2, 3), (1, 20)),
        medium=((2, 4), (1, 100)),
        hard=((3, 6), (1, 1000)),
    ),
    "simple_integration": _ranges(
        "terms",
        "degree",
        "bounds",
        tiny=((2, 2), (1, 2), (1, 5)),
        easy=((2, 2), (1, 4), (1, 10)),
        medium=((2, 3), (1, 6), (1, 10)),
        hard=((3, 5), (1, 10), (1, 10)),
    ),
}

TEXT: dict[str, dict[str, Overrides]] = {
    "caesar_cipher": _ranges(
        "words",
        "rotation",
        tiny=((1, 2), (1, 2)),
        easy=((2, 3), (1, 5)),
        medium=((3, 6), (1, 13)),
        hard=((6, 20), (1, 25)),
    ),
    "emoji_mystery": _ranges(
        "words_in_sentence", easy=((3, 5),), medium=((5, 8),), hard=((8, 15),)
    ),
    "figlet_font": _ranges("word_len", easy=((3, 3),), medium=((4, 5),), hard=((6, 7),)),
    "group_anagrams": _ranges(
        "anagram_groups",
        "words_per_group",
        tiny=((2, 2), (2, 2)),
        easy=((2, 3), (2, 2)),
        medium=((3, 5), (2, 3)),
        hard=((6, 10), (2, 5)),
    ),
    "letter_counting": _ranges(
        "words", tiny=((3, 4),), easy=((5, 8),), medium=((9, 15),), hard=((16, 30),)
    ),
    "letter_jumble": _with(
        _ranges(
            "words",
            "word_len",
            tiny=((1, 1), (3, 5)),
            easy=((2, 3), (1, 8)),
            medium=((3, 6), (1, 12)),
            hard=((8, 20), (1, 64)),
        )
    ),
    "needle_haystack": _ranges(
        "num_statements", tiny=((3, 4),), easy=((5, 10),), medium=((10, 30),), hard=((60, 100),)
    ),
    "palindrome_generation": _ranges(
        "length", tiny=((3, 4),), easy=((4, 6),), medium=((7, 10),), hard=((12, 20),)
    ),
    "palindrome_partitioning": _ranges(
        "string_len",
        "substring_palindrome_len",
        tiny=((3, 4), (1, 3)),
        easy=((5, 6), (1, 3)),
        medium=((7, 9), (1, 5)),
        hard=((9, 11), (1, 5)),
    ),
    "ransom_note": _ranges(
        "note_length",
        "magazine_length",
        tiny=((1, 2), (2, 4)),
        easy=((2, 4), (5, 8)),
        medium=((4, 8), (8, 20)),
        hard=((8, 15), (20, 40)),
    ),
    "sentence_reordering": _ranges(
        "words_in_sentence", tiny=((3, 4),), easy=((4, 6),), medium=((6, 10),), hard=((10, 20),)
    ),
    "spell_backward": _ranges(
        "word_len", tiny=((3, 3),), easy=((3, 5),), medium=((5, 7),), hard=((8, 10),)
    ),
    "word_ladder": _ranges(
        "word_length",
        "chain_length",
        tiny=((3, 3), (3, 3)),
        easy=((3, 3), (4, 5)),
        medium=((4, 4), (3, 5)),
        hard=((4, 4), (6, 8)),
    ),
    "word_sequence_reversal": _ranges(
        "words", tiny=((2, 3),), easy=((3, 5),), medium=((6, 10),), hard=((12, 20),)
    ),
    "word_sorting": _ranges(
        "words",
        "word_length",
        tiny=((3, 3), (3, 5)),
        easy=((3, 5), (3, 8)),
        medium=((5, 10), (3, 12)),
        hard=((12, 20), (3, 12)),
    ),
}

ALGORITHMS: dict[str, dict[str, Overrides]] = {
    "ab": _values("length", tiny=3, easy=5, medium=7, hard=10),
    "base_conversion": _ranges(
        "base",
        "value",
        tiny=((2, 3), (1, 60)),
        easy=((2, 8), (1, 100)),
        medium=((2, 16), (1, 1000)),
        hard=((2, 36), (1, 100_000)),
    ),
    "binary_alternation": _ranges(
        "n", tiny=((4, 8),), easy=((8, 12),), medium=((10, 30),), hard=((40, 60),)
    ),
    "binary_matrix": _ranges(
        "n", tiny=((3, 3),), easy=((4, 4),), medium=((5, 7),), hard=((8, 10),)
    ),
    "count_primes": _values("max_n", tiny=30, easy=100, medium=1000, hard=10_000),
    "cryptarithm": _ranges("words", easy=((2, 2),), medium=((3, 3),), hard=((4, 5),)),
    "game_of_life": {
        level: {
            "grid_size_x": size,
            "grid_size_y": size,
            "filled_cells": cells,
            "simulation_steps": steps,
        }
        for level, size, cells, steps in (
            ("easy", 4, 6, 1),
            ("medium", 5, 10, 1),
            ("hard", 8, 24, 2),
        )
    },
    "game_of_life_halting": {
        "medium": {"grid_size_x": 10, "grid_size_y": 10, "num_oscillators": 3},
        "hard": {"grid_size_x": 14, "grid_size_y": 14, "difficulty": 2},
    },
    "isomorphic_strings": _ranges(
        "string_length", tiny=((2, 3),), easy=((3, 5),), medium=((6, 10),), hard=((20, 40),)
    ),
    "jugs": _values("difficulty", tiny=2, easy=4, medium=6, hard=10),
    "largest_island": _ranges(
        "rows",
        "cols",
        "num_islands",
        "island_size",
        tiny=((3, 3), (3, 3), (0, 2), (0, 3)),
        easy=((4, 4), (4, 4), (0, 3), (0, 5)),
        medium=((5, 7), (5, 7), (0, 5), (0, 10)),
        hard=((8, 10), (8, 10), (2, 6), (2, 10)),
    ),
    "manipulate_matrix": _ranges(
        "rows",
        "cols",
        "transforms",
        tiny=((2, 2), (2, 2), (1, 1)),
        easy=((2, 3), (2, 3), (1, 2)),
        medium=((3, 5), (3, 5), (2, 4)),
        hard=((5, 8), (5, 8), (4, 8)),
    ),
    "modulo_grid": {
        level: {
            "size_x": size,
            "size_y": size,
            "max_divisor": 7,
            "max_target": 7,
            "max_holes": holes,
        }
        for level, size, holes in (("easy", 6, 1), ("medium", 8, 2), ("hard", 12, 4))
    },
    "number_filtering": {
        level: {
            "min_numbers": low,
            "max_numbers": high,
            "max_decimals": decimals,
            "min_value": -float(size),
            "max_value": float(size),
        }
        for level, low, high, decimals, size in (
            ("tiny", 3, 4, 0, 20),
            ("easy", 3, 6, 0, 100),
            ("medium", 4, 10, 2, 100),
            ("hard", 12, 20, 4, 1000),
        )
    },
    "number_sequence": _with(
        _ranges("terms", tiny=((4, 4),), easy=((4, 6),), medium=((4, 8),), hard=((6, 10),))
    )
    | {
        "tiny": {"min_terms": 5, "max_terms": 5, "max_complexity": 1},
        "easy": {"min_terms": 5, "max_terms": 6, "max_complexity": 2},
    },
    "number_sorting": {
        level: {
            "min_numbers": low,
            "max_numbers": high,
            "max_decimals": decimals,
            "min_value": -float(size),
            "max_value": float(size),
        }
        for level, low, high, decimals, size in (
            ("tiny", 3, 3, 0, 20),
            ("easy", 3, 5, 0, 100),
            ("medium", 5, 10, 2, 100),
            ("hard", 12, 20, 2, 1000),
        )
    },
    "pool_matrix": _ranges(
        "rows",
        "cols",
        "pool_size",
        tiny=((2, 2), (2, 4), (2, 2)),
        easy=((3, 4), (3, 4), (1, 2)),
        medium=((4, 6), (4, 6), (1, 3)),
        hard=((8, 10), (8, 10), (1, 3)),
    ),
    "rotate_matrix": _ranges(
        "n",
        "rotations",
        tiny=((2, 2), (0, 3)),
        easy=((2, 3), (0, 3)),
        medium=((4, 5), (0, 6)),
        hard=((7, 10), (0, 10)),
    ),
    "rotten_oranges": _ranges(
        "n", tiny=((3, 3),), easy=((4, 5),), medium=((6, 8),), hard=((10, 14),)
    ),
    "spiral_matrix": _ranges("n", tiny=((2, 2),), easy=((3, 3),), medium=((4, 5),), hard=((6, 9),)),
    "string_insertion": _ranges(
        "string_length", tiny=((5, 6),), easy=((6, 10),), medium=((10, 20),), hard=((25, 40),)
    ),
    "string_manipulation": _ranges(
        "string_length",
        "num_rules",
        tiny=((5, 5), (3, 3)),
        easy=((5, 8), (3, 4)),
        medium=((8, 15), (3, 6)),
        hard=((15, 25), (6, 10)),
    ),
    "string_splitting": _ranges(
        "initial_machines", easy=((0, 4),), medium=((0, 8),), hard=((8, 20),)
    ),
    "string_synthesis": _ranges(
        "initial_blocks", easy=((0, 4),), medium=((0, 8),), hard=((8, 20),)
    ),
}

LOGIC: dict[str, dict[str, Overrides]] = {
    "acre": {"medium": {}},
    "aiw": {
        "easy": {"task_type_weights": [1.0, 0.0, 0.0], "max_entities": 4},
        "medium": {"task_type_weights": [0.5, 0.25, 0.25], "max_entities": 6},
        "hard": {"task_type_weights": [0.2, 0.4, 0.4], "max_entities": 10},
    },
    "arc_1d": _with(_ranges("size", easy=((8, 10),), medium=((10, 16),), hard=((20, 30),))),
    "circuit_logic": _ranges(
        "terms",
        "inputs",
        tiny=((2, 2), (2, 2)),
        easy=((2, 3), (2, 3)),
        medium=((3, 5), (2, 4)),
        hard=((6, 8), (3, 5)),
    ),
    "course_schedule": _ranges(
        "num_courses",
        "num_prerequisites",
        "cycle_length",
        tiny=((3, 4), (1, 1), (3, 3)),
        easy=((5, 6), (1, 1), (3, 4)),
        medium=((6, 10), (1, 2), (3, 5)),
        hard=((12, 16), (1, 3), (3, 6)),
    ),
    "family_relationships": _ranges(
        "family_size", tiny=((3, 3),), easy=((4, 5),), medium=((5, 8),), hard=((9, 11),)
    ),
    "knights_knaves": {
        "easy": {"n_people": 2},
        "medium": {"n_people": 3},
        "hard": {"n_people": 4, "depth_constraint": 3, "width_constraint": 3},
    },
    "list_functions": {"medium": {}},
    "self_reference": _values("difficulty", easy=1, medium=3, hard=5),
    "syllogism": {
        "tiny": {"allow_some": False, "allow_some_not": False},
        "easy": {"allow_some_not": False},
        "medium": {},
    },
    "zebra_puzzles": {
        "easy": {"num_people": 2, "num_characteristics": 2},
    },
}

GAMES: dict[str, dict[str, Overrides]] = {
    "bf": _values("difficulty", easy=1, medium=2),
    "coin_flip": _ranges("trials", easy=((3, 8),), medium=((3, 15),), hard=((10, 20),)),
    "color_cube_rotation": _ranges(
        "rotations", tiny=((1, 1),), easy=((2, 2),), medium=((3, 3),), hard=((5, 5),)
    ),
    "countdown": _ranges(
        "numbers",
        "value",
        "target",
        tiny=((2, 3), (1, 10), (2, 30)),
        easy=((3, 3), (1, 20), (10, 99)),
        medium=((4, 4), (1, 50), (50, 500)),
        hard=((4, 6), (1, 100), (100, 999)),
    ),
    "futoshiki": {
        "easy": {"min_board_size": 4, "max_board_size": 4, "max_difficulty": 0},
        "medium": {"min_board_size": 4, "max_board_size": 4, "max_difficulty": 2},
        "hard": {"min_board_size": 5, "max_board_size": 5, "max_difficulty": 1},
    },
    "kakurasu": _ranges(
        "rows",
        "cols",
        tiny=((3, 3), (3, 3)),
        easy=((4, 4), (4, 4)),
        medium=((4, 5), (4, 5)),
        hard=((6, 6), (6, 6)),
    ),
    "maze": _ranges(
        "dist",
        "grid_size",
        tiny=((2, 4), (4, 5)),
        easy=((3, 6), (5, 6)),
        medium=((5, 10), (6, 9)),
        hard=((10, 15), (10, 12)),
    ),
    "mini_sudoku": _ranges(
        "empty", tiny=((1, 3),), easy=((4, 6),), medium=((7, 9),), hard=((10, 12),)
    ),
    "n_queens": {
        "easy": {"n": 6, "min_remove": 1, "max_remove": 3},
        "medium": {"n": 8, "min_remove": 1, "max_remove": 4},
        "hard": {"n": 8, "min_remove": 4, "max_remove": 7},
    },
    "path_star": {
        level: {
            "degree": degree,
            "node_range": node_range,
            "min_path_length": low,
            "max_path_length": high,
        }
        for level, degree, node_range, low, high in (
            ("tiny", 2, 50, 3, 3),
            ("easy", 2, 100, 3, 4),
            ("medium", 3, 1000, 3, 5),
            ("hard", 5, 100_000, 5, 7),
        )
    },
    "quantum_lock": _values("difficulty", tiny=1, easy=2, medium=4, hard=10),
    "rectangle_count": {
        level: {"max_rectangles": count, "width": width, "height": height}
        for level, count, width, height in (
            ("tiny", 2, 14, 10),
            ("easy", 4, 24, 10),
            ("medium", 6, 30, 16),
        )
    },
    "shortest_path": _ranges(
        "rows",
        "cols",
        tiny=((2, 3), (2, 3)),
        easy=((3, 4), (3, 4)),
        medium=((5, 6), (5, 6)),
        hard=((7, 9), (7, 9)),
    ),
    "sokoban": {
        "easy": {"min_w": 6, "min_h": 6, "max_w": 6, "max_h": 6, "min_boxes": 1, "max_boxes": 2},
    },
    "survo": {
        level: {
            "min_board_size": low,
            "max_board_size": high,
            "min_empty": few,
            "max_empty": many,
        }
        for level, low, high, few, many in (
            ("easy", 4, 4, 1, 2),
            ("medium", 4, 5, 3, 5),
            ("hard", 5, 6, 6, 9),
        )
    },
    "tower_of_hanoi": {
        "medium": {"min_disks": 2, "max_disks": 5, "min_pegs": 3, "max_pegs": 5},
    },
    "tsumego": _ranges("board_size", easy=((7, 7),), medium=((8, 9),), hard=((10, 13),)),
}

GEOMETRY: dict[str, dict[str, Overrides]] = {
    "advanced_geometry": {
        "easy": {"min_coord": -5, "max_coord": 5, "task_types": ["angle_measure"]},
        "medium": {"min_coord": -10, "max_coord": 10},
        "hard": {"min_coord": -100, "max_coord": 100},
    },
    "simple_geometry": _ranges(
        "sides", tiny=((3, 3),), easy=((3, 4),), medium=((5, 6),), hard=((8, 10),)
    ),
}

FAMILIES: dict[str, tuple[str, dict[str, Overrides]]] = {
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
