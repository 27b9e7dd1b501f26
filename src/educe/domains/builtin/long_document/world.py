"""Invented people, places and things, and the sentences between the ones that matter."""

from __future__ import annotations

import random
from collections.abc import Iterator


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


FIRST_NAMES = _list(
    """
    Ada Alma Anton Arne Beata Bela Boris Bruno Carla Cato Celia Clara Conny Dana Dario Delia Dora
    Edda Egon Elin Elsa Emil Enno Erik Esra Falk Fiona Frida Gerda Gino Gita Gustav Hanna Hedda
    Heiko Hilda Ida Igor Ilse Irma Ivo Jana Jasper Jonas Judit Kaja Karl Katja Klara Kurt Lars Lea
    Lida Linus Lotte Magda Malte Marta Mila Milo Nadia Nils Nora Odin Oda Olaf Orla Otto Petra Pia
    Rafael Rika Rolf Runa Selma Simon Sven Tilda Timo Tove Ugo Ulla Viktor Vida Walter Wanda
    """
)
LAST_NAMES = _list(
    """
    Abbot Acker Alder Archer Ashby Barlow Becker Birk Blake Borg Brandt Brook Carver Coller Crane
    Dahl Dawson Denker Drake Ebner Eldridge Falkner Farrow Fenn Fischer Flint Forster Gable Garner
    Glover Grove Haller Harding Hauser Heath Holt Hooper Ibsen Jarvis Keller Kemp Kerr Lang Larkin
    Lindt Lorenz Marsh Mercer Moller Nash Norden Oakes Osborn Palmer Perry Quist Radley Reed Rowe
    Sander Sloan Stroud Tanner Thorne Tully Urban Vance Voss Walden Weston Winter Yates Zeller
    """
)
TOWNS = _list(
    """
    Ardenfoot Belmora Birkvale Brisholm Calder Corvane Dalmere Dunwick Eastrim Elverton Fallowby
    Farnholt Ferrow Galdern Glimmer Grenfoss Halver Harrowgate Hollin Idlewick Jarrow Kelmar
    Kestrel Lanthorp Larkmoor Lindale Lorsk Marbrook Melkirk Millow Norvane Oakhurst Odmark
    Ostrand Pellin Penmoor Quillan Ravensby Redmere Rivenhall Rostal Saltwick Selby Skerrow
    Stonelow Tarnfield Thistledon Torven Umberfall Valdora Vessex Wexmoor Whitlow Windle Yarrow
    """
)
JOBS = _list(
    """
    baker carpenter tailor gardener plumber painter teacher farmer miller printer pilot singer
    dentist lawyer nurse cook weaver potter roofer sailor barber butcher clockmaker glazier
    librarian locksmith mason optician surveyor translator welder beekeeper bookbinder
    cartographer chemist electrician florist jeweller midwife saddler
    """
)
OBJECTS = _list(
    """
    key map lamp ledger clock violin compass ring letter coin flute mirror globe seal dagger
    lantern chalice medal telescope diary whistle brooch candlestick goblet hourglass
    """
)
COLOURS = _list(
    "amber black blue brass bronze copper green grey ivory orange pink purple red silver white"
)
PLACES = _list(
    """
    attic barn cellar chapel garage greenhouse kitchen laundry library loft office pantry
    parlour shed stable studio tower vault veranda workshop bakery boathouse cottage dairy
    """
)
GOODS = _list(
    "baskets blankets bottles candles chairs cups hammers kettles lamps mats pots ropes shovels "
    "stools tables tiles towels vases"
)
PARTS = _list(
    "valve pump filter belt gear lever nozzle piston rotor sensor shaft spindle switch turbine "
    "bearing clutch fuse gasket hinge impeller"
)

_ADJECTIVES = _list("calm grey mild windy bright dull warm cool quiet busy damp clear long short")
_TIMES = ("morning", "afternoon", "evening", "week", "month", "season", "night", "day")
_SUBJECTS = (
    "the road to the market", "the old bridge", "the water in the canal", "the notice board",
    "the small gate", "the hall", "the path along the fields", "the clock on the square",
    "the ferry landing", "the row of elms", "the well", "the post office counter",
)  # fmt: skip
_DOINGS = (
    "was in use as always", "needed a new coat of paint", "stayed as it had been for years",
    "looked better than in the year before", "was swept twice", "gave no cause for complaint",
    "was shown to some visitors", "was mentioned only in passing", "was closed for an hour",
    "drew a few curious looks", "was repaired without much noise", "had not changed",
)  # fmt: skip
_REMARKS = (
    "Nobody raised an objection.",
    "The matter was left as it was.",
    "A longer report was promised for later.",
    "There was little more to say about it.",
    "Everyone seemed to agree.",
    "It was noted without further comment.",
    "Some asked for a copy of the minutes.",
    "The rest of the page is blank.",
)


def filler(rng: random.Random) -> str:
    """Return one sentence without a name, number, town or thing that questions ask about."""
    kind = rng.randrange(4)
    if kind == 0:
        return (
            f"The {rng.choice(_TIMES)} was {rng.choice(_ADJECTIVES)} and {rng.choice(_ADJECTIVES)}."
        )
    if kind == 3:
        return rng.choice(_REMARKS)
    subject = rng.choice(_SUBJECTS)
    when = f"That {rng.choice(_TIMES)}, " if kind == 2 else ""
    text = f"{when}{subject} {rng.choice(_DOINGS)}."
    return text[0].upper() + text[1:]


def people(rng: random.Random) -> Iterator[str]:
    """Yield distinct full names in random order; ends after most of some 6,000."""
    num_names = len(FIRST_NAMES) * len(LAST_NAMES)
    seen: set[int] = set()
    while len(seen) < 0.9 * num_names:
        number = rng.randrange(num_names)
        if number in seen:
            continue
        seen.add(number)
        yield f"{FIRST_NAMES[number % len(FIRST_NAMES)]} {LAST_NAMES[number // len(FIRST_NAMES)]}"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text of this module (a byte-pair vocabulary of some 50,000).

    Digits count one each, as most recent tokenizers split them. Kinds correct it by a measured
    ratio; whole prompts then come out within some 8 % of their nominal length.
    """
    digits = sum(map(text.count, "0123456789"))
    return round((len(text) - digits) / CHARACTERS_A_TOKEN + digits) + 1


CHARACTERS_A_TOKEN = 4.2
