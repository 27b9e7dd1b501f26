"""Levels of the families about numbers and figures."""

from __future__ import annotations

from educe.domains.reasoning_gym.level_tables import Levels, ranges, values, with_all

ARITHMETIC: dict[str, Levels] = {
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
    "bitwise_arithmetic": values("difficulty", tiny=1, easy=2, medium=3, hard=5),
    "calendar_arithmetic": values(
        "tasks",
        easy=["weekday_of_date"],
        medium=["weekday_offset", "weekday_of_date_from_first_date", "count_days"],
        hard=["count_days", "count_business_days", "recurring_event_day"],
    ),
    "chain_sum": ranges(
        "terms",
        "digits",
        tiny=((2, 2), (1, 1)),
        easy=((2, 2), (2, 2)),
        medium=((3, 4), (2, 3)),
        hard=((4, 6), (3, 4)),
    ),
    "count_bits": values("max_n", tiny=255, easy=65_535, medium=16_777_215, hard=2_147_483_647),
    "decimal_arithmetic": with_all(
        ranges(
            "num_decimal_places",
            "terms",
            tiny=((1, 1), (2, 2)),
            easy=((1, 1), (2, 3)),
            medium=((2, 2), (2, 4)),
            hard=((3, 3), (3, 6)),
        ),
        precision=8,
    ),
    "decimal_chain_sum": ranges(
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
    "fraction_simplification": with_all(
        ranges(
            "value",
            "factor",
            tiny=((1, 9), (2, 5)),
            easy=((1, 20), (2, 10)),
            medium=((1, 100), (2, 30)),
            hard=((1, 1000), (2, 100)),
        ),
        styles=("plain",),
    ),
    "gcd": ranges(
        "numbers",
        "value",
        tiny=((2, 2), (1, 20)),
        easy=((2, 2), (1, 100)),
        medium=((2, 2), (1, 1000)),
        hard=((3, 3), (1, 10_000)),
    ),
    "gsm_symbolic": {"medium": {}},
    "lcm": ranges(
        "numbers",
        "value",
        tiny=((2, 2), (1, 12)),
        easy=((2, 2), (1, 30)),
        medium=((2, 2), (1, 100)),
        hard=((3, 3), (1, 100)),
    ),
    "leg_counting": ranges(
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
    "power_function": ranges(
        "base",
        "exponent",
        tiny=((1.0, 9.0), (1, 2)),
        easy=((1.0, 20.0), (2, 2)),
        medium=((-100.0, 100.0), (2, 3)),
        hard=((-1000.0, 1000.0), (2, 8)),
    ),
    "prime_factorization": ranges(
        "value", tiny=((4, 120),), easy=((10, 400),), medium=((100, 2000),), hard=((1000, 20_000),)
    ),
    "products": ranges(
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


ALGEBRA: dict[str, Levels] = {
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
    "simple_equations": ranges(
        "terms",
        "value",
        tiny=((2, 2), (1, 10)),
        easy=((2, 3), (1, 20)),
        medium=((2, 4), (1, 100)),
        hard=((3, 6), (1, 1000)),
    ),
    "simple_integration": ranges(
        "terms",
        "degree",
        "bounds",
        tiny=((2, 2), (1, 2), (1, 5)),
        easy=((2, 2), (1, 4), (1, 10)),
        medium=((2, 3), (1, 6), (1, 10)),
        hard=((3, 5), (1, 10), (1, 10)),
    ),
}


GEOMETRY: dict[str, Levels] = {
    "advanced_geometry": {
        "easy": {"min_coord": -5, "max_coord": 5, "task_types": ["angle_measure"]},
        "medium": {"min_coord": -10, "max_coord": 10},
        "hard": {"min_coord": -100, "max_coord": 100},
    },
    "simple_geometry": ranges(
        "sides", tiny=((3, 3),), easy=((3, 4),), medium=((5, 6),), hard=((8, 10),)
    ),
}
