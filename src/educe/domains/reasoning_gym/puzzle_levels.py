"""Levels of the families about logic and games."""

from __future__ import annotations

from educe.domains.reasoning_gym.level_tables import Levels, ranges, values

LOGIC: dict[str, Levels] = {
    "acre": {"medium": {}},
    "aiw": {
        "easy": {"task_type_weights": [1.0, 0.0, 0.0], "max_entities": 4},
        "medium": {"task_type_weights": [0.5, 0.25, 0.25], "max_entities": 6},
        "hard": {"task_type_weights": [0.2, 0.4, 0.4], "max_entities": 10},
    },
    "arc_1d": ranges("size", easy=((8, 10),), medium=((10, 16),), hard=((20, 30),)),
    "circuit_logic": ranges(
        "terms",
        "inputs",
        tiny=((2, 2), (2, 2)),
        easy=((2, 3), (2, 3)),
        medium=((3, 5), (2, 4)),
        hard=((6, 8), (3, 5)),
    ),
    "course_schedule": ranges(
        "num_courses",
        "num_prerequisites",
        "cycle_length",
        tiny=((3, 4), (1, 1), (3, 3)),
        easy=((5, 6), (1, 1), (3, 4)),
        medium=((6, 10), (1, 2), (3, 5)),
        hard=((12, 16), (1, 3), (3, 6)),
    ),
    "family_relationships": ranges(
        "family_size", tiny=((3, 3),), easy=((4, 5),), medium=((5, 8),), hard=((9, 11),)
    ),
    "knights_knaves": {
        "easy": {"n_people": 2},
        "medium": {"n_people": 3},
        "hard": {"n_people": 4, "depth_constraint": 3, "width_constraint": 3},
    },
    "list_functions": {"medium": {}},
    "self_reference": values("difficulty", easy=1, medium=3, hard=5),
    "syllogism": {
        "tiny": {"allow_some": False, "allow_some_not": False},
        "easy": {"allow_some_not": False},
        "medium": {},
    },
    "zebra_puzzles": {
        "easy": {"num_people": 2, "num_characteristics": 2},
    },
}


GAMES: dict[str, Levels] = {
    "bf": values("difficulty", easy=1, medium=2),
    "coin_flip": ranges("trials", easy=((3, 8),), medium=((3, 15),), hard=((10, 20),)),
    "color_cube_rotation": ranges(
        "rotations", tiny=((1, 1),), easy=((2, 2),), medium=((3, 3),), hard=((5, 5),)
    ),
    "countdown": ranges(
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
    "kakurasu": ranges(
        "rows",
        "cols",
        tiny=((3, 3), (3, 3)),
        easy=((4, 4), (4, 4)),
        medium=((4, 5), (4, 5)),
        hard=((6, 6), (6, 6)),
    ),
    "maze": ranges(
        "dist",
        "grid_size",
        tiny=((2, 4), (4, 5)),
        easy=((3, 6), (5, 6)),
        medium=((5, 10), (6, 9)),
        hard=((10, 15), (10, 12)),
    ),
    "mini_sudoku": ranges(
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
    "quantum_lock": values("difficulty", tiny=1, easy=2, medium=4, hard=10),
    "rectangle_count": {
        level: {"max_rectangles": count, "width": width, "height": height}
        for level, count, width, height in (
            ("tiny", 2, 14, 10),
            ("easy", 4, 24, 10),
            ("medium", 6, 30, 16),
        )
    },
    "shortest_path": ranges(
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
    "tsumego": ranges("board_size", easy=((7, 7),), medium=((8, 9),), hard=((10, 13),)),
}
