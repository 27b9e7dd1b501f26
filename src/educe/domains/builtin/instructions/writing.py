"""Writing texts that satisfy constraints: plain sentences of an exact number of words.

Sentences follow one grammar, so any length from three words up can be met:

    [opener] det adj* noun verb [adverb] (prep det adj* noun)*
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from educe.domains.builtin.instructions.vocabulary import (
    ADJECTIVES,
    ADVERBS,
    DETERMINERS,
    NOUNS,
    PREPOSITIONS,
    VERBS,
)


class ImpossibleError(Exception):
    """The draft's wishes contradict each other; draw other ones."""


@dataclass(slots=True)
class Draft:
    """What the constraints of a task ask of its demonstration.

    ``nouns`` must be used, in this order; ``units`` are sentences (of a paragraph, line, bullet …).
    """

    rng: random.Random
    nouns: list[str]
    units: int | None = None
    layout: str = "prose"
    heading: str = ""
    keys: list[str] = field(default_factory=list)
    num_words: tuple[int, int] | None = None
    unit_words: int | None = None
    banned_words: set[str] = field(default_factory=set)
    banned_letters: set[str] = field(default_factory=set)
    liked_letter: str = ""
    max_letters: int = 99
    num_long: int = 0
    opener: str = ""
    initials: str = ""
    first_line: str = ""
    last_word: str = ""
    closing: str = ""
    last_line: str = ""
    num_commas: int = 0
    num_exclamations: int = 0
    is_question: bool = False
    case: str = ""
    num_capitals: int = 0
    wrap: tuple[str, str] = ("", "")

    def allows(self, word: str) -> bool:
        """Whether a word of our own choice keeps the bans."""
        low = word.casefold()
        return (
            low not in self.banned_words
            and not self.banned_letters & set(low)
            and len(word) <= self.max_letters
        )

    def pick(self, words: Sequence[str]) -> str:
        """Draw an allowed word, with a leaning to the letter or length that is asked for."""
        allowed = [w for w in words if self.allows(w)]
        if not allowed:
            raise ImpossibleError("no word is left")
        if self.liked_letter and self.rng.random() < 0.8:
            allowed = [w for w in allowed if self.liked_letter in w] or allowed
        if self.num_long and self.rng.random() < 0.7:
            allowed = [w for w in allowed if len(w) >= 8] or allowed
        return self.rng.choice(allowed)


def write(draft: Draft) -> str:
    """Return a text for the draft; it may miss a wish, so callers check it.

    Raises:
        ImpossibleError: nothing fits.
    """
    if draft.layout == "json":
        return _write_json(draft)
    if draft.layout == "words":
        return _write_words(draft)
    text = _punctuate(draft, _sentences(draft))
    text = _capitals(draft, text)
    if draft.first_line:
        text = draft.first_line + "\n" + text
    if draft.last_line:
        text += "\n" + draft.last_line
    text = draft.wrap[0] + text + draft.wrap[1]
    return {"lower": str.lower, "upper": str.upper, "title": _title}.get(draft.case, str)(text)


def _title(text: str) -> str:
    out, is_start = [], True
    for character in text:
        out.append(character.upper() if is_start else character)
        is_start = not (character.isalnum() or character in "'-")
    return "".join(out)


def _num_fixed_words(draft: Draft) -> int:
    fixed = f"{draft.first_line} {draft.closing} {draft.last_line}"
    headings = (draft.units or 1) * len(draft.heading.split()) if draft.heading else 0
    return sum(any(c.isalpha() for c in w) for w in fixed.split()) + headings


