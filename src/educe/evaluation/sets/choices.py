"""Questions with options and questions with labels: which one does a completion name?

One answer is looked for, before the gold is looked at: the last box, else the last answer line,
else the whole text. A completion that names several options names none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from educe.core.protocols import Services
from educe.core.types import Score, Task
from educe.rewards.outcome.extraction import answer_line, boxed_answer, strip_reasoning
from educe.rewards.outcome.text import Normalisation

_FOLD = Normalisation(articles=True)
_OPTION = re.compile(r"^\s*([A-Z])\s*[.):]\s*(.*)$")
# A letter counts when it stands as a mark, not as the article "A" or the pronoun "I" of a sentence.
_MARKED = re.compile(r"^[\s*_\"(\[]*([A-Z])\s*(?:[.):\]*_\"]|$)")
_NAMED = re.compile(
    r"\b(?:option|choice|answer(?:\s+is)?|correct(?:\s+(?:one|choice|option|answer))?(?:\s+is)?)"
    r"\s*:?\s*[*_\"(\[]*([A-Z])\b(?=[\s.):\]*_\"',;]|$)",
    re.IGNORECASE,
)
_HEDGED = re.compile(r"\b([A-Z])\s+or\b|\bor\s+([A-Z])\b(?!\w)")
_LINE = re.compile(r"^[\s*_(\[]*([A-Z])\s*[.):\]]", re.MULTILINE)
_WORD = re.compile(r"[a-z]+")


def parse_options(text: str) -> dict[str, str] | None:
    """Return letter: text of an options block ``A. …\\nB. …``; None unless letters are A, B, C …

    A line that begins with no letter belongs to the option before it.
    """
    found: dict[str, str] = {}
    last = ""
    for line in text.strip().splitlines():
        match = _OPTION.match(line)
        wanted = chr(ord("A") + len(found))
        if match and match.group(1) == wanted:
            last = wanted
            found[last] = match.group(2).strip()
        elif last:
            found[last] = f"{found[last]} {line.strip()}".strip()
        else:
            return None
    return found if len(found) > 1 and all(found.values()) else None


def options_text(options: Sequence[str]) -> str:
    """Return ``A. …\\nB. …``."""
    return "\n".join(f"{chr(ord('A') + i)}. {text}" for i, text in enumerate(options))


def named_option(text: str, options: Sequence[str]) -> str | None:
    """Return the letter that a completion names, None when it names none or several."""
    letters = [chr(ord("A") + i) for i in range(len(options))]
    visible = strip_reasoning(text)
    boxes = boxed_answer(visible)
    line = answer_line(visible)
    if len(boxes) > 1:
        return None
    if boxes or line is not None:
        return _letter(boxes[0] if boxes else line or "", letters, options)
    listed = {m.group(1) for m in _LINE.finditer(visible)} & set(letters)
    if len(listed) > 1:
        return None
    return _letter(visible, letters, options)


def _letter(source: str, letters: Sequence[str], options: Sequence[str]) -> str | None:
    source = source.strip()
    hedged = {g for m in _HEDGED.finditer(source) for g in m.groups() if g in letters}
    if hedged:
        return None
    marked = _MARKED.match(source)
    if marked and marked.group(1) in letters:
        rest = [m.group(1).upper() for m in _NAMED.finditer(source)]
        others = {r for r in rest if r in letters} - {marked.group(1)}
        return None if others else marked.group(1)
    if len(source) == 1 and source.upper() in letters:
        return source.upper()
    named = {m.group(1).upper() for m in _NAMED.finditer(source)} & set(letters)
    if len(named) == 1:
        return named.pop()
    if named:
        return None
    folded = _FOLD(source)
    same = [letter for letter, option in zip(letters, options, strict=True)
            if folded and folded == _FOLD(option)]  # fmt: skip
    return same[0] if len(same) == 1 else None


def grade_choice(task: Task, text: str, services: Services) -> Score:
    """Score 1 when the completion names the gold option (``metadata``: options, letter)."""
    found = named_option(text, task.metadata["options"])
    if found is None:
        return Score.unparseable("no single option is named")
    score = (
        Score.right()
        if found == task.metadata["letter"]
        else Score.wrong(f"expected {task.metadata['letter']}, got {found}")
    )
    return _with_answer(score, found)


def named_label(text: str, labels: Sequence[str]) -> str | None:
    """Return the label (``yes``, ``no`` …) that a completion answers with.

    In a box or an answer line: the only label there. In plain text: the first word where no other
    label stands in the first sentence, else the only label of the text.
    """
    visible = strip_reasoning(text)
    boxes = boxed_answer(visible)
    line = answer_line(visible)
    if len(boxes) > 1:
        return None
    if boxes or line is not None:
        return _only(boxes[0] if boxes else line or "", labels)
    sentence = re.split(r"[.!?\n]", visible.strip(), maxsplit=1)[0]
    words = _WORD.findall(sentence.casefold())
    if words and words[0] in labels:
        return _only(sentence, labels)
    return _only(visible, labels)


def _only(text: str, labels: Sequence[str]) -> str | None:
    found = {w for w in _WORD.findall(text.casefold()) if w in labels}
    return found.pop() if len(found) == 1 else None


def grade_label(task: Task, text: str, services: Services) -> Score:
    """Score 1 when the completion answers with the gold label (``metadata``: labels, label)."""
    found = named_label(text, task.metadata["labels"])
    if found is None:
        return Score.unparseable(f"none of {', '.join(task.metadata['labels'])} is the answer")
    score = (
        Score.right()
        if found == task.metadata["label"]
        else Score.wrong(f"expected {task.metadata['label']}, got {found}")
    )
    return _with_answer(score, found)


def _with_answer(score: Score, answer: str) -> Score:
    from dataclasses import replace

    return replace(score, proof={"answer": answer})


def constant_floor(answers: Sequence[str]) -> float:
    """Return the share of the most frequent gold: what the best constant answer scores."""
    return Counter(answers).most_common(1)[0][1] / len(answers) if answers else 0.0
