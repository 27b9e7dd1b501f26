"""Levels of the families about words, strings, lists and grids."""

from __future__ import annotations

from educe.domains.reasoning_gym.level_tables import Levels, ranges, values

TEXT: dict[str, Levels] = {
    "caesar_cipher": ranges(
        "words",
        "rotation",
        tiny=((1, 2), (1, 2)),
        easy=((2, 3), (1, 5)),
        medium=((3, 6), (1, 13)),
        hard=((6, 20), (1, 25)),
    ),
    "emoji_mystery": ranges("words_in_sentence", easy=((3, 5),), medium=((5, 8),), hard=((8, 15),)),
    "figlet_font": ranges("word_len", easy=((3, 3),), medium=((4, 5),), hard=((6, 7),)),
    "group_anagrams": ranges(
        "anagram_groups",
        "words_per_group",
        tiny=((2, 2), (2, 2)),
        easy=((2, 3), (2, 2)),
        medium=((3, 5), (2, 3)),
        hard=((6, 10), (2, 5)),
    ),
    "letter_counting": ranges(
        "words", tiny=((3, 4),), easy=((5, 8),), medium=((9, 15),), hard=((16, 30),)
    ),
    "letter_jumble": ranges(
        "words",
        "word_len",
        tiny=((1, 1), (3, 5)),
        easy=((2, 3), (1, 8)),
        medium=((3, 6), (1, 12)),
        hard=((8, 20), (1, 64)),
    ),
    "needle_haystack": ranges(
        "num_statements", tiny=((3, 4),), easy=((5, 10),), medium=((10, 30),), hard=((60, 100),)
    ),
    "palindrome_generation": ranges(
        "length", tiny=((3, 4),), easy=((4, 6),), medium=((7, 10),), hard=((12, 20),)
    ),
    "palindrome_partitioning": ranges(
        "string_len",
        "substring_palindrome_len",
        tiny=((3, 4), (1, 3)),
        easy=((5, 6), (1, 3)),
        medium=((7, 9), (1, 5)),
        hard=((9, 11), (1, 5)),
    ),
    "ransom_note": ranges(
        "note_length",
        "magazine_length",
        tiny=((1, 2), (2, 4)),
        easy=((2, 4), (5, 8)),
        medium=((4, 8), (8, 20)),
        hard=((8, 15), (20, 40)),
    ),
    "sentence_reordering": ranges(
        "words_in_sentence", tiny=((3, 4),), easy=((4, 6),), medium=((6, 10),), hard=((10, 20),)
    ),
    "spell_backward": ranges(
        "word_len", tiny=((3, 3),), easy=((3, 5),), medium=((5, 7),), hard=((8, 10),)
    ),
    "word_ladder": ranges(
        "word_length",
        "chain_length",
        tiny=((3, 3), (3, 3)),
        easy=((3, 3), (4, 5)),
        medium=((4, 4), (3, 5)),
        hard=((4, 4), (6, 8)),
    ),
    "word_sequence_reversal": ranges(
        "words", tiny=((2, 3),), easy=((3, 5),), medium=((6, 10),), hard=((12, 20),)
    ),
    "word_sorting": ranges(
        "words",
        "word_length",
        tiny=((3, 3), (3, 5)),
        easy=((3, 5), (3, 8)),
        medium=((5, 10), (3, 12)),
        hard=((12, 20), (3, 12)),
    ),
}


ALGORITHMS: dict[str, Levels] = {
    "ab": values("length", tiny=3, easy=5, medium=7, hard=10),
    "base_conversion": ranges(
        "base",
        "value",
        tiny=((2, 3), (1, 60)),
        easy=((2, 8), (1, 100)),
        medium=((2, 16), (1, 1000)),
        hard=((2, 36), (1, 100_000)),
    ),
    "binary_alternation": ranges(
        "n", tiny=((4, 8),), easy=((8, 12),), medium=((10, 30),), hard=((40, 60),)
    ),
    "binary_matrix": ranges("n", tiny=((3, 3),), easy=((4, 4),), medium=((5, 7),), hard=((8, 10),)),
    "count_primes": values("max_n", tiny=30, easy=100, medium=1000, hard=10_000),
    "cryptarithm": ranges("words", easy=((2, 2),), medium=((3, 3),), hard=((4, 5),)),
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
    "isomorphic_strings": ranges(
        "string_length", tiny=((2, 3),), easy=((3, 5),), medium=((6, 10),), hard=((20, 40),)
    ),
    "jugs": values("difficulty", tiny=2, easy=4, medium=6, hard=10),
    "largest_island": ranges(
        "rows",
        "cols",
        "num_islands",
        "island_size",
        tiny=((3, 3), (3, 3), (0, 2), (0, 3)),
        easy=((4, 4), (4, 4), (0, 3), (0, 5)),
        medium=((5, 7), (5, 7), (0, 5), (0, 10)),
        hard=((8, 10), (8, 10), (2, 6), (2, 10)),
    ),
    "manipulate_matrix": ranges(
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
    "number_sequence": {
        "tiny": {"min_terms": 5, "max_terms": 5, "max_complexity": 1},
        "easy": {"min_terms": 5, "max_terms": 6, "max_complexity": 2},
        "medium": {"min_terms": 4, "max_terms": 8},
        "hard": {"min_terms": 6, "max_terms": 10},
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
    "pool_matrix": ranges(
        "rows",
        "cols",
        "pool_size",
        tiny=((2, 2), (2, 4), (2, 2)),
        easy=((3, 4), (3, 4), (1, 2)),
        medium=((4, 6), (4, 6), (1, 3)),
        hard=((8, 10), (8, 10), (1, 3)),
    ),
    "rotate_matrix": ranges(
        "n",
        "rotations",
        tiny=((2, 2), (0, 3)),
        easy=((2, 3), (0, 3)),
        medium=((4, 5), (0, 6)),
        hard=((7, 10), (0, 10)),
    ),
    "rotten_oranges": ranges(
        "n", tiny=((3, 3),), easy=((4, 5),), medium=((6, 8),), hard=((10, 14),)
    ),
    "spiral_matrix": ranges("n", tiny=((2, 2),), easy=((3, 3),), medium=((4, 5),), hard=((6, 9),)),
    "string_insertion": ranges(
        "string_length", tiny=((5, 6),), easy=((6, 10),), medium=((10, 20),), hard=((25, 40),)
    ),
    "string_manipulation": ranges(
        "string_length",
        "num_rules",
        tiny=((5, 5), (3, 3)),
        easy=((5, 8), (3, 4)),
        medium=((8, 15), (3, 6)),
        hard=((15, 25), (6, 10)),
    ),
    "string_splitting": ranges(
        "initial_machines", easy=((0, 4),), medium=((0, 8),), hard=((8, 20),)
    ),
    "string_synthesis": ranges("initial_blocks", easy=((0, 4),), medium=((0, 8),), hard=((8, 20),)),
}
