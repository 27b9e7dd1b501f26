"""Generators of functions of dictionaries."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    about,
    char_predicate,
    int_operation,
    int_predicate,
    list_reduction,
    put,
    text_operation,
    text_predicate,
)
from educe.domains.builtin.python_functions.problem import Problem, expression, program
from educe.domains.builtin.python_functions.registry import generator

_EDGES: tuple[tuple[dict[str, int]], ...] = (({},), ({"cat": 0},), ({"a": -2, "stone": 7},))


@generator("dict-lookup", "tiny")
def look_up(rng: random.Random) -> Problem:
    default, piece = rng.randint(-20, 20), int_operation(rng)
    change, code, name = rng.choice(
        (("", "@", "lookup"), (f", then {piece.step}", piece.code, f"lookup_{piece.name}"))
    )

    def draw(r: random.Random) -> tuple[dict[str, int], str]:
        table = inputs.few_counts(r)
        return table, r.choice(list(table)) if r.random() < 0.7 else inputs.draw_word(r)

    return expression(
        name,
        ["dict", "other"],
        f"the value of the key b_ in the dictionary a_, or {default} if b_ is missing{change}",
        put(code, f"a_.get(b_, {default})"),
        draw,
        [({}, "cat"), ({"cat": 0}, "cat"), ({"cat": 3}, "dog")],
    )


@generator("dict-filter", "easy")
def filter_dictionary(rng: random.Random) -> Problem:
    keep, key, piece = int_predicate(rng), text_predicate(rng), int_operation(rng)
    by_key = rng.random() < 0.4
    test = put(key.code, "k") if by_key else put(keep.code, "v")
    said = f"whose key is {key.step}" if by_key else f"whose value is {keep.step}"
    if by_key:
        said = f"for which {about(key.phrase, 'the key')}"
    text, code = rng.choice(
        (
            (
                "the sorted list of the keys of those entries",
                "sorted(k for k, v in a_.items() if @)",
            ),
            ("the number of those entries", "sum(1 for k, v in a_.items() if @)"),
            (
                f"the dictionary of those entries, with each value v changed to "
                f"{about(piece.phrase, 'v')},",
                f"{{k: {put(piece.code, 'v')} for k, v in a_.items() if @}}",
            ),
            (
                f"the sum of {about(piece.phrase, 'v')} over the values v of those entries",
                f"sum({put(piece.code, 'v')} for k, v in a_.items() if @)",
            ),
        )
    )
    return expression(
        "filter_entries",
        ["dict"],
        f"{text.replace('those entries', 'those entries of a_')} {said}",
        code.replace("@", test),
        inputs.counts,
        _EDGES,
    )


@generator("dict-count", "medium")
def count_items(rng: random.Random) -> Problem:
    keep, least, piece = char_predicate(rng), rng.randint(1, 3), int_operation(rng)
    text, code = rng.choice(
        (
            (
                f"a dictionary from each such character to {about(piece.phrase, 'its count')}",
                f"{{c: {put(piece.code, 'k')} for c, k in seen.items()}}",
            ),
            (
                "a string of such characters, from most to least frequent (equal counts "
                "alphabetically)",
                "''.join(sorted(seen, key=lambda c: (-seen[c], c)))",
            ),
            (
                f"the sum of {about(piece.phrase, 'the count')} over such characters",
                f"sum({put(piece.code, 'k')} for k in seen.values())",
            ),
        )
    )
    body = f"""
        seen = {{}}
        for c in a_:
            if {put(keep.code, "c")}:
                seen[c] = seen.get(c, 0) + 1
        seen = {{c: k for c, k in seen.items() if k >= {least}}}
        return {code}
    """
    code_name = rng.choice(("count_characters", "frequencies", "histogram"))
    plural = "times" if least > 1 else "time"
    return program(
        code_name,
        ["str"],
        f"{text}; such characters are the {keep.phrase} that occur in a_ at least {least} {plural}",
        body,
        inputs.letters("aabbbcdeinorst", 5, 14),
        (("",), ("a",), ("banana",), ("abcabcabc",)),
    )


@generator("grouping", "medium")
def group_values(rng: random.Random) -> Problem:
    k, keep, last = rng.randint(2, 5), int_predicate(rng), list_reduction(rng)
    if rng.random() < 0.5:
        key, said = f"str(v % {k})", f"by its remainder modulo {k}, written as a string"
    else:
        key, said = f"str(len(str(abs(v))) + {k})", f"by its number of digits plus {k}, as a string"
    body = f"""
        groups = {{}}
        for v in a_:
            if {put(keep.code, "v")}:
                groups.setdefault({key}, []).append(v)
        return {{k: {put(last.code, "g")} for k, g in groups.items()}}
    """
    return program(
        "group_values",
        ["ints"],
        f"a dictionary: put each value of a_ that is {keep.step} into a group {said}; map each "
        f"group's key to {about(last.phrase, 'the group')}",
        body,
        inputs.int_list(-50, 120, 4, 9),
        (([],), ([7],), ([0, 10, -10],)),
    )


@generator("dict-merge", "medium")
def merge_dictionaries(rng: random.Random) -> Problem:
    keep, piece = int_predicate(rng), int_operation(rng)
    rule = rng.choice(("p + q", "max(p, q)", "p - q", "p * q", "min(p, q)", "2 * p + q"))
    missing = rng.choice((0, 0, 1, -1, 5, 10))
    body = f"""
        out = {{}}
        for key in [*a_, *b_]:
            p, q = a_.get(key, {missing}), b_.get(key, {missing})
            v = {put(piece.code, rule)}
            if {put(keep.code, "v")}:
                out[key] = v
        return out
    """

    def draw(r: random.Random) -> tuple[dict[str, int], dict[str, int]]:
        keys = r.sample(inputs.WORDS, 6)
        return tuple(  # type: ignore[return-value]
            {k: r.randint(-5, 20) for k in r.sample(keys, r.randint(2, 4))} for _ in range(2)
        )

    return program(
        "merge_tables",
        ["dict", "other"],
        f"a dictionary with, for each key of a_ or b_, {about(piece.phrase, f'({rule})')}, where p "
        f"is the key's value in a_ and q the one in b_ ({missing} where the key is missing); leave "
        f"out results that are not {keep.step}",
        body,
        draw,
        [({}, {}), ({"cat": 1}, {}), ({}, {"cat": 4}), ({"cat": 2}, {"cat": 3})],
    )


@generator("dict-invert", "medium")
def invert_dictionary(rng: random.Random) -> Problem:
    piece, change = int_operation(rng), text_operation(rng)
    glue = rng.choice((",", "", "+", " "))
    body = f"""
        out = {{}}
        for k, v in sorted(a_.items()):
            found = str({put(piece.code, "v")})
            k = {put(change.code, "k")}
            out[found] = out[found] + '{glue}' + k if found in out else k
        return out
    """

    def draw(r: random.Random) -> tuple[dict[str, int]]:
        return ({k: r.randint(0, 4) for k in r.sample(inputs.WORDS, r.randint(2, 6))},)

    return program(
        "invert",
        ["dict"],
        f"a dictionary that maps str of {about(piece.phrase, 'v')}, for each value v of a_, to the "
        f"keys with that result: keys in alphabetical order, each changed so ({change.step}), "
        f"joined by '{glue}'",
        body,
        draw,
        (({},), ({"cat": 0},), ({"dog": 1, "ant": 1},)),
    )
