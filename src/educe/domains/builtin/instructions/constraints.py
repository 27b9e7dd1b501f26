"""The checkable instructions: how each is drawn, worded, checked and met by a demonstration.

Checks look at the text alone and at JSON parameters. Letter case never matters unless the
instruction is about it. Words are blank-separated pieces with a letter in them; sentences end at
``.``, ``!`` or ``?`` before a blank or the end.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.domains.builtin.instructions.reading import (
    count_word,
    lines_of,
    sentences_of,
    words_of,
)
from educe.domains.builtin.instructions.vocabulary import (
    ACROSTICS,
    ANCHORS,
    CLOSINGS,
    COMMON,
    NOUNS,
    OPENERS,
)
from educe.domains.builtin.instructions.writing import Draft, ImpossibleError

Params = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Kind:
    """One type of instruction.

    Attributes:
        name: unique.
        category: words, length, layout, style or letters.
        slots: what it decides about; two kinds that share a slot are never combined.
        draw: parameters from (generator, anchor words).
        describe: the sentence of the prompt.
        check: whether a text keeps it.
        shape: tells the draft of the demonstration what to do.
    """

    name: str
    category: str
    slots: frozenset[str]
    draw: Callable[[random.Random, Sequence[str]], dict[str, JSON]]
    describe: Callable[[Params], str]
    check: Callable[[str, Params], bool]
    shape: Callable[[Draft, Params], None]


# ---------------------------------------------------------------- making kinds


_KINDS: list[Kind] = []

Draw = Callable[[random.Random, Sequence[str]], dict[str, JSON]]


def _kind(
    name: str,
    category: str,
    slots: str,
    draw: Draw,
    text: str | Callable[[Params], str],
    check: Callable[[str, Params], bool],
    shape: Callable[[Draft, Params], None],
) -> None:
    describe = text if callable(text) else lambda p, t=text: t.format(**p)
    _KINDS.append(Kind(name, category, frozenset(slots.split()), draw, describe, check, shape))


def _number(low: int, high: int) -> Draw:
    return lambda rng, anchors: {"n": rng.randint(low, high)}


def _choice(name: str, values: Sequence[str]) -> Draw:
    return lambda rng, anchors: {name: rng.choice(values)}


def _nothing(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    return {}


def _sets(**fields: str) -> Callable[[Draft, Params], None]:
    """A shape that copies parameters into fields of the draft."""

    def shape(draft: Draft, params: Params) -> None:
        for target, source in fields.items():
            setattr(draft, target, params[source])

    return shape


def _fixes(**fields: JSON) -> Callable[[Draft, Params], None]:
    """A shape that sets fields of the draft to constants."""

    def shape(draft: Draft, params: Params) -> None:
        for target, value in fields.items():
            setattr(draft, target, value)

    return shape


def _lays_out(layout: str) -> Callable[[Draft, Params], None]:
    def shape(draft: Draft, params: Params) -> None:
        draft.layout, draft.units = layout, params["n"]

    return shape


def _other_word(rng: random.Random, anchors: Sequence[str]) -> str:
    return rng.choice([w for w in ANCHORS if w not in anchors])


# ---------------------------------------------------------------- words


def _shape_times(draft: Draft, params: Params) -> None:
    draft.nouns += [params["word"]] * params["n"]


def _shape_exclude(draft: Draft, params: Params) -> None:
    draft.banned_words.add(params["word"])


def _shape_last_word(draft: Draft, params: Params) -> None:
    draft.last_word = params["word"]


def _shape_order(draft: Draft, params: Params) -> None:
    draft.nouns = [w for w in draft.nouns if w not in (params["first"], params["second"])]
    draft.nouns += [params["first"], params["second"]]


def _is_in_order(text: str, params: Params) -> bool:
    words = words_of(text)
    first, second = params["first"], params["second"]
    return first in words and second in words and words.index(first) < words.index(second)


def _draw_order(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    first = _other_word(rng, anchors)
    return {"first": first, "second": _other_word(rng, [*anchors, first])}


def _draw_line(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    return {"line": " ".join(rng.sample(NOUNS, rng.randint(2, 4)))}


def _shape_number(draft: Draft, params: Params) -> None:
    draft.nouns.append(f"number {params['n']}")


def _forget(draft: Draft, params: Params) -> None:
    """The natural text already keeps it."""


_kind(
    "word-times", "words", "times",
    lambda rng, anchors: {"word": _other_word(rng, anchors), "n": rng.randint(2, 3)},
    "Use the word '{word}' exactly {n} times.",
    lambda t, p: count_word(t, p["word"]) == p["n"], _shape_times,
)  # fmt: skip
_kind(
    "exclude-word", "words", "exclude", _choice("word", COMMON),
    "Do not use the word '{word}'.",
    lambda t, p: count_word(t, p["word"]) == 0, _shape_exclude,
)  # fmt: skip
_kind(
    "start-word", "words", "start", _choice("word", OPENERS),
    "Begin with the word '{word}'.",
    lambda t, p: words_of(t)[:1] == [p["word"].casefold()], _sets(opener="word"),
)  # fmt: skip
_kind(
    "end-word", "words", "end",
    lambda rng, anchors: {"word": _other_word(rng, anchors)},
    "The last word must be '{word}'.",
    lambda t, p: words_of(t)[-1:] == [p["word"]], _shape_last_word,
)  # fmt: skip
_kind(
    "end-sentence", "words", "end wrap sentences", _choice("text", CLOSINGS),
    "End with exactly this sentence: {text}",
    lambda t, p: t.strip().casefold().endswith(p["text"].casefold()), _sets(closing="text"),
)  # fmt: skip
_kind(
    "copy-line", "words", "start sentences case", _draw_line,
    "First copy this line, then write your text below it: {line}",
    lambda t, p: lines_of(t)[:1] == [p["line"]] and len(lines_of(t)) > 1,
    _sets(first_line="line"),
)  # fmt: skip
_kind(
    "word-order", "words", "order", _draw_order,
    "Use the word '{first}' and, somewhere after it, the word '{second}'.",
    _is_in_order, _shape_order,
)  # fmt: skip
_kind(
    "include-number", "words", "number", _number(11, 99),
    "Mention the number {n}.",
    lambda t, p: count_word(t, str(p["n"])) > 0, _shape_number,
)  # fmt: skip

# ---------------------------------------------------------------- length


def _shape_words(draft: Draft, params: Params) -> None:
    draft.num_words = (params.get("low", 1), params.get("high", params.get("low", 1) + 12))


def _draw_range(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    low = rng.randint(6, 24)
    return {"low": low, "high": low + rng.randint(2, 6)}


def _draw_exact(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    count = rng.randint(5, 24)
    return {"low": count, "high": count}


def _has_words(text: str, params: Params) -> bool:
    return bool(params.get("low", 1) <= len(words_of(text)) <= params.get("high", 10**9))


_kind("words-exact", "length", "length", _draw_exact, "Write exactly {low} words.", _has_words,
      _shape_words)  # fmt: skip
_kind("words-range", "length", "length", _draw_range, "Write between {low} and {high} words.",
      _has_words, _shape_words)  # fmt: skip
_kind(
    "words-at-most", "length", "length",
    lambda rng, anchors: {"high": 3 * len(anchors) + rng.randint(2, 6)},
    "Write at most {high} words.", _has_words, _shape_words,
)  # fmt: skip
_kind(
    "words-at-least", "length", "length", lambda rng, anchors: {"low": rng.randint(8, 25)},
    "Write at least {low} words.", _has_words, _shape_words,
)  # fmt: skip
_kind(
    "sentences", "length", "units sentences", _number(1, 4),
    lambda p: f"Write exactly {p['n']} sentence{'s' if p['n'] > 1 else ''}.",
    lambda t, p: len(sentences_of(t)) == p["n"], _sets(units="n"),
)  # fmt: skip
_kind(
    "sentence-words", "length", "length sentences", _number(5, 9),
    "Every sentence must have exactly {n} words.",
    lambda t, p: bool(sentences_of(t))
    and all(len(words_of(s)) == p["n"] for s in sentences_of(t)),
    _sets(unit_words="n"),
)  # fmt: skip

# ---------------------------------------------------------------- layout


def _bullets(text: str) -> list[str]:
    return [line for line in lines_of(text) if re.match(r"[*-] \S", line)]


def _is_numbered(text: str, params: Params) -> bool:
    numbers = [re.match(r"(\d+)\. \S", line) for line in lines_of(text)]
    return [int(m.group(1)) if m else 0 for m in numbers] == list(range(1, params["n"] + 1))


def _has_keys(text: str, params: Params) -> bool:
    body = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip())
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict)
        and set(value) == set(params["keys"])
        and all(isinstance(v, str) and v for v in value.values())
    )


def _draw_keys(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    return {"keys": rng.sample(NOUNS, rng.randint(2, 4))}


def _shape_keys(draft: Draft, params: Params) -> None:
    draft.layout, draft.keys = "json", list(params["keys"])


def _paragraphs(text: str) -> list[str]:
    return [p for p in re.split(r"\n\s*\n", text.strip()) if p.strip()]


def _parts(text: str) -> list[str]:
    return [p for p in re.split(r"^\s*\*\*\*\s*$", text, flags=re.MULTILINE) if p.strip()]


def _has_sections(text: str, params: Params) -> bool:
    found = [m.group(1) for m in re.finditer(rf"^{params['head']} (\d+)$", text, re.MULTILINE)]
    lines = lines_of(text)
    return (
        found == [str(i) for i in range(1, params["n"] + 1)]
        and len(lines) >= 2 * params["n"]
        and lines[0] == f"{params['head']} 1"
        and not re.fullmatch(rf"{params['head']} \d+", lines[-1])
    )


def _shape_sections(draft: Draft, params: Params) -> None:
    draft.layout, draft.units, draft.heading = "sections", params["n"], params["head"]


def _is_acrostic(text: str, params: Params) -> bool:
    initials = "".join((words_of(line) or ["?"])[0][0] for line in lines_of(text))
    return initials == str(params["word"])


def _shape_acrostic(draft: Draft, params: Params) -> None:
    draft.layout, draft.initials = "lines", params["word"]


def _is_sorted_list(text: str, params: Params) -> bool:
    items = [i.strip().rstrip(".").casefold() for i in text.split(",")]
    return (
        len(items) == params["n"]
        and all(re.fullmatch(r"[a-z]+", i) for i in items)
        and items == sorted(set(items))
    )


def _shape_sorted(draft: Draft, params: Params) -> None:
    draft.layout, draft.units = "words", params["n"]


_ALONE = "units start end wrap sentences length times order number commas marks"

_kind("bullets", "layout", "units wrap sentences", _number(2, 4),
      "Write exactly {n} bullet points, each on a line that starts with '* '.",
      lambda t, p: len(_bullets(t)) == len(lines_of(t)) == p["n"], _lays_out("bullets"),
)  # fmt: skip
_kind("numbered", "layout", "units wrap sentences", _number(2, 4),
      "Write a numbered list of exactly {n} items, in the form '1. ...'.",
      _is_numbered, _lays_out("numbered"),
)  # fmt: skip
_kind("paragraphs", "layout", "units sentences", _number(2, 3),
      "Write exactly {n} paragraphs with a blank line between them.",
      lambda t, p: len(_paragraphs(t)) == p["n"], _lays_out("paragraphs"),
)  # fmt: skip
_kind("lines", "layout", "units sentences", _number(2, 4),
      "Write exactly {n} lines.",
      lambda t, p: len(lines_of(t)) == p["n"], _lays_out("lines"),
)  # fmt: skip
_kind("parts", "layout", "units sentences", _number(2, 3),
      "Write {n} parts and put a line with only *** between them.",
      lambda t, p: len(_parts(t)) == p["n"] and t.count("***") == p["n"] - 1, _lays_out("parts"),
)  # fmt: skip
_kind(
    "sections", "layout", "units start wrap sentences case",
    lambda rng, anchors: {"n": rng.randint(2, 3), "head": rng.choice(["PART", "STEP", "Day"])},
    "Write {n} sections. Put the line '{head} 1', '{head} 2' and so on above each.",
    _has_sections, _shape_sections,
)  # fmt: skip
_kind(
    "json", "layout", _ALONE + " case", _draw_keys,
    lambda p: "Answer with a JSON object whose keys are exactly "
    + ", ".join(f'"{k}"' for k in p["keys"]) + ", with text values.",
    _has_keys, _shape_keys,
)  # fmt: skip
_kind("acrostic", "layout", "units start wrap sentences length", _choice("word", ACROSTICS),
      "The first letters of the lines must spell '{word}'.", _is_acrostic, _shape_acrostic,
)  # fmt: skip
_kind("sorted-words", "layout", _ALONE, _number(4, 7),
      "Write only a list of {n} different words in alphabetical order, separated by commas.",
      _is_sorted_list, _shape_sorted,
)  # fmt: skip
_kind(
    "title", "layout", "start sentences wrap",
    lambda rng, anchors: {"title": " ".join(rng.sample(NOUNS, 2))},
    "The first line must be the title <<{title}>>.",
    lambda t, p: (lines_of(t) or [""])[0].casefold() == f"<<{p['title']}>>"
    and len(lines_of(t)) > 1,
    lambda d, p: setattr(d, "first_line", f"<<{p['title']}>>"),
)  # fmt: skip
_kind(
    "postscript", "layout", "end sentences wrap units", _choice("word", NOUNS),
    "Add a last line that starts with 'P.S.' and mentions the word '{word}'.",
    lambda t, p: len(lines_of(t)) > 1
    and lines_of(t)[-1].casefold().startswith("p.s.")
    and count_word(lines_of(t)[-1], p["word"]) > 0,
    lambda d, p: setattr(d, "last_line", f"P.S. One {p['word']} waits."),
)  # fmt: skip
_kind("quoted", "layout", "wrap", _nothing, "Put the whole text in double quotation marks.",
      lambda t, p: len(t.strip()) > 2 and t.strip()[0] == t.strip()[-1] == '"'
      and t.count('"') == 2,
      _fixes(wrap=('"', '"')),
)  # fmt: skip
_kind("braces", "layout", "wrap", _nothing, "Put the whole text between {{ and }}.".replace(
          "{{", "{{{{").replace("}}", "}}}}"),
      lambda t, p: t.strip().startswith("{{") and t.strip().endswith("}}") and len(t) > 4,
      _fixes(wrap=("{{", "}}")),
)  # fmt: skip


def _shape_placeholders(draft: Draft, params: Params) -> None:
    draft.nouns += draft.rng.sample(["[name]", "[place]", "[date]", "[colour]"], params["n"])


_kind("placeholders", "layout", "placeholders", _number(1, 3),
      lambda p: f"Use exactly {p['n']} placeholder{'s' if p['n'] > 1 else ''} in square brackets, "
      "such as [name].",
      lambda t, p: len(re.findall(r"\[[A-Za-z ]+\]", t)) == p["n"] == t.count("["),
      _shape_placeholders,
)  # fmt: skip

# ---------------------------------------------------------------- style


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isalpha())


def _is_title_case(text: str) -> bool:
    firsts = [re.sub(r"[^A-Za-z]", "", w)[:1] for w in text.split()]
    return bool(_letters(text)) and all(f.isupper() for f in firsts if f)


def _capital_words(text: str) -> int:
    pieces = re.findall(r"[A-Za-z]{2,}", text)
    return sum(p.isupper() for p in pieces)


_kind("lowercase", "style", "case", _nothing, "Use only lower-case letters.",
      lambda t, p: bool(_letters(t)) and t == t.lower(), _fixes(case="lower"))  # fmt: skip
_kind("uppercase", "style", "case", _nothing, "Use only capital letters.",
      lambda t, p: bool(_letters(t)) and t == t.upper(), _fixes(case="upper"))  # fmt: skip
_kind("title-case", "style", "case", _nothing, "Start every word with a capital letter.",
      lambda t, p: _is_title_case(t), _fixes(case="title"))  # fmt: skip
_kind("capital-words", "style", "case", _number(1, 3),
      lambda p: f"Write exactly {p['n']} word{'s' if p['n'] > 1 else ''} in all capitals.",
      lambda t, p: _capital_words(t) == p["n"], _sets(num_capitals="n"))  # fmt: skip
_kind("no-commas", "style", "commas", _nothing, "Do not use any commas.",
      lambda t, p: bool(words_of(t)) and "," not in t, _forget)  # fmt: skip
_kind("commas", "style", "commas", _number(1, 4),
      lambda p: f"Use exactly {p['n']} comma{'s' if p['n'] > 1 else ''}.",
      lambda t, p: t.count(",") == p["n"], _sets(num_commas="n"))  # fmt: skip
_kind("exclamations", "style", "marks", _number(1, 2),
      lambda p: f"Use exactly {p['n']} exclamation mark{'s' if p['n'] > 1 else ''}.",
      lambda t, p: t.count("!") == p["n"], _sets(num_exclamations="n"))  # fmt: skip
_kind("no-full-stops", "style", "marks end", _nothing, "Do not use any full stops.",
      lambda t, p: bool(words_of(t)) and "." not in t, _fixes(num_exclamations=1, units=1),
)  # fmt: skip
_kind("question", "style", "end wrap", _nothing, "End with a question mark.",
      lambda t, p: t.strip().endswith("?"), _fixes(is_question=True))  # fmt: skip

# ---------------------------------------------------------------- letters


def _shape_letter(draft: Draft, params: Params) -> None:
    draft.liked_letter = params["letter"]


def _shape_absent(draft: Draft, params: Params) -> None:
    draft.banned_letters.add(params["letter"])


def _draw_absent(rng: random.Random, anchors: Sequence[str]) -> dict[str, JSON]:
    letters = [c for c in "bcdfgjkmpuvwxyzq" if not any(c in a for a in anchors)]
    if not letters:
        raise ImpossibleError("every letter is needed")
    return {"letter": rng.choice(letters)}


def _shape_long(draft: Draft, params: Params) -> None:
    draft.num_long = params["n"]


_kind(
    "letter-at-least", "letters", "letter",
    lambda rng, anchors: {"letter": rng.choice("bdgklmpw"), "n": rng.randint(3, 5)},
    "Use the letter '{letter}' at least {n} times.",
    lambda t, p: t.casefold().count(p["letter"]) >= p["n"], _shape_letter,
)  # fmt: skip
_kind("letter-absent", "letters", "absent", _draw_absent,
      "Do not use the letter '{letter}'.",
      lambda t, p: bool(words_of(t)) and p["letter"] not in t.casefold(), _shape_absent,
)  # fmt: skip
_kind(
    "short-words", "letters", "word-length",
    lambda rng, anchors: {"n": max(5, *map(len, anchors)) + rng.randint(0, 1)},
    "Use no word longer than {n} letters.",
    lambda t, p: bool(words_of(t)) and max(map(len, words_of(t))) <= p["n"],
    _sets(max_letters="n"),
)  # fmt: skip
_kind("long-words", "letters", "word-length", _number(1, 2),
      lambda p: f"Use at least {p['n']} word{'s' if p['n'] > 1 else ''} of eight or more letters.",
      lambda t, p: sum(len(w) >= 8 for w in words_of(t)) >= p["n"], _shape_long,
)  # fmt: skip

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
CATEGORIES = ("words", "length", "layout", "style", "letters")
