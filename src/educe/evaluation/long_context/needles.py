"""Needles in a haystack: one or several facts among sentences that do not matter.

Keys are unique; values are unique and none is part of another or of the haystack. The reply is
judged as an exact set of values: whatever a dump of the prompt names beside them is a mistake.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from functools import partial

from educe.domains.builtin.long_document.world import filler
from educe.evaluation.long_context.draft import Draft, Kind, Rng, placed


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LOOKS = _list(
    """
    amber ancient ashen brazen cobalt copper coral crimson dusty faded frosted gilded golden
    hazel hollow ivory jade lacquered leaden marble mossy narrow oaken painted pale pearl
    plain polished rusty scarlet silver slender smoky speckled striped tarnished velvet wicker
    woven yellow
    """
)
_THINGS = _list(
    """
    anchor anvil barrel basin bellows bench bucket buoy cabinet candle cart casket chest
    compass cradle crate drum easel fiddle flask funnel goblet hammer harp hatchet helmet
    kettle ladder lantern ledger loom mirror oar pulley quill saddle satchel scale sextant
    spindle teapot trunk
    """
)
_SYLLABLES = _list(
    """
    ba be bo da de do fa fe fo ga go ka ke ko la le lo ma me mo na ne no pa pe po ra re ro sa
    se so ta te to va ve vo za ze zo
    """
)

VALUE_PATTERNS: Mapping[str, str] = {
    "number": r"(?<![\d])\d{7}(?![\d])",
    "uuid": r"(?<![0-9a-f-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])",
    "word": r"(?<![a-z-])[a-z]{6}-[a-z]{6}(?![a-z-])",
}
_NAMES = {"number": "number", "uuid": "identifier", "word": "code word"}


def unique_values(rng: Rng, value: str, count: int) -> list[str]:
    """Return ``count`` distinct values of a type; none is a part of another (equal lengths)."""
    makers: Mapping[str, Callable[[], str]] = {
        "number": lambda: str(rng.randrange(10**6, 10**7)),
        "uuid": lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        "word": lambda: "-".join("".join(rng.choice(_SYLLABLES) for _ in range(3)) for _ in "ab"),
    }
    found: dict[str, None] = {}
    while len(found) < count:
        found[makers[value]()] = None
    return list(found)


def _keys(rng: Rng, count: int) -> list[str]:
    pairs = rng.sample(range(len(_LOOKS) * len(_THINGS)), count)
    return [f"{_LOOKS[p % len(_LOOKS)]} {_THINGS[p // len(_LOOKS)]}" for p in pairs]


def hay_sentences(rng: Rng, size: int) -> list[str]:
    """Return sentences without keys or values; the first n of more are the n of fewer."""
    return [filler(rng) for _ in range(size)]


def write_needle(rng: Rng, size: int, depth: float, *, form: str, value: str) -> Draft:
    """Write one of four forms: ``single``, ``multikey``, ``multivalue``, ``multiquery``."""
    name = _NAMES[value]
    num_asked = 4 if form == "multiquery" else 1
    num_keys = num_asked + (4 if form != "single" else 0)
    num_values = 4 if form == "multivalue" else 1
    keys = _keys(rng, num_keys)
    values = unique_values(rng, value, num_keys - 1 + num_values if num_asked == 1 else num_keys)
    if form == "multivalue":
        answers = values[:4]
        needles = [(keys[0], v) for v in answers]
        others = list(zip(keys[1:], values[4:], strict=False))
    else:
        answers = values[:num_asked]
        needles = list(zip(keys[:num_asked], answers, strict=True))
        others = list(zip(keys[num_asked:], values[num_asked:], strict=False))
    spread = [(depth + i / len(needles)) % 1.0 if i else depth for i in range(len(needles))]
    texts = [_sentence(k, v, name, form) for k, v in needles]
    decoys = [(rng.random(), _sentence(k, v, name, "single")) for k, v in others]
    hay = hay_sentences(rng, size)
    pieces, index = placed(hay, [*zip(spread, texts, strict=True), *decoys])
    asked = keys[:num_asked]
    return Draft(
        pieces,
        tuple(index[: len(needles)]),
        _question(asked, name, form),
        tuple(answers),
        {"kind": "values", "pattern": VALUE_PATTERNS[value]},
    )


def _sentence(key: str, value: str, name: str, form: str) -> str:
    if form == "multivalue":
        return f"One of the {name}s of the {key} is {value}."
    return f"The {name} of the {key} is {value}."


def _question(keys: list[str], name: str, form: str) -> str:
    if form == "multivalue":
        return (
            f"Question: What are all the {name}s of the {keys[0]}? There are four. "
            f"Reply with the {name}s only, separated by commas."
        )
    if form == "multiquery":
        listed = ", ".join(f"the {k}" for k in keys[:-1]) + f" and the {keys[-1]}"
        return (
            f"Question: What are the {name}s of {listed}? "
            f"Reply with the {name}s only, separated by commas."
        )
    return f"Question: What is the {name} of the {keys[0]}? Reply with the {name} only."


_TOKENS = {"number": 10, "uuid": 40, "word": 12}

NEEDLES: tuple[Kind, ...] = tuple(
    Kind(
        f"needle-{form}-{value}",
        f"{form} needle with a {value} as value",
        partial(write_needle, form=form, value=value),
        reply_tokens=16 + _TOKENS[value] * (4 if form in ("multivalue", "multiquery") else 1),
    )
    for form, value in itertools.product(
        ("single", "multikey", "multivalue", "multiquery"), ("number", "word", "uuid")
    )
)