def _sentences(draft: Draft) -> list[list[str]]:
    """Return the sentences of the body as lists of words."""
    rng = draft.rng
    count = len(draft.initials) or draft.units or rng.randint(1, 2)
    if draft.closing and draft.units and draft.layout == "prose":
        count -= 1
    if count < 1:
        raise ImpossibleError("no room for a sentence")
    shares: list[list[str]] = [[] for _ in range(count)]
    for position, noun in enumerate(draft.nouns):
        shares[position * count // len(draft.nouns)].append(noun)
    openers = [draft.opener] + [""] * (count - 1)
    if draft.initials:
        openers = [_word_with(draft, letter) for letter in draft.initials]
    smallest = [_smallest(s, o) for s, o in zip(shares, openers, strict=True)]
    if draft.last_word and draft.last_word not in shares[-1]:
        smallest[-1] += 3
    sizes = _sizes(draft, smallest)
    return [
        _sentence(draft, size, nouns, opener, draft.last_word if i == count - 1 else "")
        for i, (size, nouns, opener) in enumerate(zip(sizes, shares, openers, strict=True))
    ]


def _smallest(nouns: Sequence[str], opener: str) -> int:
    return 3 + 3 * max(0, len(nouns) - 1) + bool(opener)


def _sizes(draft: Draft, smallest: list[int]) -> list[int]:
    rng = draft.rng
    if draft.unit_words is not None:
        if max(smallest) > draft.unit_words:
            raise ImpossibleError("sentences too short for their words")
        return [draft.unit_words] * len(smallest)
    if draft.num_words is None:
        return [s + rng.randint(0, 3) for s in smallest]
    fixed = _num_fixed_words(draft)
    low, high = max(draft.num_words[0] - fixed, sum(smallest)), draft.num_words[1] - fixed
    if low > high:
        raise ImpossibleError("too few words allowed")
    total = rng.randint(low, min(high, low + 8))
    sizes = list(smallest)
    for _ in range(total - sum(smallest)):
        sizes[min(range(len(sizes)), key=lambda i: (sizes[i], rng.random()))] += 1
    return sizes


def _word_with(draft: Draft, letter: str) -> str:
    from educe.domains.builtin.instructions.vocabulary import ANCHORS, OPENERS

    words = [w for w in (*OPENERS, *ADJECTIVES, *ANCHORS) if w[0].lower() == letter]
    return draft.pick(words)


def _sentence(draft: Draft, size: int, nouns: Sequence[str], opener: str, last: str) -> list[str]:
    rng = draft.rng
    names = list(nouns) or [draft.pick(NOUNS)]
    if last and last not in names:
        names.append(last)
    elif last:
        names.remove(last)
        names.append(last)
        if len(names) == 1:
            names.insert(0, draft.pick(NOUNS))
    rest = size - _smallest(names, opener)
    if rest < 0:
        raise ImpossibleError("sentence too short")
    while rest >= 3 and (rest > 2 * len(names) or rng.random() < 0.4):
        names.insert(len(names) - bool(last), draft.pick(NOUNS))
        rest -= 3
    has_adverb = rest > 0 and (rest > 2 * len(names) or rng.random() < 0.4)
    rest -= has_adverb
    adjectives = [0] * len(names)
    for _ in range(rest):
        adjectives[min(range(len(names)), key=lambda i: (adjectives[i], rng.random()))] += 1
    words = [opener] if opener else []
    for position, (name, extra) in enumerate(zip(names, adjectives, strict=True)):
        if position:
            words.append(draft.pick(PREPOSITIONS))
        words.append(draft.pick(DETERMINERS))
        words += [draft.pick(ADJECTIVES) for _ in range(extra)]
        words.append(name)
        if position == 0:
            words.append(draft.pick(VERBS))
            words += [draft.pick(ADVERBS)] if has_adverb else []
    return words


def _punctuate(draft: Draft, sentences: list[list[str]]) -> str:
    slots = [(i, j) for i, s in enumerate(sentences) for j in range(len(s) - 1)]
    if draft.num_commas > len(slots):
        raise ImpossibleError("too few words for the commas")
    for i, j in draft.rng.sample(slots, draft.num_commas):
        sentences[i][j] += ","
    if draft.num_exclamations > len(sentences):
        raise ImpossibleError("too few sentences for the exclamation marks")
    texts = []
    for number, words in enumerate(sentences):
        end = "!" if number < draft.num_exclamations else "."
        texts.append(words[0][0].upper() + " ".join(words)[1:] + end)
    if draft.is_question:
        texts[-1] = texts[-1][:-1] + "?"
    if draft.closing and draft.layout == "prose":
        texts.append(draft.closing)
    body = _lay_out(draft, texts)
    if draft.closing and draft.layout != "prose":
        body += "\n" + draft.closing
    return body


def _lay_out(draft: Draft, texts: list[str]) -> str:
    if draft.layout == "bullets":
        return "\n".join(f"* {t}" for t in texts)
    if draft.layout == "numbered":
        return "\n".join(f"{i}. {t}" for i, t in enumerate(texts, start=1))
    if draft.layout == "paragraphs":
        return "\n\n".join(texts)
    if draft.layout == "lines":
        return "\n".join(texts)
    if draft.layout == "parts":
        return "\n***\n".join(texts)
    if draft.layout == "sections":
        return "\n".join(f"{draft.heading} {i}\n{t}" for i, t in enumerate(texts, start=1))
    return " ".join(texts)


def _capitals(draft: Draft, text: str) -> str:
    if not draft.num_capitals:
        return text
    words = text.split(" ")
    able = [i for i, w in enumerate(words) if sum(c.isalpha() for c in w) >= 2 and "\n" not in w]
    if len(able) < draft.num_capitals:
        raise ImpossibleError("too few words for the capitals")
    for i in draft.rng.sample(able, draft.num_capitals):
        words[i] = words[i].upper()
    return " ".join(words)


def _write_json(draft: Draft) -> str:
    values = [" ".join(_sentence(draft, 3, [], "", "")) for _ in draft.keys]
    for position, noun in enumerate(draft.nouns):
        values[position % len(values)] = " ".join(_sentence(draft, 3, [noun], "", ""))
    if len(draft.nouns) > len(draft.keys):
        raise ImpossibleError("too few keys for the words")
    return json.dumps(dict(zip(draft.keys, values, strict=True)))


def _write_words(draft: Draft) -> str:
    assert draft.units is not None
    words = {n.casefold() for n in draft.nouns}
    while len(words) < draft.units:
        words.add(draft.pick(NOUNS))
    if len(words) != draft.units:
        raise ImpossibleError("more words asked for than the list holds")
    text = ", ".join(sorted(words))
    return {"upper": str.upper, "title": _title}.get(draft.case, str)(text)
