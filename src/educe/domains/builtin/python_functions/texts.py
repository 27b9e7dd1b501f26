"""Generators of functions of strings."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    about,
    chain,
    char_predicate,
    int_operation,
    number_word,
    put,
    sample,
    steps,
    text_operation,
    text_predicate,
)
from educe.domains.builtin.python_functions.problem import Inputs, Problem, expression, program
from educe.domains.builtin.python_functions.registry import generator

_EDGES = (("",), ("a",), ("level",))


@generator("string-edit", "tiny")
def one_edit(rng: random.Random) -> Problem:
    piece = text_operation(rng)
    affix = rng.choice(("", "", "!", "-", "x", "1", "ed", "?"))
    code = f"({put(piece.code, 'a_')}) + '{affix}'" if affix else piece.code
    tail = f", followed by '{affix}'" if affix else ""
    return expression(
        piece.name + ("_and_append" if affix else ""),
        ["str"],
        about(piece.phrase, "a_") + tail,
        put(code, "a_"),
        inputs.word,
        _EDGES,
    )


@generator("string-edit", "easy")
def two_edits(rng: random.Random) -> Problem:
    return _edits(rng, 2)


@generator("string-edit", "medium")
def four_edits(rng: random.Random) -> Problem:
    return _edits(rng, 4)


def _edits(rng: random.Random, count: int) -> Problem:
    pieces = sample(rng, text_operation, count)
    return expression(
        "_".join(p.name for p in pieces[:2]),
        ["str"],
        f"the result of these steps on a_: {steps(pieces)}",
        chain(pieces, "a_"),
        inputs.sentence if count > 2 else inputs.word,
        _EDGES,
    )


@generator("string-count", "tiny")
def count_in_text(rng: random.Random) -> Problem:
    c, d = rng.sample("aeiorstnlcdmgh", 2)
    k = rng.choice((0, 1, 2, 3, 5, 10))
    phrase, code, name = rng.choice(
        (
            (f"how many times '{c}' occurs in a_", f"a_.count('{c}')", f"count_{c}"),
            (
                f"how many times '{c}' or '{d}' occurs in a_",
                f"a_.count('{c}') + a_.count('{d}')",
                f"count_{c}_and_{d}",
            ),
            ("the length of a_", "len(a_)", "length"),
            ("the number of words in a_", "len(a_.split())", "count_words"),
            ("the number of vowels (aeiou) in a_", "sum(c in 'aeiou' for c in a_)", "count_vowels"),
            (f"the index of the first '{c}' in a_, or -1", f"a_.find('{c}')", f"find_{c}"),
        )
    )
    tail, code, suffix = (
        (f", plus {k}", f"{code} + {k}", f"_plus_{number_word(k)}") if k else ("", code, "")
    )
    edges = (("",), (c,), (f"{c}{d} {c}",))
    return expression(name + suffix, ["str"], phrase + tail, code, inputs.sentence, edges)


@generator("string-count", "easy")
def count_matching(rng: random.Random) -> Problem:
    keep, piece = char_predicate(rng), int_operation(rng)
    return expression(
        f"count_{keep.name}",
        ["str"],
        f"the result of counting the {keep.phrase} in a_ and applying to the count: {piece.step}",
        put(piece.code, f"sum(1 for c in a_ if {put(keep.code, 'c')})"),
        inputs.sentence,
        _EDGES,
    )


@generator("string-keep", "easy")
def keep_characters(rng: random.Random) -> Problem:
    keep, piece = char_predicate(rng), text_operation(rng)
    return expression(
        f"keep_{keep.name}",
        ["str"],
        f"the result of keeping only the {keep.phrase} in a_ and then: {piece.step}",
        put(piece.code, f"''.join(c for c in a_ if {put(keep.code, 'c')})"),
        inputs.sentence,
        _EDGES,
    )


@generator("string-check", "tiny")
def one_text_condition(rng: random.Random) -> Problem:
    piece, k = text_predicate(rng), rng.randint(3, 5)
    extra, code, suffix = rng.choice(
        (
            ("", "@", ""),
            (" or a_ is empty", "@ or a_ == ''", "_or_empty"),
            (f" and a_ has at least {k} characters", f"@ and len(a_) >= {k}", f"_min_{k}"),
        )
    )
    return expression(
        piece.name + suffix,
        ["str"],
        f"True if {about(piece.phrase, 'a_')}{extra}, otherwise False",
        put(code, put(piece.code, "a_")),
        _balanced_words(piece.code),
        _EDGES,
    )


@generator("string-check", "easy")
def two_text_conditions(rng: random.Random) -> Problem:
    first, second = sample(rng, text_predicate, 2)
    join = rng.choice(("and", "or"))
    return expression(
        f"check_{first.name}",
        ["str"],
        f"True if {about(first.phrase, 'a_')} {join} {about(second.phrase, 'it')}, otherwise False",
        put("@", f"({put(first.code, 'a_')}) {join} ({put(second.code, 'a_')})"),
        _balanced_words(first.code),
        _EDGES,
    )


def _balanced_words(code: str) -> Inputs:
    """Words of which about half meet the condition (decided by the condition's own letter)."""
    quoted = code.split("'")[1] if "'" in code else ""

    def draw(rng: random.Random) -> tuple[str]:
        text = inputs.draw_word(rng)
        if quoted and rng.random() < 0.5:
            text = rng.choice((quoted + text, text + quoted, quoted + text + quoted))
        return (text,)

    return draw


@generator("string-slice", "tiny")
def slices(rng: random.Random) -> Problem:
    k, m, glue = rng.randint(1, 4), rng.randint(1, 4), rng.choice(("", "-", " ", "+"))
    first = rng.choice(
        (
            (f"the first {_chars(k)} of a_", f"a_[:{k}]"),
            (f"the last {_chars(k)} of a_", f"a_[-{k}:]"),
            (f"a_ without its first {_chars(k)}", f"a_[{k}:]"),
        )
    )
    second = rng.choice(
        (
            ("a_", "a_"),
            ("a_ reversed", "a_[::-1]"),
            (f"the last {_chars(m)} of a_", f"a_[-{m}:]"),
            (f"the first {_chars(m)} of a_", f"a_[:{m}]"),
        )
    )
    middle = f"'{glue}' + " if glue else ""
    said = f", then '{glue}'" if glue else ""
    return expression(
        "join_parts",
        ["str"],
        f"{first[0]}{said}, followed by {second[0]}",
        f"{first[1]} + {middle}{second[1]}",
        inputs.word,
        _EDGES,
    )


def _chars(count: int) -> str:
    return "character" if count == 1 else f"{count} characters"


@generator("words", "tiny")
def pick_word(rng: random.Random) -> Problem:
    piece = text_operation(rng)
    where, index, name = rng.choice(
        (("first", "0", "first"), ("last", "-1", "last"), ("second", "1", "second"))
    )
    return expression(
        f"{name}_word_{piece.name}",
        ["str"],
        about(piece.phrase, f"the {where} word of a_"),
        put(piece.code, f"a_.split()[{index}]"),
        inputs.sentence,
        [("a b",), ("red sky at night",)],
    )


@generator("words", "easy")
def edit_words(rng: random.Random) -> Problem:
    keep, piece, glue = (
        text_predicate(rng),
        text_operation(rng),
        rng.choice((" ", "-", "", "/", "_")),
    )
    return expression(
        "edit_words",
        ["str"],
        f"the words of a_ {keep.step}, each changed so ({piece.step}), joined by '{glue}'",
        f"'{glue}'.join({put(piece.code, 'w')} for w in a_.split() if {put(keep.code, 'w')})",
        inputs.sentence,
        _EDGES,
    )


@generator("words", "medium")
def rank_words(rng: random.Random) -> Problem:
    keep, piece, k = text_predicate(rng), text_operation(rng), rng.randint(1, 4)
    order, code = rng.choice(
        (
            ("by length, then alphabetically", "(len(w), w)"),
            ("from longest to shortest, then alphabetically", "(-len(w), w)"),
            ("by their last letter, then alphabetically", "(w[-1], w)"),
            (
                "by how many vowels they have, then alphabetically",
                "(sum(c in 'aeiou' for c in w), w)",
            ),
        )
    )
    body = f"""
        found = [w for w in a_.split() if {put(keep.code, "w")}]
        found.sort(key=lambda w: {code})
        return [{put(piece.code, "w")} for w in found[:{k}]]
    """
    return program(
        "rank_words",
        ["str"],
        f"a list: take the words of a_ {keep.step}, sort them {order}, keep at most {k}, and for "
        f"each one: {piece.step}",
        body,
        lambda r: (inputs.draw_sentence(r, 3, 8),),
        _EDGES,
    )


@generator("string-format", "tiny")
def format_text(rng: random.Random) -> Problem:
    before = rng.choice(
        ("Hello, ", "Hi ", "Dear ", "Name: ", "<", "[", "*", "Go ", "id=", "My ", "#")
    )
    after = rng.choice(("!", "?", ".", ">", "]", "*", " now", " ok", ";", " (new)", "..."))
    change, phrase = rng.choice(
        (
            ("a_", "a_"),
            ("a_.upper()", "a_ in upper case"),
            ("a_.title()", "a_ in title case"),
            ("a_[::-1]", "a_ reversed"),
            ("a_ * 2", "a_ repeated twice"),
        )
    )
    return expression(
        rng.choice(("label", "greet", "wrap", "format_text", "decorate")),
        ["str"],
        f"'{before}' followed by {phrase} and then '{after}'",
        f"'{before}' + {change} + '{after}'",
        inputs.word,
        _EDGES,
    )


@generator("string-format", "easy")
def format_pair(rng: random.Random) -> Problem:
    glue, width = rng.choice((": ", "=", " -> ", " x ", ", ", "@")), rng.randint(3, 12)
    pad = rng.choice(".-_*0")
    side, method = rng.choice((("left", "rjust"), ("right", "ljust")))
    piece, number = text_operation(rng), int_operation(rng)
    return expression(
        "format_entry",
        ["str", "other"],
        f"a string made of: a_ after this change ({piece.step}); then '{glue}'; then the number "
        f"{about(number.phrase, 'b_')}, padded on the {side} with '{pad}' to {width} characters",
        f"({put(piece.code, 'a_')}) + '{glue}' + str({put(number.code, 'b_')}).{method}"
        f"({width}, '{pad}')",
        inputs.both(inputs.word, inputs.integer(-20, 90)),
        [("", 0), ("a", -1)],
    )
