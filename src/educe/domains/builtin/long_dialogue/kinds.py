"""Kinds of conversations whose last request only the whole conversation can answer.

Exchanges that are not asked about have the same form as the ones that are.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping

from educe.domains.builtin.long_dialogue.brief import brief
from educe.domains.builtin.long_dialogue.talk import Draft, Exchange, Kind
from educe.domains.builtin.long_document.world import (
    COLOURS,
    GOODS,
    JOBS,
    OBJECTS,
    PARTS,
    PLACES,
    TOWNS,
    people,
)

Rng = random.Random

_NOTED = ("I will remember that.", "Noted.", "I have it.", "That is written down.", "All right.")


def _extension(rng: Rng) -> str:
    return str(rng.randrange(1000, 10_000))


Detail = tuple[str, str, str, Callable[[Rng], str]]
_DETAILS: tuple[Detail, ...] = (
    ("{p} will arrive from {v}.", "From which town will {p} arrive?", "town",
     lambda r: r.choice(TOWNS)),
    ("You reach {p} under the extension {v}.", "Under which extension do I reach {p}?",
     "extension", _extension),
    ("{p} brings the {v}.", "What does {p} bring? Name it with its colour.", "object",
     lambda r: f"{r.choice(COLOURS)} {r.choice(OBJECTS)}"),
    ("We need {p} as the {v}.", "As what do we need {p}?", "job", lambda r: r.choice(JOBS)),
    ("{p} waits in the {v}.", "Where does {p} wait?", "place", lambda r: r.choice(PLACES)),
)  # fmt: skip


def _remembered(rng: Rng, count: int) -> list[tuple[str, Detail, str]]:
    """Return (person, detail, value) to be told.

    Short conversations keep to few details, so that several values compete for each answer.
    """
    details = rng.sample(_DETAILS, 1 if count < 6 else 2 if count < 16 else len(_DETAILS))
    found: list[tuple[str, Detail, str]] = []
    for person in people(rng):
        if len(found) >= count:
            break
        chosen = rng.sample(details, rng.randint(1, min(2, len(details))))
        found += [(person, detail, detail[3](rng)) for detail in chosen]
    rng.shuffle(found)
    return found[:count]


def _told(person: str, detail: Detail, value: str) -> str:
    return detail[0].format(p=person, v=value)


def recall(rng: Rng, count: int) -> Draft:
    """One of many things that the user told."""
    facts = _remembered(rng, count)
    index = rng.randrange(len(facts))
    person, detail, value = facts[index]
    offered = {v for _, d, v in facts if d is detail}
    request = f"{detail[1].format(p=person)} Reply with the {detail[2]} only."
    exchanges = [(_told(*f), rng.choice(_NOTED)) for f in facts]
    return Draft(exchanges, request, value, [index], "items", {"answers": [value]}, len(offered))


def revised(rng: Rng, count: int) -> Draft:
    """The user's wish for a part changes again and again; the last one counts."""
    parts = [f"{colour} {part}" for colour in COLOURS for part in PARTS]
    parts = rng.sample(parts, max(2, count // 3))
    rows = [(rng.choice(parts), rng.randrange(100, 1000)) for _ in range(count)]
    exchanges: list[Exchange] = []
    current: dict[str, int] = {}
    for part, value in rows:
        opening = "Set" if part not in current else rng.choice(("No, rather set", "Now set"))
        exchanges.append((f"{opening} the {part} to {value}.", f"The {part} is at {value}."))
        current[part] = value
    often = [p for p, n in Counter(p for p, _ in rows).items() if n > 1]
    part = rng.choice(often or [rows[0][0]])
    evidence = [i for i, r in enumerate(rows) if r[0] == part]
    request = f"To what is the {part} set now? Reply with the number only."
    gold = str(current[part])
    return Draft(exchanges, request, gold, evidence, "items", {"answers": [gold]}, count)


def who_said(rng: Rng, count: int) -> Draft:
    """User and assistant each name a town for a thing; one of the two is asked for."""
    things = [f"{colour} {goods}" for colour in COLOURS for goods in GOODS]
    things = rng.sample(things, count)
    pairs = [rng.sample(TOWNS, 2) for _ in things]
    exchanges = [
        (f"The {thing}: I would fetch them from {mine}.", f"For the {thing} I suggest {yours}.")
        for thing, (mine, yours) in zip(things, pairs, strict=True)
    ]
    index = rng.randrange(count)
    side = rng.randrange(2)
    who = ("did I first want to fetch", "did you suggest for")[side]
    tail = " from" if side == 0 else ""
    request = f"Which town {who} the {things[index]}{tail}? Reply with the town only."
    gold = pairs[index][side]
    return Draft(
        exchanges, request, gold, [index], "items", {"answers": [gold]},
        len({t for pair in pairs for t in pair}),
    )  # fmt: skip


def ordinal(rng: Rng, count: int) -> Draft:
    """The user asks for words again and again; the assistant's n-th one for a letter is asked."""
    words = [f"{c} {o}" for c in COLOURS for o in OBJECTS]
    names = list(itertools.islice(people(rng), max(2, count // 5)))
    rows = [(rng.choice(names), rng.choice(words)) for _ in range(count)]
    exchanges = [(f"Think of a gift for {p}.", f"A {w}.") for p, w in rows]
    index = rng.randrange(count)
    person = rows[index][0]
    mine = [i for i, r in enumerate(rows) if r[0] == person]
    place = mine.index(index) + 1
    request = (
        f"Which gift was number {place} of those that you thought of for {person}? Reply with the "
        f"gift only."
    )
    gold = rows[index][1]
    return Draft(
        exchanges, request, gold, mine[:place], "items", {"answers": [gold]},
        len({r[1] for r in rows}),
    )  # fmt: skip


_OPENINGS = ("Noted:", "Surely:", "Indeed:", "Gladly:", "Agreed:", "Certainly:", "Fine:", "Well:")


def opening(rng: Rng, count: int) -> Draft:
    """A rule for all replies, changed now and then; the reply to a question must follow the last.

    Between the rules stand facts, one of which is asked for.
    """
    facts = _remembered(rng, max(2, count - max(2, min(6, count // 4))))
    num_rules = max(1, min(6, count // 4, len(facts)))
    # The first rule opens the conversation, the others come before later facts.
    before = [0, *sorted(rng.sample(range(1, len(facts)), num_rules - 1))]
    rule_at = dict(zip(before, rng.sample(_OPENINGS, num_rules), strict=True))
    exchanges: list[Exchange] = []
    openings: list[str] = []
    places: list[int] = []
    current, rule_place = "", 0
    for number, fact in enumerate(facts):
        if number in rule_at:
            current, rule_place = rule_at[number], len(exchanges)
            told = f'From now on begin each reply with "{current}" and nothing before it.'
            exchanges.append((told, "I will."))
            openings.append(current)
        places.append(len(exchanges))
        exchanges.append((_told(*fact), rng.choice(_NOTED)))
        openings.append(current)
    index = rng.randrange(len(facts))
    person, detail, value = facts[index]
    request = f"{detail[1].format(p=person)} Keep to what we agreed on replies."
    offered = {v for _, d, v in facts if d is detail}
    return Draft(
        exchanges, request, f"{current} {value}", [rule_place, places[index]], "opening",
        {"answers": [value], "opening": current}, num_rules * len(offered), openings,
    )  # fmt: skip


KINDS: Mapping[str, Kind] = {
    k.name: k
    for k in (
        Kind("recall", "One of many things that the user told", recall, 36),
        Kind("revised", "The last of several changed wishes", revised, 40, least=2),
        Kind("who-said", "What the user wanted, or the assistant suggested", who_said, 46, least=2),
        Kind("ordinal", "The n-th of several like replies", ordinal, 32, 50),
        Kind("opening", "A fact, under the last of several rules for replies", opening, 38),
        Kind("brief", "A long text that keeps the goal, facts and constraints stated early",
             brief, 48, 330, is_early=True, max_completion_tokens=768,
             lengths=("512", "1k", "2k", "4k", "8k", "16k", "32k")),
    )
}  # fmt: skip
