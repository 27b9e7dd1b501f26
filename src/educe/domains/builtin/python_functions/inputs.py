"""Random arguments for the tests of a function: plain JSON values only."""

from __future__ import annotations

import random
import string

from educe.domains.builtin.python_functions.problem import Arguments, Inputs

WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "green",
    "house",
    "light",
    "music",
    "paper",
    "tiger",
    "ocean",
    "bread",
    "chair",
    "dance",
    "eagle",
    "flame",
    "grass",
    "honey",
    "image",
    "jelly",
    "knife",
    "lemon",
    "mango",
    "night",
    "olive",
    "piano",
    "queen",
    "robot",
    "snake",
    "table",
    "uncle",
    "violin",
    "water",
    "yellow",
    "zebra",
    "level",
    "noon",
    "cat",
    "dog",
    "sun",
    "map",
    "key",
    "box",
    "red",
    "sky",
    "ant",
    "bee",
    "owl",
    "pea",
    "rain",
    "wolf",
    "moon",
    "fish",
    "bird",
    "tree",
    "lamp",
    "door",
    "ring",
    "star",
    "milk",
    "corn",
    "anna",
    "civic",
    "banana",
    "kayak",
    "letter",
]


def integer(low: int, high: int) -> Inputs:
    return lambda rng: (rng.randint(low, high),)


def integers(*bounds: tuple[int, int]) -> Inputs:
    """One integer for each pair of bounds."""
    return lambda rng: tuple(rng.randint(low, high) for low, high in bounds)


def int_list(low: int = -20, high: int = 20, shortest: int = 3, longest: int = 8) -> Inputs:
    return lambda rng: (draw_ints(rng, low, high, shortest, longest),)


def draw_ints(
    rng: random.Random, low: int = -20, high: int = 20, shortest: int = 3, longest: int = 8
) -> list[int]:
    values = [rng.randint(low, high) for _ in range(rng.randint(shortest, longest))]
    if len(values) > 2 and rng.random() < 0.4:  # repeated values matter to many functions
        values[-1] = values[0]
    return values


def draw_word(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(WORDS)
    return "".join(rng.choices(string.ascii_lowercase[:8], k=rng.randint(2, 7)))


def draw_sentence(rng: random.Random, shortest: int = 2, longest: int = 5) -> str:
    return " ".join(draw_word(rng) for _ in range(rng.randint(shortest, longest)))


def word(rng: random.Random) -> Arguments:
    return (draw_word(rng),)


def mixed_case(rng: random.Random) -> Arguments:
    """A word or two with capitals and digits strewn in."""
    text = draw_sentence(rng, 1, 2)
    out = [c.upper() if rng.random() < 0.3 else c for c in text]
    for _ in range(rng.randint(0, 3)):
        out.insert(rng.randint(0, len(out)), rng.choice("0123456789"))
    return ("".join(out),)


def sentence(rng: random.Random) -> Arguments:
    return (draw_sentence(rng),)


def words(rng: random.Random) -> Arguments:
    return ([draw_word(rng) for _ in range(rng.randint(2, 6))],)


def letters(alphabet: str, shortest: int = 3, longest: int = 12) -> Inputs:
    return lambda rng: ("".join(rng.choices(alphabet, k=rng.randint(shortest, longest))),)


def few_words(rng: random.Random) -> Arguments:
    return ([draw_word(rng) for _ in range(rng.randint(2, 4))],)


def few_counts(rng: random.Random) -> dict[str, int]:
    return {k: rng.randint(-5, 30) for k in rng.sample(WORDS, rng.randint(2, 3))}


def counts(rng: random.Random) -> Arguments:
    keys = rng.sample(WORDS, rng.randint(2, 5))
    return ({k: rng.randint(-5, 30) for k in keys},)


def draw_grid(
    rng: random.Random, low: int, high: int, size: tuple[int, int] = (2, 4)
) -> list[list[int]]:
    height, width = rng.randint(*size), rng.randint(*size)
    return [[rng.randint(low, high) for _ in range(width)] for _ in range(height)]


def both(first: Inputs, second: Inputs) -> Inputs:
    """The arguments of two draws, one after the other."""
    return lambda rng: (*first(rng), *second(rng))
