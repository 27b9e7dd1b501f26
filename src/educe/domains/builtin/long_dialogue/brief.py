"""A brief that is given early and asked for late, as a long text.

The user names a project's goal, facts and constraints; then other projects come up, of the same
form, and one of the facts may be changed. The last request wants the whole plan without saying any
of it again. A plan is judged by ``rewards.outcome.commitments`` over all of its parts.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

from educe.domains.builtin.long_dialogue.talk import Draft, Exchange
from educe.domains.builtin.long_document.world import TOWNS, people

Rng = random.Random

_PROJECTS = (
    "autumn fair", "reading week", "harvest supper", "repair day", "choir evening", "boat parade",
    "winter market", "garden tour", "film night", "village run", "craft weekend", "book auction",
    "open stage", "flower show", "bread festival", "chess day", "bicycle rally", "puppet theatre",
)  # fmt: skip
_GOALS = (
    "a new roof for the library", "a bus for the school", "a well in the lower village",
    "beds for the shelter", "a boat for the rescue crew", "instruments for the youth band",
    "trees along the canal", "a lift in the town hall", "a kitchen for the youth club",
    "lights on the cycle path", "a ramp at the station", "heating in the old mill",
)  # fmt: skip
_REFRAINS = (
    "weather permitting", "as the council wishes", "with all due care", "subject to approval",
    "in good company", "without any hurry", "as agreed", "by common consent",
)  # fmt: skip
_AVOIDED = ("splendid", "cheap", "simply", "basically", "urgent", "stunning", "amazing", "cosy")
_HEADINGS = ("Part", "Stage", "Section", "Chapter", "Step", "Item")
_STEPS = (
    "Helpers open the doors early and sweep the yard.",
    "Tables and benches come from the parish hall and are put up in rows.",
    "A small group looks after parking and shows people the way.",
    "Tea is served all day, and the cups are washed at the back.",
    "The music begins softly and pauses whenever someone speaks.",
    "Children find paper, paint and a quiet corner.",
    "Somebody keeps a list of what was lent, so that it can be returned.",
    "Signs at both entrances say where to find first aid.",
    "The programme hangs on the wall and is read out before each change.",
    "Towards the end the neighbours help to carry everything back.",
    "The local paper is told beforehand and gets a few lines afterwards.",
    "Rubbish is sorted on the spot and taken away the next morning.",
)


@dataclass(frozen=True, slots=True)
class _Project:
    name: str
    town: str
    leader: str
    crowns: int
    guests: int
    goal: str


def brief(rng: Rng, count: int) -> Draft:
    """Write a brief, talk of other projects in ``count - 1`` exchanges, ask for the plan."""
    num_others = max(1, min(len(_GOALS) - 1, (count - 1) // 2))
    own, *others = _projects(rng, 1 + num_others)
    refrain, avoided, heading = (rng.choice(x) for x in (_REFRAINS, _AVOIDED, _HEADINGS))
    exchanges: list[Exchange] = [
        (_brief_text(own, refrain, avoided), "Understood. I will keep to that when the time comes.")
    ]
    exchanges += _other_talk(rng, others, count - 1)
    evidence, first_town = [0], own.town
    if rng.random() < 0.5:
        own, change = _changed(rng, own, others)
        place = rng.randint(2, len(exchanges)) if len(exchanges) > 1 else 1
        exchanges.insert(place, (change, "Then that is how it stands."))
        evidence.append(place)
    is_short = count < 8
    form = {
        "heading": heading,
        "sections": 3 if is_short else rng.randint(3, 6),
        "least_words": 15 if is_short else 30,
    }
    commitments = _commitments(own, others, first_town, refrain, avoided)
    judged = {"form": form, "commitments": commitments, "avoided": avoided}
    return Draft(
        exchanges, _request(own, form), _plan(rng, own, form, refrain), evidence, "commitments",
        judged,
    )  # fmt: skip


def _projects(rng: Rng, count: int) -> list[_Project]:
    names, towns = rng.sample(_PROJECTS, count), rng.sample(TOWNS, count)
    goals = rng.sample(_GOALS, count)
    leaders = list(itertools.islice(people(rng), count))
    crowns = rng.sample(range(1200, 9900, 50), count)
    guests = rng.sample(range(40, 400, 5), count)
    return [_Project(*x) for x in zip(names, towns, leaders, crowns, guests, goals, strict=True)]


def _brief_text(own: _Project, refrain: str, avoided: str) -> str:
    return (
        f"I am planning the {own.name}. It takes place in {own.town}, {own.leader} leads it, the "
        f"budget is {own.crowns} crowns, and {own.guests} guests are invited. All of it is for "
        f"{own.goal}. Later I will ask you for the whole plan. Whatever else comes up, keep to "
        f'this when you write it: each part says "{refrain}", and the word "{avoided}" is never '
        f"used."
    )


def _other_talk(rng: Rng, others: list[_Project], count: int) -> list[Exchange]:
    """Talk of other projects, each with figures of its own."""
    told: list[Exchange] = []
    for other in others:
        told.append(
            (
                f"Somebody else does a {other.name} in {other.town}, with {other.guests} guests.",
                f"A {other.name} in {other.town}, that is a different matter.",
            )
        )
        told.append(
            (
                f"{other.leader} has {other.crowns} crowns for that {other.name}, and wants "
                f"{other.goal}.",
                f"So {other.leader} collects for {other.goal}.",
            )
        )
    head, rest = told[:2], told[2:]
    rng.shuffle(rest)
    return (head + rest)[: max(1, count)]


def _changed(rng: Rng, own: _Project, others: list[_Project]) -> tuple[_Project, str]:
    """Return the project with one fact changed, and how the user says so."""
    taken = {own.town, *(o.town for o in others)}
    town = rng.choice([t for t in TOWNS if t not in taken])
    crowns = own.crowns + 50 * rng.randint(3, 20)
    guests = own.guests + 5 * rng.randint(2, 20)
    changes = {
        "town": (town, f"it will be in {town} and no longer in {own.town}"),
        "crowns": (crowns, f"the budget is {crowns} crowns now"),
        "guests": (guests, f"{guests} guests are invited now"),
    }
    name = rng.choice(sorted(changes))
    value, said = changes[name]
    fields = {f: getattr(own, f) for f in own.__slots__}
    return _Project(**{**fields, name: value}), f"About my own {own.name}: {said}."


def _commitments(
    own: _Project, others: list[_Project], first_town: str, refrain: str, avoided: str
) -> list[dict[str, Any]]:
    towns = sorted({first_town, *(o.town for o in others)} - {own.town})
    return [
        {"name": "place", "role": "fact", "says": own.town, "where": "any", "instead": towns},
        {
            "name": "leader", "role": "fact", "says": own.leader, "where": "any",
            "instead": [o.leader for o in others],
        },
        {"name": "budget", "role": "fact", "number": own.crowns, "unit": "crowns"},
        {"name": "guests", "role": "fact", "number": own.guests, "unit": "guests"},
        {"name": "refrain", "role": "constraint", "says": refrain, "where": "each"},
        {"name": "avoided", "role": "constraint", "says": avoided, "where": "nowhere"},
        {
            "name": "goal", "role": "goal", "says": own.goal, "where": "last",
            "instead": [o.goal for o in others],
        },
    ]  # fmt: skip


def _request(own: _Project, form: dict[str, Any]) -> str:
    count, heading = form["sections"], form["heading"]
    return (
        f"Now write the whole plan of my {own.name} as it stands, in {count} parts that begin with "
        f'"{heading} 1:" to "{heading} {count}:", each on a new line. Each part has at least '
        f"{form['least_words']} words. Name the place, who leads it, the budget in crowns and the "
        f"number of guests; the last part ends with what all of it is for. Keep to what we agreed."
    )


def _plan(rng: Rng, own: _Project, form: dict[str, Any], refrain: str) -> str:
    """Return a plan that keeps everything: facts dealt to the parts, steps until they are long."""
    count, least = form["sections"], form["least_words"] + 2
    facts = [
        f"The {own.name} takes place in {own.town}, {refrain}.",
        f"{own.leader} leads it.",
        f"The budget is {own.crowns} crowns.",
        f"There are {own.guests} guests.",
    ]
    steps = itertools.cycle(rng.sample(_STEPS, len(_STEPS)))
    parts: list[list[str]] = [[] for _ in range(count)]
    for number, fact in enumerate(facts):
        parts[number % count].append(fact)
    for number, part in enumerate(parts):
        if number:
            part.append(f"All goes ahead {refrain}.")
        while len(" ".join(part).split()) < least:
            part.append(next(steps))
    parts[-1].append(f"All of it is for {own.goal}.")
    return "\n".join(f"{form['heading']} {i}: {' '.join(p)}" for i, p in enumerate(parts, 1))
