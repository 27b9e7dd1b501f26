r"""Where the answer stands in a completion: behind the reasoning, in the last box or answer line.

Every function is one pass over the text (linear time, whatever the text), and none of them looks at
the gold answer: a completion has one answer, found before it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Only the end of a completion is searched for unboxed answers; boxes are found anywhere.
_TAIL_CHARACTERS = 4000
MAX_ANSWER_CHARACTERS = 2000

_THINK_TAG = re.compile(r"<(/?)(think|thinking|reasoning)>", re.IGNORECASE)
_ANSWER_LINE = re.compile(
    r"\b(?:final\s{1,3}answer|answer)\b[ \t]{0,3}(?:[ \t]is\b|:|=)[ \t]{0,3}:?([^\n]*)",
    re.IGNORECASE,
)
_BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{|\\[{}\\]|[{}]")
_CONNECTOR = re.compile(r"(?:[\s,;$]|\\[\[\]()]|\b(?:and|or)\b|\\text\{ ?(?:and|or) ?\})*")
_INLINE_MATH = re.compile(
    r"\$\$?([^$]{1,2000})\$\$?"
    r"|\\\(((?:[^\\]|\\[^)]){1,2000}?)\\\)"
    r"|\\\[((?:[^\\]|\\[^\]]){1,2000}?)\\\]"
)


def strip_reasoning(text: str) -> str:
    """Return what stands outside thinking blocks.

    An unclosed block swallows the rest (the model never got to its answer); a lone closing tag, as
    templates that open the block themselves leave it, ends the reasoning before it.
    """
    kept: list[str] = []
    position, depth = 0, 0
    for tag in _THINK_TAG.finditer(text):
        is_closing = bool(tag.group(1))
        if not is_closing:
            if depth == 0:
                kept.append(text[position : tag.start()])
            depth += 1
        elif depth:
            depth -= 1
        else:
            kept.clear()
        if depth == 0:
            position = tag.end()
    if depth == 0:
        kept.append(text[position:])
    return "".join(kept).strip()


def answer_line(text: str) -> str | None:
    """Return what follows the last non-empty ``Answer:`` / ``the answer is``, or None."""
    found = None
    for match in _ANSWER_LINE.finditer(text[-_TAIL_CHARACTERS:]):
        content = match.group(1).strip().strip("*").strip()
        if content:
            found = content
    return found


def final_answer(text: str) -> str:
    """Return the answer of a plain-text completion: the last answer line, else all of it."""
    visible = strip_reasoning(text)
    line = answer_line(visible)
    return visible if line is None else line


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Return all complete ``\boxed{…}`` as (start, end, content), in order of their start.

    Boxes that are never closed are ignored, boxes inside a box belong to the outer one.
    """
    opened: list[tuple[int, int] | None] = []
    # (start, start of the content, its end, end): text is copied once, when it is known which box
    # is inside which, or nested boxes would take quadratic time.
    found: list[tuple[int, int, int, int]] = []
    for token in _BRACES.finditer(text):
        symbol = token.group()
        if symbol[0] == "\\" and symbol[-1] == "{" and len(symbol) > 2:
            opened.append((token.start(), token.end()))
        elif symbol == "{":
            opened.append(None)
        elif symbol == "}" and opened:
            start = opened.pop()
            if start is None:
                continue
            while found and found[-1][0] > start[0]:
                found.pop()
            found.append((*start, token.start(), token.end()))
    return [(start, end, text[left:right]) for start, left, right, end in found]


def last_run(text: str, segments: list[tuple[int, int, str]]) -> list[str]:
    """Return the last segment with those before it that only commas, 'and' or 'or' separate.

    "boxed 1 and boxed -2" is one answer with two values; "boxed 7. Wait, no: boxed 42" is 42.
    """
    run: list[str] = []
    following: int | None = None
    for start, end, content in reversed(segments):
        if following is not None:
            between = text[end:following]
            if len(between) > 40 or not _CONNECTOR.fullmatch(between):
                break
            if "\n\n" in between:
                break
        run.append(content)
        following = start
    return run[::-1]


def boxed_answer(text: str) -> list[str]:
    """Return the contents of the final box (or run of boxes); empty when there is none."""
    return last_run(text, boxes(text))


def inline_math(text: str) -> list[str]:
    r"""Return the last run of ``$…$``, ``\(…\)`` or ``\[…\]`` near the end of the text."""
    tail = text[-_TAIL_CHARACTERS:]
    segments = [
        (m.start(), m.end(), next(g for g in m.groups() if g is not None))
        for m in _INLINE_MATH.finditer(tail)
    ]
    return last_run(tail, segments)


def last_label(text: str, labels: Iterable[str]) -> str | None:
    """Return the label that stands last as a whole word: 'INCORRECT' never counts as 'CORRECT'."""
    wanted = {label.casefold(): label for label in labels}
    last = None
    for match in re.finditer(r"[A-Za-z0-9_]+", text):
        last = wanted.get(match.group().casefold(), last)
    return last


def bracketed(text: str, opening: str, closing: str) -> str | None:
    """Return what stands between the last ``opening`` … ``closing`` pair, or None."""
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(opening) : end].strip()
