"""Small operations with their wording; generators compose them into functions.

In ``phrase`` (a noun phrase), ``step`` (a command) and ``code``, ``@`` stands for the operand.
"""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from educe.domains.builtin.python_functions.problem import NUMBER_WORDS


@dataclass(frozen=True, slots=True)
class Piece:
    name: str
    phrase: str
    step: str
    code: str


def number_word(k: int) -> str:
    return NUMBER_WORDS[k] if 0 <= k < len(NUMBER_WORDS) else str(k)


@functools.lru_cache(maxsize=8192)
def put(code: str, operand: str) -> str:
    """Return the code applied to an operand, with no more brackets than needed."""
    return ast.unparse(ast.parse(code.replace("@", f"({operand})"), mode="eval"))


def chain(pieces: Sequence[Piece], operand: str) -> str:
    """Return the code of all pieces applied one after the other."""
    for piece in pieces:
        operand = put(piece.code, operand)
    return operand


def steps(pieces: Sequence[Piece]) -> str:
    """Return the commands joined: ``add 7, then multiply by 3``."""
    return ", then ".join(p.step for p in pieces)


def sample(rng: random.Random, make: object, count: int) -> list[Piece]:
    """Return pieces of different kinds: two in a row never share the first word of their name."""
    assert callable(make)
    chosen: list[Piece] = []
    while len(chosen) < count:
        piece = make(rng)
        if not chosen or chosen[-1].name.split("_")[0] != piece.name.split("_")[0]:
            chosen.append(piece)
    return chosen


def int_operation(rng: random.Random) -> Piece:
    """An operation from an integer to an integer."""
    k = rng.randint(2, 20)
    small, w = rng.randint(2, 9), number_word(k)
    ws = number_word(small)
    plain = rng.choice(
        (
            Piece("square", "@ squared", "square it", "@ ** 2"),
            Piece("negate", "minus @", "negate it", "-@"),
            Piece("absolute", "the absolute value of @", "take the absolute value", "abs(@)"),
        )
    )
    return rng.choice(
        (
            plain,
            Piece(f"add_{w}", f"@ plus {k}", f"add {k}", f"@ + {k}"),
            Piece(f"subtract_{w}", f"@ minus {k}", f"subtract {k}", f"@ - {k}"),
            Piece(f"times_{ws}", f"@ times {small}", f"multiply by {small}", f"@ * {small}"),
            Piece(f"mod_{ws}", f"@ modulo {small}", f"take it modulo {small}", f"@ % {small}"),
            Piece(f"div_{ws}", f"@ // {small}", f"floor-divide by {small}", f"@ // {small}"),
            Piece(f"from_{w}", f"{k} minus @", f"subtract it from {k}", f"{k} - @"),
            Piece(f"cap_{w}", f"the smaller of @ and {k}", f"cap it at {k}", f"min(@, {k})"),
            Piece(
                f"at_least_{w}",
                f"the larger of @ and {k}",
                f"raise it to at least {k}",
                f"max(@, {k})",
            ),
        )
    )


def int_predicate(rng: random.Random) -> Piece:
    """A condition on an integer; the phrase continues ``True if``."""
    k, small = rng.randint(-10, 15), rng.randint(2, 9)
    high = k + rng.randint(3, 12)
    digit = rng.randint(0, 9)
    rest = rng.randint(1, small - 1)
    w, ws = number_word(k) if k >= 0 else f"minus_{-k}", number_word(small)
    parity = rng.choice(
        (
            Piece("is_even", "@ is even", "even", "@ % 2 == 0"),
            Piece("is_odd", "@ is odd", "odd", "@ % 2 == 1"),
        )
    )
    return rng.choice(
        (
            parity,
            Piece(f"above_{w}", f"@ is greater than {k}", f"greater than {k}", f"@ > {k}"),
            Piece(f"below_{w}", f"@ is less than {k}", f"less than {k}", f"@ < {k}"),
            Piece(f"at_least_{w}", f"@ is at least {k}", f"at least {k}", f"@ >= {k}"),
            Piece(
                f"divisible_by_{ws}",
                f"@ is divisible by {small}",
                f"divisible by {small}",
                f"@ % {small} == 0",
            ),
            Piece(
                f"leaves_{rest}_mod_{ws}",
                f"@ modulo {small} is {rest}",
                f"equal to {rest} modulo {small}",
                f"@ % {small} == {rest}",
            ),
            Piece(
                f"from_{w}_to_{high}",
                f"@ is between {k} and {high} inclusive",
                f"between {k} and {high} inclusive",
                f"{k} <= @ <= {high}",
            ),
            Piece(f"not_{w}", f"@ is not {k}", f"different from {k}", f"@ != {k}"),
            Piece(
                f"ends_in_{digit}",
                f"the last digit of @ is {digit}",
                f"ending in the digit {digit}",
                f"abs(@) % 10 == {digit}",
            ),
        )
    )


