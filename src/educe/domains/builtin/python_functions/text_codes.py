"""Generators of functions that encode, decode and parse strings."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    about,
    char_predicate,
    int_operation,
    letter,
    put,
    text_operation,
)
from educe.domains.builtin.python_functions.problem import Problem, expression, program
from educe.domains.builtin.python_functions.registry import generator


@generator("char-map", "easy")
def map_characters(rng: random.Random) -> Problem:
    a, b, c = rng.sample("aeiorstnl", 3)
    x, y, z = rng.sample("*#@+=7", 3)
    return expression(
        f"swap_{a}{b}{c}",
        ["str"],
        f"a_ with '{a}' replaced by '{b}' and '{b}' by '{a}' (at the same time), '{c}' by '{x}'"
        f" and spaces by '{y}', followed by '{z}'",
        f"a_.translate(str.maketrans('{a}{b}{c} ', '{b}{a}{x}{y}')) + '{z}'",
        inputs.sentence,
        (("",), (a + b + c,), (b + a,)),
    )


@generator("caesar", "medium")
def shift_letters(rng: random.Random) -> Problem:
    k, keep = rng.choice((*range(1, 13), *range(-12, 0))), char_predicate(rng)
    body = f"""
        out = ''
        for c in a_:
            if 'a' <= c <= 'z' and {put(keep.code, "c")}:
                c = chr((ord(c) - 97 + {k}) % 26 + 97)
            out += c
        return out
    """
    direction = "forwards" if k > 0 else "backwards"
    return program(
        "shift_letters",
        ["str"],
        f"a_ with those lower-case letters that belong to the {keep.phrase} shifted {abs(k)} "
        f"places {direction} in the alphabet (wrapping around), everything else unchanged",
        body,
        inputs.sentence,
        (("",), ("xyz abc",), ("A1 b",)),
    )


@generator("caesar", "hard")
def keyed_shift(rng: random.Random) -> Problem:
    start, grow, sign = rng.randint(0, 9), rng.randint(1, 6), rng.choice((1, -1))
    body = f"""
        out, shift = '', {start}
        for i, c in enumerate(a_):
            if 'a' <= c <= 'z':
                move = shift + ord(b_[i % len(b_)]) - 97
                c = chr((ord(c) - 97 + {sign} * move) % 26 + 97)
                shift += {grow}
            out += c
        return out
    """
    way = "forwards" if sign == 1 else "backwards"
    return program(
        "encipher",
        ["str", "other"],
        f"a_ enciphered: the letter at index i moves {way} in the alphabet (wrapping around) by "
        f"the alphabet position (a=0) of the character of b_ at index i modulo len(b_), plus a "
        f"shift; the shift is {start} at first and grows by {grow} after each letter",
        body,
        inputs.both(inputs.sentence, inputs.letters("abcdefgh", 2, 4)),
        (("", "a"), ("a", "b"), ("zz zz", "ab")),
        notes="Characters other than lower-case letters stay as they are.",
    )


@generator("run-length", "medium")
def run_lengths(rng: random.Random) -> Problem:
    least, glue = rng.randint(1, 3), rng.choice(("", ",", " ", ";"))
    piece = rng.choice(
        ("c + str(count)", "str(count) + c", "c + ':' + str(count)", "c * min(count, 2)")
    )
    text = {
        "c + str(count)": "the character followed by the run's length",
        "str(count) + c": "the run's length followed by the character",
        "c + ':' + str(count)": "the character, ':' and the run's length",
        "c * min(count, 2)": "the character once or, if the run is longer than 1, twice",
    }[piece]
    keep = char_predicate(rng)
    body = f"""
        out, i = [], 0
        while i < len(a_):
            c, count = a_[i], 1
            while i + count < len(a_) and a_[i + count] == c:
                count += 1
            if count >= {least} and {put(keep.code, "c")}:
                out.append({piece})
            i += count
        return '{glue}'.join(out)
    """
    plural = "characters" if least > 1 else "character"
    return program(
        "encode_runs",
        ["str"],
        f"one string: for each run of equal characters in a_ that has at least {least} {plural} "
        f"and consists of {keep.phrase}, write {text}; join the pieces with '{glue}'",
        body,
        inputs.letters("aabbcde", 4, 12),
        (("",), ("a",), ("aaab",), ("bbcc",)),
    )


@generator("brackets", "hard")
def brackets(rng: random.Random) -> Problem:
    kinds = rng.sample(("()", "[]", "{}", "<>"), rng.randint(2, 3))
    opens, closes = "".join(k[0] for k in kinds), "".join(k[1] for k in kinds)
    bonus, bad = rng.randint(0, 9), rng.randint(-9, -1)
    what, code = rng.choice(
        (
            ("the greatest nesting depth", "deepest"),
            ("the number of matched pairs", "matched"),
            ("the greatest nesting depth times the number of pairs", "deepest * matched"),
        )
    )
    body = f"""
        stack, deepest, matched = [], 0, 0
        for c in a_:
            if c in '{opens}':
                stack.append(c)
                deepest = max(deepest, len(stack))
            elif c in '{closes}':
                if not stack or '{opens}'.index(stack.pop()) != '{closes}'.index(c):
                    return {bad}
                matched += 1
        return {bad} if stack else {code} + {bonus}
    """

    def draw(r: random.Random) -> tuple[str]:
        text = ""
        for _ in range(r.randint(1, 4)):
            kind = r.choice(kinds)
            text = r.choice((kind[0] + text + kind[1], text + kind, kind + text + "a"))
        if r.random() < 0.35:
            spot = r.randrange(len(text))
            text = text[:spot] + r.choice(opens + closes) + text[spot + 1 :]
        return (text,)

    plus = f" plus {bonus}" if bonus else ""
    return program(
        "measure_brackets",
        ["str"],
        f"{what}{plus} of the brackets {' '.join(kinds)} in a_ if they are balanced and properly "
        f"nested, otherwise {bad}",
        body,
        draw,
        (("",), (kinds[0][1] + kinds[0][0],), (kinds[0][0],), (kinds[0][0] + kinds[1][1],)),
        notes="Ignore all other characters.",
    )


@generator("palindromes", "hard")
def palindromes(rng: random.Random) -> Problem:
    keep, least, piece = char_predicate(rng), rng.randint(1, 3), int_operation(rng)
    what, code = rng.choice(
        (
            ("the length of the longest", "max(map(len, found), default=0)"),
            ("the number of distinct", "len(set(found))"),
            ("the number of", "len(found)"),
        )
    )
    body = f"""
        found = []
        for i in range(len(a_)):
            for j in range(i + {least}, len(a_) + 1):
                part = a_[i:j]
                c = part[0]
                if part == part[::-1] and {put(keep.code, "c")}:
                    found.append(part)
        return {put(piece.code, code)}
    """
    return program(
        "palindromes",
        ["str"],
        f"the result of taking {what} substrings of a_ (contiguous) with at least {least} "
        f"character{'s' * (least > 1)} that read the same backwards and whose first character is "
        f"among the {keep.phrase} (0 if there is none), and applying to it: {piece.step}",
        body,
        inputs.letters("aabcde", 3, 9),
        (("",), ("a",), ("aaaa",), ("abcba",)),
    )


@generator("two-strings", "easy")
def two_strings(rng: random.Random) -> Problem:
    keep, piece = char_predicate(rng), text_operation(rng)
    phrase, code = rng.choice(
        (
            ("the characters of a_ that also occur in b_", "''.join(c for c in a_ if c in b_)"),
            (
                "the characters of a_ that do not occur in b_",
                "''.join(c for c in a_ if c not in b_)",
            ),
            (
                "the letters of a_ and b_ taken in turn until one ends",
                "''.join(c + d for c, d in zip(a_, b_))",
            ),
            ("the longer one of a_ and b_ (a_ if equal)", "a_ if len(a_) >= len(b_) else b_"),
            ("the one of a_ and b_ that comes first alphabetically", "min(a_, b_)"),
            (
                f"all {keep.phrase} of a_ followed by b_",
                f"''.join(c for c in a_ if {put(keep.code, 'c')}) + b_",
            ),
        )
    )
    return expression(
        f"merge_{piece.name}",
        ["str", "other"],
        f"the result of taking {phrase} and then: {piece.step}",
        put(piece.code, code),
        inputs.both(inputs.word, inputs.word),
        [("", ""), ("ab", ""), ("", "ab"), ("stone", "notes")],
    )


@generator("parsing", "medium")
def parse_fields(rng: random.Random) -> Problem:
    outer, inner = rng.choice(";,|&"), rng.choice("=:~")
    piece, keep = int_operation(rng), letter(rng)
    how, text = rng.choice(
        (
            ("total", "the sum of"),
            ("out", "a dictionary that maps each key to"),
            ("max(out.values(), default=0)", "the largest (0 if there is none) of"),
        )
    )
    test, said = rng.choice(
        (
            (f"'{keep}' in key", f"whose key contains '{keep}'"),
            (f"'{keep}' not in key", f"whose key does not contain '{keep}'"),
            ("len(key) > 3", "whose key is longer than 3"),
        )
    )
    body = f"""
        out, total = {{}}, 0
        for part in a_.split('{outer}'):
            key, found, number = part.partition('{inner}')
            if found and {test}:
                out[key] = {put(piece.code, "int(number)")}
        total = sum(out.values())
        return {how}
    """

    def draw(r: random.Random) -> tuple[str]:
        keys = r.sample(inputs.WORDS, r.randint(2, 5))
        parts = [f"{k}{inner}{r.randint(-9, 30)}" for k in keys]
        if r.random() < 0.3:
            parts.insert(r.randint(0, len(parts)), r.choice(inputs.WORDS))
        return (outer.join(parts),)

    return program(
        "parse_fields",
        ["str"],
        f"{text} {about(piece.phrase, 'v')}, for the fields of a_ {said}; a_ looks like "
        f"'key{inner}v{outer}key{inner}v' with integers v and different keys",
        body,
        draw,
        (("",), ("x",), (f"stone{inner}4",), (f"cat{inner}-3{outer}river{inner}8",)),
        notes=f"Skip fields without '{inner}'.",
    )


@generator("clock", "medium")
def clock(rng: random.Random) -> Problem:
    start, glue = rng.randint(0, 1439), rng.choice(":.h")
    factor, sign = rng.randint(1, 5), rng.choice((1, -1))
    body = f"""
        total = ({start} + {sign * factor} * a_) % 1440
        return f'{{total // 60:02d}}{glue}{{total % 60:02d}}'
    """
    way = "after" if sign == 1 else "before"
    each = "a_ minutes" if factor == 1 else f"{factor} times a_ minutes"
    shown = f"{start // 60:02d}{glue}{start % 60:02d}"
    return program(
        "clock_time",
        ["int"],
        f"the time of day, as a string like '{shown}' (24-hour clock), {each} {way} {shown}",
        body,
        inputs.integer(1, 2000),
        [(0,), (60,), (1440,), (1439,)],
    )
