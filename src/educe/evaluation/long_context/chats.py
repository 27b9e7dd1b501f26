"""Long conversations: the n-th of several equal requests, and instructions that change midway."""

from __future__ import annotations

from educe.core.types import assistant, user
from educe.evaluation.long_context.draft import Draft, Kind, Piece, Rng, placed

_FORMS = ("short note", "headline", "toast", "warning", "postcard", "riddle", "slogan", "rumour")
_TOPICS = (
    "the harbour", "the bakery", "an old clock", "the first snow", "a lost umbrella",
    "the night train", "a stubborn mule", "the lighthouse", "a broken violin", "the village fair",
    "the long bridge", "a quiet library", "the tax office", "a paper kite", "the copper mine",
    "the empty stage",
)  # fmt: skip
_OPENINGS = ("Nobody expected", "Everyone remembers", "Few people noticed", "We still talk about",
             "It began with", "Long before", "At the end came", "Somewhere behind")  # fmt: skip
_MIDDLES = ("the sound of", "a smell of", "the colour of", "a trace of", "the weight of",
            "a rumour of", "the shadow of", "a promise of")  # fmt: skip
_ENDS = ("rain", "bread", "smoke", "salt", "dust", "bells", "paper", "iron", "honey", "tar", "wool",
         "thunder", "candles", "apples", "gravel", "frost")  # fmt: skip
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_WORDS = ("falcon", "ginger", "harvest", "island", "jigsaw", "kennel", "lumber", "magnet",
          "nectar", "orchid", "pepper", "quarry", "rocket", "sapphire", "tundra", "umpire",
          "walnut", "yonder", "zephyr", "bishop", "cactus", "dynamo", "emblem")  # fmt: skip
_QUESTIONS = (
    ("What is {a} plus {b}?", "{sum}"),
    ("Which is larger, {a} or {b}?", "{largest}"),
    ("Name a word that rhymes with day.", "Hay."),
    ("How many letters has the word {w}?", "{letters}"),
    ("Say something about {topic}.", "It is worth a visit."),
)


def _text(rng: Rng) -> str:
    parts = rng.choice(_OPENINGS), rng.choice(_MIDDLES), rng.choice(_ENDS), rng.choice(_ENDS)
    return f"{parts[0]} {parts[1]} {parts[2]} and {parts[3]}."


def write_ordinal(rng: Rng, size: int, depth: float) -> Draft:
    """Ask for the n-th text that was written on one request, behind a random prefix.

    The prefix cannot be guessed and the texts differ in a few words, so neither a summary nor the
    text of another request is right.
    """
    form, topic = rng.choice(_FORMS), rng.choice(_TOPICS)
    count = rng.randint(2, 4)
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[_text(rng)] = None
    prefix = "".join(rng.choice("bcdfghjkmnpqrstvwxz23456789") for _ in range(8))
    depths = [depth, *(rng.random() for _ in range(count - 1))]
    asked = f"Write a {form} about {topic}."
    turns: list[Piece] = [(user(asked), assistant(text)) for text in texts]
    hay: list[Piece] = []
    while len(hay) < size:
        other_form, other_topic = rng.choice(_FORMS), rng.choice(_TOPICS)
        text = _text(rng)
        if (other_form, other_topic) != (form, topic) and text not in texts:
            hay.append((user(f"Write a {other_form} about {other_topic}."), assistant(text)))
    pieces, index = placed(hay, list(zip(depths, turns, strict=True)))
    place = sorted(index).index(index[0])
    answer = f"{prefix} {next(iter(texts))}"
    question = (
        f"Reply with {prefix}, then a blank, then the {_ORDINALS[place]} {form} about {topic} that "
        f"you wrote above, word for word, and nothing else."
    )
    # All requests of the kind are needed to count to the n-th.
    return Draft(pieces, index, question, (answer,), {"kind": "verbatim", "prefix": prefix})


def write_state(rng: Rng, size: int, depth: float) -> Draft:
    """Instructions change three times; only the last one, at ``depth``, holds for the reply."""
    words = rng.sample(_WORDS, 5)
    codes, target = words[:3], words[3]
    earlier = sorted(rng.random() * depth for _ in codes[:-1])
    places = [*earlier, depth]
    shifts: list[tuple[float, Piece]] = [
        (place, (user(f"From now on, begin every reply with the word {code}."),
                 assistant(f"{code} understood.")))
        for place, code in zip(places, codes, strict=True)
    ]  # fmt: skip
    asked = [_smalltalk(rng) for _ in range(size)]
    blank: list[Piece] = [(user(q), assistant(a)) for q, a in asked]
    _, index = placed(blank, shifts)
    obeying: list[Piece] = []
    for number, (question, answer) in enumerate(asked):
        # Fillers before the k-th shift stand at positions below it, minus the shifts before.
        current = [c for c, i, k in zip(codes, index, range(3), strict=True) if i - k <= number]
        said = f"{current[-1]} {answer}" if current else answer
        obeying.append((user(question), assistant(said)))
    pieces, index = placed(obeying, shifts)
    return Draft(
        pieces,
        (index[-1],),
        f"Repeat this word: {target}",
        (codes[-1], target),
        {"kind": "state", "stale": codes[:-1]},
        gold=f"{codes[-1]} {target}",
    )


def _smalltalk(rng: Rng) -> tuple[str, str]:
    question, answer = rng.choice(_QUESTIONS)
    a, b = rng.sample(range(2, 60), 2)
    word = rng.choice(_ENDS)
    known = {
        "a": a, "b": b, "sum": a + b, "largest": max(a, b), "w": word, "letters": len(word),
        "topic": rng.choice(_TOPICS),
    }  # fmt: skip
    return question.format(**known), answer.format(**known)


CHATS: tuple[Kind, ...] = (
    Kind("chat-ordinal", "the n-th text among equal requests, verbatim", write_ordinal, 64),
    Kind("chat-state", "the last of several instructions holds", write_state, 24),
)
