"""Kinds of documents: each writes statements of one form and asks about some of them.

A kind gets a generator and the number of statements to write. Statements that are not asked about
have the same form as the ones that are, keys are unique, and there are no ties by construction.
"""

from __future__ import annotations

import itertools
import random
import string
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from educe.domains.builtin.long_document.world import (
    COLOURS,
    GOODS,
    JOBS,
    OBJECTS,
    PARTS,
    TOWNS,
    people,
)

Rng = random.Random

ABSTENTIONS = 0.4
"""Share of unanswerable questions where there are any: what always abstaining earns."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Statements with one question about them.

    Attributes:
        statements: in document order.
        question: what is asked.
        answers: the exact set that is right; one number for ``check = "number"``.
        evidence: indices of the statements that decide the answer.
        candidates: how many answers of the right type the document offers, for the chance level; 0
            where none of them is right.
        check: ``items`` or ``number``.
        reply: what the reply should be, for the prompt.
    """

    statements: list[str]
    question: str
    answers: list[str]
    evidence: list[int]
    candidates: int
    check: str = "items"
    reply: str = "answer"


@dataclass(frozen=True, slots=True)
class Kind:
    """A generator of drafts.

    ``tokens`` is what one statement takes on average by ``estimate_tokens``; ``token_ratio`` is
    what SmolLM2's tokenizer gave for whole documents, divided by that estimate.
    """

    name: str
    description: str
    title: str
    write: Callable[[Rng, int], Draft]
    tokens: int
    token_ratio: float
    is_listing: bool = False
    abstains: bool = False


# ---------------------------------------------------------------- facts about people


def _code(rng: Rng) -> str:
    return str(rng.randrange(1000, 10_000))


Relation = tuple[str, str, str, Callable[[Rng], str]]
_RELATIONS: tuple[Relation, ...] = (
    ("{p} lives in {v}.", "In which town does {p} live?", "town", lambda r: r.choice(TOWNS)),
    ("{p} works as a {v}.", "What is the job of {p}?", "job", lambda r: r.choice(JOBS)),
    ("The locker of {p} has the code {v}.", "What is the code of {p}'s locker?", "code", _code),
    ("{p} was born in {v}.", "In which town was {p} born?", "town", lambda r: r.choice(TOWNS)),
    (
        "{p} owns a {v}.",
        "Which object, with its colour, does {p} own?",
        "object",
        lambda r: f"{r.choice(COLOURS)} {r.choice(OBJECTS)}",
    ),
)


def _facts(rng: Rng, count: int) -> list[tuple[str, Relation, str]]:
    """Return (person, relation, value); a person has one to three of the relations.

    Short documents keep to two relations, so that several values compete for each answer.
    """
    relations = rng.sample(_RELATIONS, 2 if count < 16 else len(_RELATIONS))
    found: list[tuple[str, Relation, str]] = []
    for person in people(rng):
        chosen = rng.sample(relations, rng.randint(1, min(3, len(relations) - 1)))
        found += [(person, relation, relation[3](rng)) for relation in chosen]
        if len(found) >= count:
            break
    rng.shuffle(found)
    return found[:count]


def fact(rng: Rng, count: int) -> Draft:
    facts = _facts(rng, count)
    index = rng.randrange(len(facts))
    person, relation, value = facts[index]
    same = {v for _, r, v in facts if r[2] == relation[2]}
    texts = [r[0].format(p=p, v=v) for p, r, v in facts]
    return Draft(
        texts, relation[1].format(p=person), [value], [index], len(same), reply=relation[2]
    )


def not_stated(rng: Rng, count: int) -> Draft:
    """A share of the questions asks for what the document does not say about a named person."""
    if rng.random() >= ABSTENTIONS:
        return fact(rng, count)
    facts = _facts(rng, count)
    person = rng.choice(facts)[0]
    known = {r[1] for p, r, _ in facts if p == person}
    missing = [r for r in _RELATIONS if r[1] not in known]
    relation = rng.choice(missing)
    texts = [r[0].format(p=p, v=v) for p, r, v in facts]
    return Draft(texts, relation[1].format(p=person), ["not stated"], [], 0, reply=relation[2])


