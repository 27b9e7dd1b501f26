"""Generators of functions of lists."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    Piece,
    about,
    int_operation,
    int_predicate,
    list_operation,
    list_reduction,
    number_word,
    put,
    sample,
    steps,
    text_operation,
    text_predicate,
)
from educe.domains.builtin.python_functions.problem import Problem, expression, program
from educe.domains.builtin.python_functions.registry import generator

_LIST = inputs.int_list()
_SHORT = inputs.int_list(longest=5)
_EDGES: tuple[tuple[list[int]], ...] = (([],), ([5],), ([0, 0],), ([-3, 4, -3],))


@generator("list-reduce", "tiny")
def reduce_list(rng: random.Random) -> Problem:
    k = rng.choice((0, *range(1, 21)))
    phrase, code, name = rng.choice(
        (
            ("the sum of a_", "sum(a_)", "total"),
            ("the largest value in a_", "max(a_)", "largest"),
            ("the smallest value in a_", "min(a_)", "smallest"),
            ("the length of a_", "len(a_)", "length"),
            ("the first element of a_", "a_[0]", "first"),
            ("the last element of a_", "a_[-1]", "last"),
            ("the number of distinct values in a_", "len(set(a_))", "num_distinct"),
            ("the largest minus the smallest value in a_", "max(a_) - min(a_)", "spread"),
            ("the sum of the first and the last element of a_", "a_[0] + a_[-1]", "ends"),
        )
    )
    tail, code, suffix = (
        (f", plus {k}", f"{code} + {k}", f"_plus_{number_word(k)}") if k else ("", code, "")
    )
    return expression(
        name + suffix, ["ints"], phrase + tail, code, _SHORT, [([5],), ([0, 0],), ([-3, 4, -3],)]
    )


@generator("list-reduce", "easy")
def reduce_filtered(rng: random.Random) -> Problem:
    keep, last = int_predicate(rng), list_reduction(rng)
    kept = f"[v for v in a_ if {put(keep.code, 'v')}]"
    return expression(
        f"{last.name}_of_{keep.name}",
        ["ints"],
        about(last.phrase, f"those values in a_ that are {keep.step}").replace(
            "values in those values", "those values"
        ),
        put(last.code, kept),
        _LIST,
        _EDGES,
    )


@generator("list-map", "tiny")
def map_list(rng: random.Random) -> Problem:
    piece = int_operation(rng)
    return expression(
        f"map_{piece.name}",
        ["ints"],
        f"a list with {about(piece.phrase, 'v')} for each v in a_",
        f"[{put(piece.code, 'v')} for v in a_]",
        _SHORT,
        _EDGES,
    )


@generator("list-map", "easy")
def map_conditionally(rng: random.Random) -> Problem:
    when = int_predicate(rng)
    yes, no = sample(rng, int_operation, 2)
    other, said = rng.choice((("v", "v itself"), (put(no.code, "v"), about(no.phrase, "v"))))
    return expression(
        f"map_if_{when.name}",
        ["ints"],
        f"a list with, for each v in a_, {about(yes.phrase, 'v')} if {about(when.phrase, 'v')}, "
        f"and {said} otherwise",
        f"[{put(yes.code, 'v')} if {put(when.code, 'v')} else {other} for v in a_]",
        _LIST,
        _EDGES,
    )


@generator("list-filter", "tiny")
def filter_list(rng: random.Random) -> Problem:
    piece = int_predicate(rng)
    drop = rng.random() < 0.3
    code = put(piece.code, "v")
    return expression(
        ("drop_" if drop else "keep_") + piece.name,
        ["ints"],
        f"the list of the values in a_ that are {'not ' * drop}{piece.step}",
        f"[v for v in a_ if {f'not ({code})' if drop else code}]",
        _SHORT,
        _EDGES,
    )


@generator("list-filter", "easy")
def filter_twice(rng: random.Random) -> Problem:
    first, second = sample(rng, int_predicate, 2)
    join = rng.choice(("and", "or"))
    return expression(
        f"keep_{first.name}",
        ["ints"],
        f"the list of the values in a_ that are {first.step} {join} {second.step}",
        f"[v for v in a_ if {put(first.code, 'v')} {join} {put(second.code, 'v')}]",
        _LIST,
        _EDGES,
    )


@generator("list-slice", "tiny")
def slice_list(rng: random.Random) -> Problem:
    k, m = rng.randint(1, 4), rng.randint(2, 3)
    extra = rng.randint(0, 30)
    items = "element" if k == 1 else f"{k} elements"
    phrase, code, name = rng.choice(
        (
            (f"the first {items} of a_", f"a_[:{k}]", f"first_{k}"),
            (f"the last {items} of a_", f"a_[-{k}:]", f"last_{k}"),
            (f"a_ without its first {items}", f"a_[{k}:]", f"drop_{k}"),
            (f"a_ without its last {items}", f"a_[:-{k}]", f"drop_last_{k}"),
            (f"every {m}th element of a_ (starting with the first)", f"a_[::{m}]", "every"),
            ("a_ reversed", "a_[::-1]", "reverse"),
        )
    )
    phrase = phrase.replace("2th", "2nd").replace("3th", "3rd")
    end, tail, suffix = rng.choice(
        (
            ("", "", ""),
            (f", with {extra} added at the end", f" + [{extra}]", "_append"),
            (f", after a first element {extra}", "", "_prepend"),
        )
    )
    code = f"[{extra}] + {code}" if suffix == "_prepend" else code + tail
    return expression(name + suffix, ["ints"], phrase + end, code, _SHORT, _EDGES)


@generator("list-order", "tiny")
def sort_list(rng: random.Random) -> Problem:
    down, k = rng.choice((True, False)), rng.randint(1, 9)
    items = "element" if k == 1 else f"{k} elements"
    args = ", reverse=True" if down else ""
    order = "descending" if down else "ascending"
    part, code, name = rng.choice(
        (
            ("the list a_", "@", "sort"),
            (f"the first {items} after sorting a_", f"@[:{k}]", f"top_{k}"),
            (f"all but the first {items} after sorting a_", f"@[{k}:]", f"rest_{k}"),
            (f"the last {items} after sorting a_", f"@[-{k}:]", f"bottom_{k}"),
            (f"a list of each value plus {k} after sorting a_", f"[v + {k} for v in @]", "shifted"),
            (f"a list of each value times {k} after sorting a_", f"[v * {k} for v in @]", "scaled"),
        )
    )
    return expression(
        f"{name}_{order}",
        ["ints"],
        f"{part} sorted in {order} order" if name == "sort" else f"{part} in {order} order",
        put(code, f"sorted(a_{args})"),
        inputs.int_list(shortest=4, longest=6),
        _EDGES,
    )


@generator("list-order", "easy")
def sort_by_key(rng: random.Random) -> Problem:
    k, piece, keep = rng.randint(2, 9), int_operation(rng), int_predicate(rng)
    text, code = rng.choice(
        (
            ("their absolute value", "abs(v)"),
            (f"their remainder modulo {k}", f"v % {k}"),
            ("their last decimal digit", "abs(v) % 10"),
            (f"their distance from {k}", f"abs(v - {k})"),
            (about(piece.phrase, "the value"), put(piece.code, "v")),
        )
    )
    tie, said = rng.choice((("v", "smaller"), ("-v", "larger")))
    return expression(
        "order_by",
        ["ints"],
        f"the values of a_ that are {keep.step}, sorted by {text}; of two values with equal keys "
        f"the {said} one comes first",
        f"sorted([v for v in a_ if {put(keep.code, 'v')}], key=lambda v: ({code}, {tie}))",
        inputs.int_list(shortest=4, longest=9),
        _EDGES,
    )


@generator("list-search", "easy")
def search_list(rng: random.Random) -> Problem:
    keep, missing = int_predicate(rng), rng.choice((-1, 0, 100, 99))
    text, code = rng.choice(
        (
            ("the index of the first", "next((i for i, v in enumerate(a_) if @), !)"),
            ("the index of the last", "next((i for i in range(len(a_))[::-1] if #), !)"),
            ("the first", "next((v for v in a_ if @), !)"),
            ("the last", "next((v for v in a_[::-1] if @), !)"),
        )
    )
    code = (
        code.replace("!", str(missing))
        .replace("@", put(keep.code, "v"))
        .replace("#", put(keep.code, "a_[i]"))
    )
    return expression(
        f"search_{keep.name}",
        ["ints"],
        f"{text} value in a_ that is {keep.step}, or {missing} if there is none",
        code,
        _LIST,
        _EDGES,
    )


@generator("list-pipeline", "easy")
def pipeline_two(rng: random.Random) -> Problem:
    return _pipeline(rng, 2)


@generator("list-pipeline", "medium")
def pipeline_three(rng: random.Random) -> Problem:
    return _pipeline(rng, 3, end=True)


@generator("list-pipeline", "hard")
def pipeline_five(rng: random.Random) -> Problem:
    return _pipeline(rng, 5, end=True)


def _pipeline(rng: random.Random, count: int, end: bool = False) -> Problem:
    """List operations in a row, each on a line of its own, perhaps ended by a reduction."""
    pieces = sample(rng, list_operation, count)
    lines = [f"a_ = {put(p.code, 'a_')}" for p in pieces]
    last: Piece | None = list_reduction(rng) if end else None
    tail = f", then {last.step}" if last else ""
    lines.append(f"return {put(last.code, 'a_') if last else 'a_'}")
    return program(
        rng.choice(("pipeline", "transform", "process_list")),
        ["ints"],
        f"the result of these steps on the list a_: {steps(pieces)}{tail}",
        "\n".join(lines),
        inputs.int_list(shortest=5, longest=10),
        _EDGES,
    )


@generator("windows", "medium")
def windows(rng: random.Random) -> Problem:
    k, piece, keep = rng.randint(2, 4), int_operation(rng), int_predicate(rng)
    inner, said = rng.choice(
        (
            ("sum(a_[i:i + K])", "sum"),
            ("max(a_[i:i + K])", "largest value"),
            ("min(a_[i:i + K])", "smallest value"),
            ("a_[i + K - 1] - a_[i]", "last minus first value"),
            ("max(a_[i:i + K]) - min(a_[i:i + K])", "largest minus smallest value"),
        )
    )
    how, text = rng.choice(
        (
            ("out", "the list, in order, of"),
            ("max(out, default=0)", "the largest (0 if there is none) of"),
            ("len(out)", "the number of"),
            ("sum(out)", "the sum of"),
        )
    )
    inner = inner.replace("K", str(k)).replace(f"{k} - 1", str(k - 1))
    body = f"""
        out = []
        for i in range(len(a_) - {k - 1}):
            v = {put(piece.code, inner)}
            if {put(keep.code, "v")}:
                out.append(v)
        return {how}
    """
    return program(
        f"windows_{number_word(k)}",
        ["ints"],
        f"{text} those results that are {keep.step}, where each {k} consecutive elements of a_ "
        f"give a result: {about(piece.phrase, f'their {said}')}",
        body,
        inputs.int_list(shortest=4, longest=9),
        _EDGES,
    )


@generator("pairs", "medium")
def count_pairs(rng: random.Random) -> Problem:
    k, keep = rng.randint(2, 9), int_predicate(rng)
    text, code = rng.choice(
        (
            (f"a_[i] + {k} * a_[j]", f"a_[i] + {k} * a_[j]"),
            ("a_[i] * a_[j]", "a_[i] * a_[j]"),
            (f"a_[j] - a_[i] + {k}", f"a_[j] - a_[i] + {k}"),
            (f"(j - i) * {k} + a_[j]", f"(j - i) * {k} + a_[j]"),
            ("max(a_[i], a_[j])", "max(a_[i], a_[j])"),
        )
    )
    how, add, said = rng.choice(
        (("number", "1", ""), ("sum", "v", " of the results"), ("sum", "i", " of the indices i"))
    )
    body = f"""
        total = 0
        for i in range(len(a_)):
            for j in range(i + 1, len(a_)):
                v = {code}
                if {put(keep.code, "v")}:
                    total += {add}
        return total
    """
    return program(
        "count_pairs",
        ["ints"],
        f"the {how}{said} of index pairs i < j for which {text} is {keep.step}"
        if how == "number"
        else f"the {how}{said}, over all index pairs i < j for which the result {text} is "
        f"{keep.step}",
        body,
        inputs.int_list(-9, 12, 3, 7),
        _EDGES,
    )


@generator("two-lists", "easy")
def zip_lists(rng: random.Random) -> Problem:
    piece, keep = int_operation(rng), int_predicate(rng)
    code = rng.choice(
        ("v + w", "v * w", "v - w", "max(v, w)", "min(v, w)", "2 * v + w", "v - 3 * w")
    )
    how, text = rng.choice(
        (
            ("[@]", "the list"),
            ("sum(@)", "the sum"),
            ("max([@], default=0)", "the largest (0 if there is none)"),
        )
    )
    inner = f"u for u in [{put(piece.code, code)} for v, w in zip(a_, b_)] if {put(keep.code, 'u')}"
    return expression(
        f"combine_{piece.name}",
        ["ints", "other"],
        f"{text} of those results that are {keep.step}, where elements v of a_ and w of b_ at the "
        f"same index give the result {about(piece.phrase, f'({code})')}",
        how.replace("@", inner),
        inputs.both(_LIST, _LIST),
        [([], []), ([1], []), ([2, 3], [4, 5]), ([0], [0])],
    )


@generator("running", "medium")
def running(rng: random.Random) -> Problem:
    start, reset = rng.randint(-5, 10), int_predicate(rng)
    step = rng.choice(("state + v", "max(state, v)", "state - v", "v - state", "min(state, v) + 1"))
    again = rng.choice(("0", "v", str(start), "1"))
    how, text = rng.choice(
        (
            ("out", "the list of the states"),
            ("state", "the last state"),
            ("max(out, default=0)", "the largest state (0 if a_ is empty)"),
        )
    )
    body = f"""
        state, out = {start}, []
        for v in a_:
            state = {again} if {put(reset.code, "v")} else {step}
            out.append(state)
        return {how}
    """
    return program(
        "running_state",
        ["ints"],
        f"{text} after each value v of a_, where the state starts as {start} and becomes {again} "
        f"if {about(reset.phrase, 'v')} and otherwise {step}",
        body,
        _LIST,
        _EDGES if how != "state" else _EDGES[1:],
    )


@generator("chunks", "medium")
def chunks(rng: random.Random) -> Problem:
    k, last, piece = rng.randint(2, 4), list_reduction(rng), int_operation(rng)
    partial = rng.choice((True, False))
    stop = "len(a_)" if partial else f"len(a_) - {k - 1}"
    said = "the last one may be shorter" if partial else "an incomplete last one is left out"
    return expression(
        f"chunks_of_{number_word(k)}",
        ["ints"],
        f"a list with one number for each chunk of {k} consecutive elements of a_ ({said}): "
        f"{about(piece.phrase, about(last.phrase, 'the chunk'))}",
        f"[{put(piece.code, put(last.code, f'a_[i:i + {k}]'))} for i in range(0, {stop}, {k})]",
        inputs.int_list(shortest=4, longest=11),
        _EDGES,
    )


@generator("rotation", "easy")
def rotate(rng: random.Random) -> Problem:
    k, piece, right = rng.randint(1, 5), list_operation(rng), rng.choice((True, False))
    body = f"""
        if not a_:
            return []
        k = {k} % len(a_)
        a_ = {"a_[-k:] + a_[:-k]" if right else "a_[k:] + a_[:k]"}
        return {put(piece.code, "a_")}
    """
    if right:
        body = body.replace(f"k = {k} % len(a_)", f"k = len(a_) - {k} % len(a_)").replace(
            "a_[-k:] + a_[:-k]", "a_[k:] + a_[:k]"
        )
    way = "right" if right else "left"
    return program(
        f"rotate_{way}",
        ["ints"],
        f"the result of rotating a_ by {k} place{'s' * (k > 1)} to the {way} and then: "
        f"{piece.step}",
        body,
        inputs.int_list(shortest=3, longest=8),
        (([],), ([5],), ([1, 2],), ([-3, 4, -3],)),
    )


@generator("string-list", "tiny")
def map_strings(rng: random.Random) -> Problem:
    piece = text_operation(rng)
    tail = rng.choice(("", "!", "-"))
    code = put(piece.code, "w") + (f" + '{tail}'" if tail else "")
    return expression(
        f"each_{piece.name}",
        ["strs"],
        f"a list with {about(piece.phrase, 'w')}{f' and then {tail!r}' * bool(tail)} for each w in "
        "a_",
        f"[{put('@', code)} for w in a_]",
        inputs.few_words,
        [([],), (["a"],), (["", "noon"],)],
    )


@generator("string-list", "easy")
def filter_strings(rng: random.Random) -> Problem:
    keep, piece = text_predicate(rng), text_operation(rng)
    how, text, after = rng.choice(
        (
            ("[@]", "the list of", ""),
            ("sorted([@])", "the sorted list of", ""),
            ("sum(len(u) for u in [@])", "the total length of", ""),
            ("'-'.join([@])", "the string of", ", joined by '-'"),
            ("len([@])", "the number of", ""),
        )
    )
    inner = f"{put(piece.code, 'w')} for w in a_ if {put(keep.code, 'w')}"
    return expression(
        f"strings_{keep.name}",
        ["strs"],
        f"{text} the strings in a_ {keep.step}, after this change of each: {piece.step}{after}",
        how.replace("@", inner),
        inputs.words,
        [([],), (["a"],), (["", "noon"],), (["stone", "star", "stone"],)],
    )
