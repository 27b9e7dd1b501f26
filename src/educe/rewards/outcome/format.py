"""Whether a completion keeps a declared layout: sections in order, each once, nothing outside.

Format scores are for composing (a gate or a small weight): alone they reward empty sections.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from educe.core.errors import UnscoredError
from educe.core.types import Score


@dataclass(frozen=True, slots=True)
class TagLayout:
    """Sections marked by tags, e.g. ``<think>…</think><answer>…</answer>``.

    Attributes:
        tags: names in the order asked for.
        may_have_text_outside: whether text may stand before, between and behind the sections.
        min_characters: what each section must hold at least, white space aside.
    """

    tags: tuple[str, ...] = ("think", "answer")
    may_have_text_outside: bool = False
    min_characters: int = 1

    def __post_init__(self) -> None:
        bad = [t for t in self.tags if not re.fullmatch(r"[A-Za-z][\w-]*", t)]
        if bad or not self.tags or len(set(self.tags)) < len(self.tags):
            raise ValueError(f"tags must be distinct names, got {self.tags}")


def sections(completion: str, layout: TagLayout) -> dict[str, str] | None:
    """Return the text of each section, None unless every tag opens and closes once, in order."""
    found: dict[str, str] = {}
    position = 0
    outside: list[str] = []
    for tag in layout.tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if completion.count(opening) != 1 or completion.count(closing) != 1:
            return None
        start = completion.find(opening, position)
        end = completion.find(closing, start)
        if start < 0 or end < 0:
            return None
        outside.append(completion[position:start])
        found[tag] = completion[start + len(opening) : end].strip()
        position = end + len(closing)
    outside.append(completion[position:])
    if not layout.may_have_text_outside and any(o.strip() for o in outside):
        return None
    return found


def tag_format(completion: str, layout: TagLayout | None = None) -> Score:
    """Score 1 when the layout is kept and no section is too short, else 0."""
    layout = layout or TagLayout()
    found = sections(completion, layout)
    if found is None:
        return Score.unparseable("tags missing, repeated or out of order")
    short = [t for t, text in found.items() if len(text) < layout.min_characters]
    return Score.wrong(f"section {short[0]!r} is too short") if short else Score.right()


def pattern_format(completion: str, pattern: str, *, max_characters: int = 20_000) -> Score:
    """Score 1 when the whole completion matches a regular expression (which you must trust).

    Raises:
        UnscoredError: the pattern does not compile.
    """
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise UnscoredError(f"pattern_format expected a regular expression: {error}") from error
    if len(completion) > max_characters:
        return Score.wrong(f"longer than {max_characters} characters")
    return Score.right() if compiled.fullmatch(completion.strip()) else Score.wrong("no match")


def length_format(completion: str, *, max_words: int, phrases: Sequence[str] = ()) -> Score:
    """Score 1 when the completion has 1 to ``max_words`` words and no forbidden phrase."""
    words = completion.split()
    if not 1 <= len(words) <= max_words:
        return Score.wrong(f"{len(words)} words, expected 1 to {max_words}")
    folded = completion.casefold()
    hit = next((p for p in phrases if p.casefold() in folded), None)
    return Score.right() if hit is None else Score.wrong(f"contains {hit!r}")