def letter(rng: random.Random) -> str:
    return rng.choice("aeiorstnlcd")


def text_operation(rng: random.Random) -> Piece:
    """An operation from a string to a string."""
    k, c, d = rng.randint(1, 4), letter(rng), rng.choice("xyz*-_#")
    affix = rng.choice(("!", "?", "ing", "s", "-", "ab", "##", "...", "end", "1"))
    many = rng.randint(2, 4)
    w, wm = number_word(k), number_word(many)
    chars = "character" if k == 1 else f"{k} characters"
    return rng.choice(
        (
            Piece("upper", "@ in upper case", "convert to upper case", "@.upper()"),
            Piece("capitalize", "@ capitalized", "capitalize it", "@.capitalize()"),
            Piece("reverse", "@ reversed", "reverse it", "@[::-1]"),
            Piece(f"first_{w}", f"the first {chars} of @", f"keep the first {chars}", f"@[:{k}]"),
            Piece(f"last_{w}", f"the last {chars} of @", f"keep the last {chars}", f"@[-{k}:]"),
            Piece(
                f"drop_first_{w}",
                f"@ without its first {chars}",
                f"drop the first {chars}",
                f"@[{k}:]",
            ),
            Piece(
                f"drop_last_{w}",
                f"@ without its last {chars}",
                f"drop the last {chars}",
                f"@[:-{k}]",
            ),
            Piece(
                f"remove_{c}",
                f"@ with every '{c}' removed",
                f"remove every '{c}'",
                f"@.replace('{c}', '')",
            ),
            Piece(
                f"replace_{c}",
                f"@ with every '{c}' replaced by '{d}'",
                f"replace every '{c}' by '{d}'",
                f"@.replace('{c}', '{d}')",
            ),
            Piece("append", f"@ followed by '{affix}'", f"append '{affix}'", f"@ + '{affix}'"),
            Piece(
                "prepend", f"'{affix}' followed by @", f"put '{affix}' in front", f"'{affix}' + @"
            ),
            Piece(
                f"repeat_{wm}", f"@ repeated {many} times", f"repeat it {many} times", f"@ * {many}"
            ),
            Piece(
                f"every_{wm}",
                f"every {ordinal(many)} character of @, starting with the first",
                f"keep every {ordinal(many)} character, starting with the first",
                f"@[::{many}]",
            ),
        )
    )


def text_predicate(rng: random.Random) -> Piece:
    """A condition on a string."""
    c, k = letter(rng), rng.randint(3, 6)
    least = rng.randint(1, 2)
    rare = rng.choice(
        (
            Piece("even_length", "the length of @ is even", "of even length", "len(@) % 2 == 0"),
            Piece(
                "same_ends",
                "@ starts and ends with the same character",
                "with equal first and last character",
                "@[:1] == @[-1:]",
            ),
        )
    )
    return rng.choice(
        (
            Piece(
                f"starts_with_{c}",
                f"@ starts with '{c}'",
                f"starting with '{c}'",
                f"@.startswith('{c}')",
            ),
            Piece(
                f"ends_with_{c}", f"@ ends with '{c}'", f"ending with '{c}'", f"@.endswith('{c}')"
            ),
            Piece(f"has_{c}", f"@ contains '{c}'", f"containing '{c}'", f"'{c}' in @"),
            Piece(f"lacks_{c}", f"@ does not contain '{c}'", f"without '{c}'", f"'{c}' not in @"),
            Piece(
                f"longer_than_{k}",
                f"@ has more than {k} characters",
                f"longer than {k}",
                f"len(@) > {k}",
            ),
            Piece(
                f"shorter_than_{k}",
                f"@ has fewer than {k} characters",
                f"shorter than {k}",
                f"len(@) < {k}",
            ),
            Piece(
                f"count_{c}_over_{least}",
                f"@ contains '{c}' more than {least} time{'s' * (least > 1)}",
                f"with more than {least} '{c}'",
                f"@.count('{c}') > {least}",
            ),
            rare,
        )
    )


