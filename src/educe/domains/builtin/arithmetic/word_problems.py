"""Stories with one, two or three steps; names, things and wordings vary.

Level ``tiny`` and ``easy`` take one step (numbers up to 10, up to 100), ``medium`` two, ``hard``
three with a sentence that does not matter. A template gives every level; no two levels share one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from educe.core.seeds import derive
from educe.domains.builtin.arithmetic.family import Family, Problem


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _list(
    "Mia Omar Lena Tom Aisha Ben Sofia Raj Emma Luca Nina Kofi Ana Ivan Zoe Hugo Priya Jack Maya "
    "Leo Chen Ruth Noah Ines Tariq Eva Sam Yuki Paul Greta Amir Rosa Finn Laila Max Olga Juan Kim "
    "Vera Abel"
)
THINGS = _list(
    "apples stickers marbles books pencils coins shells cards buttons cookies stamps pears beads "
    "crayons balloons oranges plums keys badges tickets"
)
BOXES = _list("boxes bags jars baskets crates drawers shelves packets")
ANIMALS = (
    (("hens", 2), ("cows", 4)),
    (("ducks", 2), ("dogs", 4)),
    (("birds", 2), ("ants", 6)),
    (("geese", 2), ("goats", 4)),
    (("owls", 2), ("horses", 4)),
    (("swans", 2), ("spiders", 8)),
    (("parrots", 2), ("cats", 4)),
    (("turkeys", 2), ("beetles", 6)),
)
FILLERS = (
    "{name} is {n} years old.",
    "The bus ride takes {n} minutes.",
    "There are {n} chairs in the room.",
    "{name} owns {n} hats.",
    "The shop opened {n} years ago.",
    "It is {n} degrees outside.",
)


@dataclass(slots=True)
class Story:
    """Draws for one problem, and the steps of its solution as they are worked out."""

    rng: random.Random
    level: str
    lines: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return self.rng.sample(NAMES, 3)

    @property
    def thing(self) -> str:
        return self.rng.choice(THINGS)

    def number(self, low: int = 2, scale: float = 1.0) -> int:
        """A number that suits the level: up to 10, 100, 60 or 200 times the scale."""
        top = {"tiny": 10, "easy": 99, "medium": 60, "hard": 200}[self.level]
        return self.rng.randint(low, max(low + 3, int(top * scale)))

    def factor(self) -> int:
        return self.rng.randint(2, {"tiny": 5, "easy": 9, "medium": 9, "hard": 15}[self.level])

    def step(self, text: str, value: int) -> int:
        self.lines.append(f"{text} = {value}")
        return value

    def tell(self, sentences: str, question: str, answer: int) -> Problem:
        """Finish; hard stories get a sentence that does not matter before the question."""
        if self.level == "hard":
            filler = self.rng.choice(FILLERS)
            sentences += " " + filler.format(name=self.rng.choice(NAMES), n=self.rng.randint(3, 60))
        return Problem(f"{sentences} {question}", str(answer), "\n".join(self.lines))

    def say(self, key: object, *phrases: str) -> str:
        """Pick a wording by the numbers of the story, so that one story has one wording."""
        return phrases[derive("word-problem", key) % len(phrases)]


def gain(s: Story) -> Problem:
    (a, b, _), t, x, y = s.names, s.thing, s.number(), s.number()
    text = s.say(
        (x, y), f"{a} has {x} {t}.", f"{a} owns {x} {t}.", f"There are {x} {t} in {a}'s bag."
    )
    text += s.say(
        (y, x), f" {b} gives {a} {y} more.", f" Then {a} finds {y} more.", f" {a} buys {y} more."
    )
    total = s.step(f"{x} + {y}", x + y)
    if s.level in {"medium", "hard"}:
        z = s.rng.randint(1, total - 1)
        text += f" Later {a} loses {z} of them."
        total = s.step(f"{total} - {z}", total - z)
    if s.level == "hard":
        k = s.factor()
        text += f" {b} has {k} times as many {t} as {a} has then."
        return s.tell(text, f"How many {t} does {b} have?", s.step(f"{total} × {k}", total * k))
    return s.tell(text, f"How many {t} does {a} have now?", total)


def loss(s: Story) -> Problem:
    (a, b, c), t, y, rest = s.names, s.thing, s.number(1), s.number(1)
    x = y + rest
    text = f"{a} has {x} {t}. " + s.say(
        (x, y), f"{a} gives {y} to {b}.", f"{a} loses {y} of them.", f"{b} takes {y} of them."
    )
    left = s.step(f"{x} - {y}", rest)
    if s.level in {"medium", "hard"}:
        z = s.number()
        text += f" {c} brings {z} new ones for {a}."
        left = s.step(f"{left} + {z}", left + z)
    if s.level == "hard":
        w = s.rng.randint(1, left)
        text += f" At night {a} throws {w} broken ones away."
        left = s.step(f"{left} - {w}", left - w)
    return s.tell(text, f"How many {t} does {a} have left?", left)


def groups(s: Story) -> Problem:
    a, t, box = s.names[0], s.thing, s.rng.choice(BOXES)
    n, k = s.factor() + s.rng.randint(0, 4), s.number(2, 0.6)
    text = s.say(
        (n, k),
        f"{a} has {n} {box} with {k} {t} in each.",
        f"{a} fills {n} {box}. Each holds {k} {t}.",
    )
    total = s.step(f"{n} × {k}", n * k)
    if s.level in {"medium", "hard"}:
        extra = s.number()
        text += f" {extra} more {t} lie on the table."
        total = s.step(f"{total} + {extra}", total + extra)
    if s.level == "hard":
        gone = s.rng.randint(1, total - 1)
        text += f" {gone} of all the {t} are sold."
        total = s.step(f"{total} - {gone}", total - gone)
    return s.tell(
        text,
        f"How many {t} are there in all?" if s.level != "hard" else f"How many {t} are left?",
        total,
    )


def sharing(s: Story) -> Problem:
    a, t, n, each = s.names[0], s.thing, s.factor(), s.number(1, 0.5)
    total = n * each
    text = s.say(
        total,
        f"{a} shares {total} {t} equally among {n} friends.",
        f"{n} children split {total} {t} evenly.",
    )
    share = s.step(f"{total} ÷ {n}", each)
    if s.level == "tiny" or s.level == "easy":
        return s.tell(text, f"How many {t} does each one get?", share)
    more = s.number()
    text += f" Each one already had {more} {t}."
    share = s.step(f"{share} + {more}", share + more)
    if s.level == "hard":
        price = s.factor()
        text += f" One of them sells all of these for {price} cents apiece."
        return s.tell(text, "How many cents is that?", s.step(f"{share} × {price}", share * price))
    return s.tell(text, f"How many {t} does each one have now?", share)


def leftover(s: Story) -> Problem:
    a, t, size, full = s.names[0], s.thing, s.factor() + 2, s.number(1, 0.3)
    rest = s.rng.randrange(0, size)
    total = size * full + rest
    text = f"{a} packs {total} {t} into boxes of {size}."
    s.step(f"{size} × {full}", size * full)
    s.step(f"{total} - {size * full}", rest)
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many {t} are left over when no more box can be filled?", rest)
    price = s.factor()
    earned = s.step(f"{full} × {price}", full * price)
    text += f" Full boxes are sold for {price} dollars each."
    if s.level == "medium":
        return s.tell(text, "How many dollars do the full boxes bring?", earned)
    text += " Every one that is left over is sold for 1 dollar."
    return s.tell(
        text, "How many dollars come in altogether?", s.step(f"{earned} + {rest}", earned + rest)
    )


def shopping(s: Story) -> Problem:
    a, t, n, price = s.names[0], s.thing, s.factor(), s.number(2, 0.4)
    cost = s.step(f"{n} × {price}", n * price)
    text = s.say(
        (n, price),
        f"{a} buys {n} {t} at {price} dollars each.",
        f"The {t} cost {price} dollars each. {a} buys {n}.",
    )
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many dollars does {a} pay?", cost)
    if s.level == "hard":
        m, other = s.factor(), s.number(2, 0.2)
        text += f" {a} also buys {m} cups at {other} dollars each."
        extra = s.step(f"{m} × {other}", m * other)
        cost = s.step(f"{cost} + {extra}", cost + extra)
    change = s.rng.randint(1, 40)
    text += f" {a} hands over {cost + change} dollars."
    return s.tell(
        text, f"How many dollars does {a} get back?", s.step(f"{cost + change} - {cost}", change)
    )


def ages(s: Story) -> Problem:
    (a, b, c), x, d = s.names, s.number(4), s.rng.randint(2, 12)
    is_older = s.rng.random() < 0.5 or x <= d
    y = s.step(f"{x} {'+' if is_older else '-'} {d}", x + d if is_older else x - d)
    text = f"{a} is {x} years old. {b} is {d} years {'older' if is_older else 'younger'} than {a}."
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How old is {b}?", y)
    k = s.rng.randint(2, 4)
    text += f" {c} is {k} times as old as {b}."
    z = s.step(f"{y} × {k}", y * k)
    if s.level == "medium":
        return s.tell(text, f"How old is {c}?", z)
    later = s.rng.randint(2, 20)
    s.step(f"{x} + {z}", x + z)
    total = s.step(f"{x + z} + 2 × {later}", x + z + 2 * later)
    return s.tell(text, f"How old will {a} and {c} be together in {later} years?", total)


def comparison(s: Story) -> Problem:
    (a, b, c), t, x, d = s.names, s.thing, s.number(2), s.number(1)
    is_more = s.rng.random() < 0.5 or x <= d
    y = s.step(f"{x} {'+' if is_more else '-'} {d}", x + d if is_more else x - d)
    text = f"{a} has {x} {t}. {b} has {d} {'more' if is_more else 'fewer'} {t} than {a}."
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many {t} does {b} have?", y)
    total = s.step(f"{x} + {y}", x + y)
    if s.level == "medium":
        return s.tell(text, f"How many {t} do {a} and {b} have together?", total)
    k = s.factor()
    text += f" {c} has {k} times as many {t} as {a} and {b} together."
    return s.tell(text, f"How many {t} does {c} have?", s.step(f"{total} × {k}", total * k))


def travel(s: Story) -> Problem:
    a, hours, speed = s.names[0], s.rng.randint(2, 9), s.number(3)
    vehicle = s.rng.choice(("train", "bus", "boat", "truck", "bike"))
    distance = s.step(f"{speed} × {hours}", speed * hours)
    text = f"A {vehicle} goes {speed} km in one hour."
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many km does it go in {hours} hours?", distance)
    more, slower = s.rng.randint(2, 9), s.number(2)
    text += f" {a} rides it for {hours} hours and then walks {slower} km."
    total = s.step(f"{distance} + {slower}", distance + slower)
    if s.level == "medium":
        return s.tell(text, f"How many km does {a} travel in all?", total)
    text += f" {a} makes the whole trip {more} times."
    return s.tell(text, "How many km is that in all?", s.step(f"{total} × {more}", total * more))


def rates(s: Story) -> Problem:
    a, pages, days = s.names[0], s.number(2), s.factor()
    verb = s.rng.choice(("reads {} pages", "paints {} tiles", "folds {} letters", "bakes {} rolls"))
    text = f"{a} {verb.format(pages)} a day."
    total = s.step(f"{pages} × {days}", pages * days)
    noun = verb.split()[-1]
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many {noun} is that in {days} days?", total)
    extra, more = s.number(1), s.factor()
    text += f" {a} works for {days} days, and on {more} further days does {extra} a day."
    second = s.step(f"{extra} × {more}", extra * more)
    done = s.step(f"{total} + {second}", total + second)
    if s.level == "medium":
        return s.tell(text, f"How many {noun} is that in all?", done)
    goal = done + s.number(5)
    text += f" The goal is {goal}."
    return s.tell(
        text, f"How many {noun} are still missing?", s.step(f"{goal} - {done}", goal - done)
    )


def part_of(s: Story) -> Problem:
    (a, b, _), t = s.names, s.thing
    word, by = s.rng.choice((("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5)))
    part = s.number(1, 0.6)
    total = by * part
    text = s.say(
        total,
        f"{a} has {total} {t} and gives {word} of them to {b}.",
        f"{b} gets {word} of {a}'s {total} {t}.",
    )
    s.step(f"{total} ÷ {by}", part)
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many {t} does {b} get?", part)
    rest = s.step(f"{total} - {part}", total - part)
    if s.level == "medium":
        return s.tell(text, f"How many {t} does {a} keep?", rest)
    gone = s.rng.randint(0, rest)
    text += f" Then {a} sells {gone} of those left and buys twice as many new ones."
    s.step(f"{rest} - {gone}", rest - gone)
    now = s.step(f"{rest - gone} + 2 × {gone}", rest + gone)
    return s.tell(text, f"How many {t} does {a} have now?", now)


def discount(s: Story) -> Problem:
    a, thing = s.names[0], s.rng.choice(("coat", "lamp", "radio", "bike", "table", "phone", "bag"))
    p = s.rng.choice(
        (10, 20, 25, 50) if s.level in {"tiny", "easy"} else (5, 10, 15, 20, 30, 40, 60)
    )
    price = 20 * s.rng.randint(1, {"tiny": 10, "easy": 40, "medium": 50, "hard": 120}[s.level])
    off = s.step(f"{p} × {price} ÷ 100", p * price // 100)
    text = f"A {thing} costs {price} dollars. Its price falls by {p}%."
    if s.level == "tiny":
        return s.tell(text, "By how many dollars does it fall?", off)
    new = s.step(f"{price} - {off}", price - off)
    if s.level == "easy":
        return s.tell(text, "What is the new price in dollars?", new)
    n = s.factor()
    cost = s.step(f"{new} × {n}", new * n)
    text += f" {a} buys {n} of them at the new price."
    if s.level == "medium":
        return s.tell(text, "How many dollars does that cost?", cost)
    paid = cost + s.rng.randint(1, 99)
    text += f" {a} pays with {paid} dollars."
    return s.tell(text, "How many dollars come back?", s.step(f"{paid} - {cost}", paid - cost))


def rectangle(s: Story) -> Problem:
    a, long, wide = s.names[0], s.number(3), s.number(2)
    place = s.rng.choice(("garden", "field", "room", "yard", "poster"))
    text = f"A rectangular {place} is {long} m long and {wide} m wide."
    if s.level == "tiny" or (s.level == "easy" and s.rng.random() < 0.5):
        s.step(f"{long} + {wide}", long + wide)
        around = s.step(f"2 × {long + wide}", 2 * (long + wide))
        return s.tell(text, "How many metres is it around?", around)
    area = s.step(f"{long} × {wide}", long * wide)
    if s.level == "easy":
        return s.tell(text, "What is its area in square metres?", area)
    side = s.rng.randint(1, min(long, wide))
    text += f" A square of {side} m by {side} m in it is covered."
    free = s.step(f"{area} - {side * side}", area - side * side)
    if s.level == "medium":
        return s.tell(text, "How many square metres stay free?", free)
    price = s.factor()
    text += f" {a} pays {price} dollars for each free square metre."
    return s.tell(text, "How many dollars is that?", s.step(f"{free} × {price}", free * price))


def average(s: Story) -> Problem:
    count = {"tiny": 2, "easy": 3, "medium": 4, "hard": 5}[s.level]
    mean = s.number(6)
    offsets = [s.rng.randint(-5, 5) for _ in range(count - 1)]
    values = [max(0, mean + o) for o in offsets]
    last = mean * count - sum(values)
    if last < 0:
        return average(s)
    values.append(last)
    a, shown = s.names[0], ", ".join(map(str, values[:-1])) + f" and {values[-1]}"
    s.step(" + ".join(map(str, values)), sum(values))
    s.step(f"{sum(values)} ÷ {count}", mean)
    text = f"{a} scores {shown} points in {count} games."
    if s.level != "hard":
        return s.tell(text, "What is the average?", mean)
    target = mean + s.rng.randint(1, 9)
    need = s.step(f"{target} × {count + 1} - {sum(values)}", target * (count + 1) - sum(values))
    return s.tell(text, f"How many points in the next game make the average {target}?", need)


def legs(s: Story) -> Problem:
    (small, two), (big, four) = s.rng.choice(ANIMALS)
    x, y = s.number(2), s.number(2)
    total = two * x + four * y
    place = s.rng.choice(("in a yard", "on a hill", "by a river", "in a barn", "near a road"))
    if s.level == "tiny":
        return s.tell(
            f"There are {y} {big} {place}.",
            "How many legs do they have in all?",
            s.step(f"{four} × {y}", four * y),
        )
    s.step(f"{two} × {x} + {four} × {y}", total)
    text = f"There are {x} {small} and {y} {big} on a farm."
    if s.level == "easy":
        return s.tell(text, "How many legs are there in all?", total)
    if s.level == "medium":
        gone = s.rng.randint(1, x)
        text += f" {gone} {small} go away."
        return s.tell(
            text, "How many legs are left?", s.step(f"{total} - {two} × {gone}", total - two * gone)
        )
    s.lines.clear()
    s.step(f"{total} - {two} × {x + y}", total - two * (x + y))
    s.step(f"{total - two * (x + y)} ÷ {four - two}", y)
    text = f"A farm has only {small} and {big}: {x + y} heads and {total} legs."
    return s.tell(text, f"How many {big} are there?", y)


def recipe(s: Story) -> Problem:
    a, item = s.names[0], s.rng.choice(("eggs", "cups of flour", "spoons of sugar", "lemons"))
    per, batches = s.rng.randint(2, 9 if s.level == "tiny" else 20), s.factor()
    need = s.step(f"{per} × {batches}", per * batches)
    text = f"One cake needs {per} {item}."
    if s.level in {"tiny", "easy"}:
        return s.tell(text, f"How many {item} do {batches} cakes need?", need)
    have = s.rng.randint(1, need - 1)
    text += f" {a} wants to bake {batches} cakes and has {have} {item}."
    lack = s.step(f"{need} - {have}", need - have)
    if s.level == "medium":
        return s.tell(text, f"How many {item} are missing?", lack)
    price = s.factor()
    text += f" They cost {price} dollars each."
    return s.tell(
        text,
        "How many dollars do the missing ones cost?",
        s.step(f"{lack} × {price}", lack * price),
    )


def units(s: Story) -> Problem:
    big, small, factor = s.rng.choice(
        (
            ("metres", "centimetres", 100),
            ("hours", "minutes", 60),
            ("weeks", "days", 7),
            ("kilograms", "grams", 1000),
        )
    )
    a, x, y = s.names[0], s.number(2), s.rng.randint(1, factor - 1)
    total = s.step(f"{x} × {factor}", x * factor)
    if s.level == "tiny":
        return s.tell(f"{a} needs {x} {big}.", f"How many {small} is that?", total)
    total = s.step(f"{total} + {y}", total + y)
    text = f"{a} needs {x} {big} and {y} {small}."
    if s.level == "easy":
        return s.tell(text, f"How many {small} is that?", total)
    k = s.factor()
    total = s.step(f"{total} × {k}", total * k)
    text += f" {k} friends need just as much each."
    if s.level == "medium":
        return s.tell(text, f"How many {small} do the {k} friends need?", total)
    used = s.rng.randint(1, total - 1)
    text += f" They get {used} {small} from {a}."
    return s.tell(
        text, f"How many {small} do they still need?", s.step(f"{total} - {used}", total - used)
    )


def queue(s: Story) -> Problem:
    (a, b, _), front, back = s.names, s.number(2), s.number(2)
    text = f"{front} people stand before {a} in a queue and {back} behind."
    total = s.step(f"{front} + {back} + 1", front + back + 1)
    if s.level in {"tiny", "easy"}:
        return s.tell(text, "How many people are in the queue?", total)
    gone = s.rng.randint(1, front)
    text += f" {gone} people at the front are served and leave."
    left = s.step(f"{total} - {gone}", total - gone)
    if s.level == "medium":
        return s.tell(text, "How many people are in the queue then?", left)
    new = s.number(1)
    text += f" Then {new} people join at the end, {b} being the last of them."
    left = s.step(f"{left} + {new}", left + new)
    return s.tell(text, f"How many people stand before {b}?", s.step(f"{left} - 1", left - 1))


def _family(name: str, description: str, write: Callable[[Story], Problem]) -> Family:
    def make(rng: random.Random, level: str) -> Problem:
        return write(Story(rng, level))

    return Family(f"word-problems/{name}", description, make)


FAMILIES: tuple[Family, ...] = (
    _family("gain", "Things are added", gain),
    _family("loss", "Things are taken away", loss),
    _family("groups", "Equal groups", groups),
    _family("sharing", "Equal shares", sharing),
    _family("leftover", "Packing with a rest", leftover),
    _family("shopping", "Prices and change", shopping),
    _family("ages", "Ages", ages),
    _family("comparison", "More and fewer", comparison),
    _family("travel", "Distance and speed", travel),
    _family("rates", "Work per day", rates),
    _family("part-of", "Fractions of an amount", part_of),
    _family("discount", "Percent off", discount),
    _family("rectangle", "Area and border", rectangle),
    _family("average", "Averages", average),
    _family("legs", "Heads and legs", legs),
    _family("recipe", "Scaling a recipe", recipe),
    _family("units", "Converting units", units),
    _family("queue", "Positions in a queue", queue),
)