def group(rng: Rng, count: int) -> Draft:
    """All people of one cabin, two to four; the other cabins are as full."""
    names = list(itertools.islice(people(rng), count))
    cabins = rng.sample(range(100, 10_000), max(2, count // 3))
    homes = [cabins[i % len(cabins)] for i in range(count)]
    rng.shuffle(homes)
    asked = rng.choice(cabins)
    evidence = [i for i, cabin in enumerate(homes) if cabin == asked]
    texts = [f"{p} sleeps in cabin {c}." for p, c in zip(names, homes, strict=True)]
    question = f"Who sleeps in cabin {asked}? Name everyone."
    answers = [names[i] for i in evidence]
    return Draft(texts, question, answers, evidence, count, reply="names, separated by commas")


_INFERENCES = (
    ("{p} never eats meat.", "Who is a vegetarian?"),
    ("{p} cannot hear a thing.", "Who is deaf?"),
    ("{p} is paid for flying passengers across the ocean.", "Who is a pilot?"),
    ("{p} sold the car and goes everywhere by bicycle.", "Who is a cyclist?"),
    ("{p} won the first prize at the chess tournament.", "Who is good at a board game?"),
    ("{p} has not slept for two nights.", "Who must be tired?"),
    ("{p} broke a leg on the stairs.", "Who needs crutches?"),
    ("{p} was the only one to come late.", "Who was not punctual?"),
    ("{p} gave all savings to the orphanage.", "Who is generous?"),
    ("{p} talks to three cats all day.", "Who keeps pets?"),
    ("{p} is afraid of high towers.", "Who would avoid a climb?"),
    ("{p} has a brother born in the same hour.", "Who is a twin?"),
    ("{p} swam across the lake before breakfast.", "Who is an athlete?"),
    ("{p} owes the bank a large sum.", "Who is in debt?"),
    ("{p} wrote two novels.", "Who is an author?"),
    ("{p} plays the organ in church on Sundays.", "Who is a musician?"),
    ("{p} planted four hundred roses.", "Who likes gardening?"),
    ("{p} speaks five languages.", "Who could interpret for foreigners?"),
    ("{p} set a broken arm at the clinic.", "Who has medical skills?"),
    ("{p} was locked up for theft.", "Who went to prison?"),
)


def inference(rng: Rng, count: int) -> Draft:
    """Question and evidence share no word; the other statements are plain facts or other pairs."""
    names = people(rng)
    num_pairs = min(len(_INFERENCES), max(2, count // 2))
    pairs = rng.sample(_INFERENCES, num_pairs)
    texts = [statement.format(p=next(names)) for statement, _ in pairs]
    owner = texts[0].split(" ")[:2]
    for _ in range(count - num_pairs):
        relation = rng.choice(_RELATIONS)
        texts.append(relation[0].format(p=next(names), v=relation[3](rng)))
    order = list(range(len(texts)))
    rng.shuffle(order)
    shuffled = [texts[i] for i in order]
    question = pairs[0][1]
    return Draft(shuffled, question, [" ".join(owner)], [order.index(0)], len(texts), reply="name")


def hops(rng: Rng, count: int) -> Draft:
    """person -> team -> house -> town: two statements to join in short documents, else three."""
    num_teams = max(2, count // 4)
    num_people = max(2, count - 2 * num_teams)
    teams = [f"team {c}{n}" for c in string.ascii_uppercase for n in range(1, 40)]
    teams = rng.sample(teams, num_teams)
    houses = rng.sample([f"house {n}" for n in range(10, 1000)], num_teams)
    towns = [rng.choice(TOWNS) for _ in teams]
    names = list(itertools.islice(people(rng), num_people))
    member = [rng.randrange(num_teams) for _ in names]
    texts = [f"{p} belongs to {teams[t]}." for p, t in zip(names, member, strict=True)]
    texts += [f"{t[0].upper()}{t[1:]} meets in {h}." for t, h in zip(teams, houses, strict=True)]
    texts += [f"{h[0].upper()}{h[1:]} stands in {t}." for h, t in zip(houses, towns, strict=True)]
    asked = rng.randrange(num_people)
    team = member[asked]
    used = [asked, num_people + team]
    if rng.random() < 0.5:
        question, answer = f"In which house does the team of {names[asked]} meet?", houses[team]
    else:
        question = f"In which town does the team of {names[asked]} meet?"
        answer, used = towns[team], [*used, num_people + num_teams + team]
    order = list(range(len(texts)))
    rng.shuffle(order)
    evidence = sorted(order.index(u) for u in used)
    reply = "house, as in 'house 12'" if answer == houses[team] else "town"
    return Draft([texts[i] for i in order], question, [answer], evidence, num_teams, reply=reply)


# ---------------------------------------------------------------- ledgers


def _ledger(rng: Rng, count: int) -> tuple[list[str], list[tuple[str, int, str]]]:
    """Return entries as text and as (person, number, goods), few people with many entries."""
    buyers = list(itertools.islice(people(rng), max(3, min(40, count // 4))))
    goods = rng.sample(GOODS, max(1, min(len(GOODS), count // 6)))
    rows = [(rng.choice(buyers), rng.randint(2, 60), rng.choice(goods)) for _ in range(count)]
    days = sorted(rng.randrange(1, 366) for _ in rows)
    texts = [f"Day {d}: {p} bought {n} {g}." for d, (p, n, g) in zip(days, rows, strict=True)]
    return texts, rows


def count_entries(rng: Rng, count: int) -> Draft:
    texts, rows = _ledger(rng, count)
    person = rng.choice(rows)[0]
    evidence = [i for i, r in enumerate(rows) if r[0] == person]
    question = f"How many entries are there for {person}?"
    answers = [str(len(evidence))]
    return Draft(texts, question, answers, evidence, count, "number", "number")


def total(rng: Rng, count: int) -> Draft:
    texts, rows = _ledger(rng, count)
    person, _, goods = rng.choice(rows)
    evidence = [i for i, r in enumerate(rows) if r[0] == person and r[2] == goods]
    answer = sum(rows[i][1] for i in evidence)
    question = f"How many {goods} did {person} buy in all?"
    return Draft(texts, question, [str(answer)], evidence, count, "number", "number")


def top(rng: Rng, count: int) -> Draft:
    texts, rows = _ledger(rng, count)
    goods = rng.choice(rows)[2]
    sums: Counter[str] = Counter()
    for person, number, what in rows:
        sums[person] += number if what == goods else 0
    ranked = sums.most_common()
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return top(rng, count)
    evidence = [i for i, r in enumerate(rows) if r[2] == goods]
    question = f"Who bought the most {goods} in all?"
    buyers = len({p for p, _, what in rows if what == goods})
    return Draft(texts, question, [ranked[0][0]], evidence, buyers, reply="name")


# ---------------------------------------------------------------- logs and notes, order matters


def update(rng: Rng, count: int) -> Draft:
    """Settings change again and again; the last value of one is asked."""
    devices = [f"{p} {c}{n}" for p in PARTS for c in "ABCDEFGH" for n in range(1, 10)]
    devices = rng.sample(devices, max(2, min(len(devices), count // 3)))
    rows = [(rng.choice(devices), rng.randrange(10, 1000)) for _ in range(count)]
    minutes = sorted(rng.sample(range(24 * 60 * 7), count))
    texts = [
        f"{m % 1440 // 60:02d}:{m % 60:02d} The {d} was set to {v}."
        for m, (d, v) in zip(minutes, rows, strict=True)
    ]
    changed = [d for d, n in Counter(d for d, _ in rows).items() if n > 1]
    device = rng.choice(changed or [rows[0][0]])
    evidence = [i for i, r in enumerate(rows) if r[0] == device]
    question = f"To which value was the {device} set last?"
    return Draft(texts, question, [str(rows[evidence[-1]][1])], evidence, count, "number", "number")


_TOPICS = tuple(
    f"{verb} {thing}"
    for verb in ("asked about", "reported on", "praised", "complained about", "explained")
    for thing in ("the roof", "the budget", "the garden", "the fair", "the rules", "the library",
                  "the road", "the choir", "the kitchen", "the water bill", "the school trip")
)  # fmt: skip


def order(rng: Rng, count: int) -> Draft:
    """Speakers of a meeting, each once; who came directly before or after one of them."""
    speakers = list(itertools.islice(people(rng), count))
    texts = [f"{'Then ' if i else ''}{p} {rng.choice(_TOPICS)}." for i, p in enumerate(speakers)]
    index = rng.randrange(1, count - 1)
    is_after = rng.random() < 0.5
    other = index + 1 if is_after else index - 1
    word = "after" if is_after else "before"
    question = f"Who spoke directly {word} {speakers[index]}?"
    evidence = sorted((index, other))
    return Draft(texts, question, [speakers[other]], evidence, count - 1, reply="name")


def ordinal(rng: Rng, count: int) -> Draft:
    """Several messages of the same form by each person; the n-th one is asked."""
    writers = list(itertools.islice(people(rng), max(2, count // 5)))
    rows = [(rng.choice(writers), rng.choice(OBJECTS)) for _ in range(count)]
    texts = [f'{p} sent the word "{w}".' for p, w in rows]
    index = rng.randrange(count)
    person = rows[index][0]
    mine = [i for i, r in enumerate(rows) if r[0] == person]
    place = mine.index(index) + 1
    name = {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")
    if place > 20 and place % 10 in (1, 2, 3) and place % 100 not in (11, 12, 13):
        name = f"{place}{('st', 'nd', 'rd')[place % 10 - 1]}"
    question = f"Which word did {person} send in the {name} message by {person}?"
    offered = len({r[1] for r in rows})
    return Draft(texts, question, [rows[index][1]], mine[:place], offered, reply="word")


# ---------------------------------------------------------------- keys, manuals, variables


def near_keys(rng: Rng, count: int) -> Draft:
    """Keys that differ in one place, among nothing but the like."""
    alphabet = string.ascii_uppercase + string.digits
    root = "".join(rng.choice(alphabet) for _ in range(6))
    ordered, keys = [root], {root}
    while len(ordered) < count:
        near = list(rng.choice(ordered))
        near[rng.randrange(6)] = rng.choice(alphabet)
        key = "".join(near)
        if key not in keys:
            keys.add(key)
            ordered.append(key)
    rng.shuffle(ordered)
    values = rng.sample(range(10_000, 100_000), count)
    texts = [f"Box {k} holds the number {v}." for k, v in zip(ordered, values, strict=True)]
    index = rng.randrange(count)
    question = f"Which number does box {ordered[index]} hold?"
    return Draft(texts, question, [str(values[index])], [index], count, "number", "number")


def manual(rng: Rng, count: int) -> Draft:
    """Numbered sections with a value each, some referring to another section."""
    things = [f"{c} {p}" for c in COLOURS for p in PARTS]
    sides = ("upper", "lower", "left", "right", "front", "rear")
    things = rng.sample([f"{s} {t}" for s in sides for t in things], count)
    values = rng.sample(range(100, 10_000), count)
    refers = [rng.choice([j for j in range(count) if j != i]) for i in range(count)]
    texts = [
        f"Section {i + 1}. The {t} is tightened to {v} units. See also section {r + 1}."
        for i, (t, v, r) in enumerate(zip(things, values, refers, strict=True))
    ]
    index = rng.randrange(count)
    kind = rng.randrange(3)
    if kind == 0:
        question, answer = f"To how many units is the {things[index]} tightened?", values[index]
    elif kind == 1:
        question, answer = f"Which section describes the {things[index]}?", index + 1
    else:
        question = (
            f"To how many units is the part tightened whose section the section about the "
            f"{things[index]} refers to?"
        )
        answer = values[refers[index]]
    evidence = sorted({index, refers[index]}) if kind == 2 else [index]
    return Draft(texts, question, [str(answer)], evidence, count, "number", "number")


def variables(rng: Rng, count: int) -> Draft:
    """Chains of copies with later changes; which names hold a value at the end."""
    names = ["".join(c) for c in itertools.product("BCDFGKLMNP", "AEIOU", "RSTVXZ")]
    names = rng.sample(names, max(4, min(len(names), count * 2 // 3)))
    state: dict[str, str] = {}
    texts: list[str] = []
    touched: list[str] = []
    values = iter(rng.sample(range(10_000, 100_000), count + 1))
    for _ in range(count):
        name = rng.choice(names)
        source = rng.choice([n for n in state if n != name] or [""])
        if source and rng.random() < 0.6:
            state[name] = state[source]
            texts.append(f"{name} takes the value of {source}.")
        else:
            state[name] = str(next(values))
            texts.append(f"{name} becomes {state[name]}.")
        touched.append(name)
    held = Counter(state.values())
    shared = sorted(v for v, n in held.items() if 2 <= n <= 6) or sorted(held)
    value = rng.choice(shared)
    answers = sorted(n for n, v in state.items() if v == value)
    question = f"Which names hold the value {value} at the end? List all of them."
    last = {n: i for i, n in enumerate(touched)}
    evidence = sorted(last[n] for n in answers)
    return Draft(texts, question, answers, evidence, len(state), reply="names, separated by commas")


KINDS: Mapping[str, Kind] = {
    k.name: k
    for k in (
        Kind("fact", "One fact about one person", "Notes on the members", fact, 13, 1.12),
        Kind("not-stated", "Facts, some of which the document does not give",
             "Notes on the members", not_stated, 13, 1.12, abstains=True),
        Kind("group", "All members of a group", "List of residents", group, 10, 1.21),
        Kind("inference", "Evidence that shares no word with the question",
             "From the village chronicle", inference, 13, 1.1),
        Kind("hops", "Facts to be joined", "Who meets where", hops, 12, 1.09),
        Kind("count", "Count entries", "Ledger", count_entries, 18, 1.18, True),
        Kind("total", "Add up entries", "Ledger", total, 18, 1.19, True),
        Kind("top", "The largest sum over entries", "Ledger", top, 18, 1.18, True),
        Kind("update", "The last of several updates", "Log", update, 20, 1.16, True),
        Kind("order", "Who came before or after", "Minutes of the meeting", order, 13, 0.97),
        Kind("ordinal", "The n-th of several like messages", "Messages", ordinal, 13, 1.22, True),
        Kind("near-keys", "One key among keys that differ in one character", "Inventory",
             near_keys, 18, 1.2, True),
        Kind("manual", "Sections, values and references", "Service manual", manual, 28, 1.07, True),
        Kind("variables", "Which names hold a value after copies and changes", "Assignments",
             variables, 13, 1.2, True),
    )
}  # fmt: skip