def char_predicate(rng: random.Random) -> Piece:
    """A condition on one character; the phrase is a plural noun, ``@`` only occurs in the code."""
    c, d = sorted(rng.sample("abcdefghijklmnoprstuw", 2))
    few = "".join(sorted(rng.sample("abcdeilnorst", 3)))
    return rng.choice(
        (
            Piece("vowels", "vowels (aeiou)", "", "@ in 'aeiou'"),
            Piece(f"letter_{c}", f"characters equal to '{c}'", "", f"@ == '{c}'"),
            Piece(f"not_{c}", f"characters other than '{c}'", "", f"@ != '{c}'"),
            Piece(f"up_to_{d}", f"letters from '{c}' to '{d}'", "", f"'{c}' <= @ <= '{d}'"),
            Piece(f"in_{few}", f"characters that are in '{few}'", "", f"@ in '{few}'"),
            Piece(f"not_in_{few}", f"characters that are not in '{few}'", "", f"@ not in '{few}'"),
        )
    )


def list_operation(rng: random.Random) -> Piece:
    """An operation from a list of integers to a list of integers."""
    k = rng.randint(1, 4)
    w, items = number_word(k), "element" if k == 1 else f"{k} elements"
    every = rng.randint(2, 3)
    step, keep = int_operation(rng), int_predicate(rng)
    verb = keep.step
    simple = (
        Piece("sort", "the sorted version of @", "sort ascending", "sorted(@)"),
        Piece(
            "descending",
            "@ sorted in descending order",
            "sort descending",
            "sorted(@, reverse=True)",
        ),
        Piece("reverse", "@ reversed", "reverse the list", "@[::-1]"),
        Piece(f"first_{w}", f"the first {items} of @", f"keep the first {items}", f"@[:{k}]"),
        Piece(f"last_{w}", f"the last {items} of @", f"keep the last {items}", f"@[-{k}:]"),
        Piece(f"drop_{w}", f"@ without its first {items}", f"drop the first {items}", f"@[{k}:]"),
        Piece(
            f"drop_last_{w}", f"@ without its last {items}", f"drop the last {items}", f"@[:-{k}]"
        ),
        Piece(
            "unique",
            "@ without repeated values (keep first occurrences)",
            "remove repeated values, keeping first occurrences",
            "list(dict.fromkeys(@))",
        ),
        Piece(
            f"every_{every}",
            f"every {ordinal(every)} element of @, starting with the first",
            f"keep every {ordinal(every)} element, starting with the first",
            f"@[::{every}]",
        ),
    )
    mapped = Piece(
        f"map_{step.name}",
        f"the list of v -> {put(step.code, 'v')} for each v in @",
        f"replace each v by {put(step.code, 'v')}",
        f"[{put(step.code, 'v')} for v in @]",
    )
    kept = Piece(
        f"keep_{keep.name}",
        f"the values in @ that are {verb}",
        f"keep the values that are {verb}",
        f"[v for v in @ if {put(keep.code, 'v')}]",
    )
    return rng.choice((*simple, mapped, mapped, mapped, kept, kept, kept))


def list_reduction(rng: random.Random) -> Piece:
    """An operation from a list of integers to one integer, defined for the empty list too."""
    keep = int_predicate(rng)
    step = int_operation(rng)
    value = put(step.code, "v")
    return rng.choice(
        (
            Piece("sum", "the sum of @", "return the sum", "sum(@)"),
            Piece("count", "the number of elements of @", "return how many are left", "len(@)"),
            Piece(
                "largest",
                "the largest of @ (0 if there is none)",
                "return the largest (0 if none is left)",
                "max(@, default=0)",
            ),
            Piece(
                "smallest",
                "the smallest of @ (0 if there is none)",
                "return the smallest (0 if none is left)",
                "min(@, default=0)",
            ),
            Piece(
                "distinct",
                "the number of distinct values in @",
                "return the number of distinct values",
                "len(set(@))",
            ),
            Piece(
                f"count_{keep.name}",
                f"the number of values in @ that are {keep.step}",
                f"return how many values are {keep.step}",
                f"sum(1 for v in @ if {put(keep.code, 'v')})",
            ),
            Piece(
                f"sum_{step.name}",
                f"the sum of {value} over all v in @",
                f"return the sum of {value} over all v",
                f"sum({value} for v in @)",
            ),
        )
    )


def ordinal(k: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(k, f"{k}th")


def about(phrase: str, operand: str) -> str:
    """Return the phrase about an operand."""
    return re.sub("@", operand, phrase)
