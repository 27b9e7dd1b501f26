"""What a reply only repeats from its prompt is no answer."""

from __future__ import annotations

import re

from educe.rewards.outcome.extraction import answer_line, boxed_answer, strip_reasoning

_RUN = 4
_MAX_CHARACTERS = 20_000


def after_question(text: str, question: str) -> str:
    """Return what stands behind the last copy of the question in a text, else all of the text.

    Some models say the question again before they answer, and its own last number is no answer.
    Blanks and letter case do not matter.
    """
    words = question.split()
    if not words:
        return text
    copies = re.finditer(r"\s+".join(map(re.escape, words)), text, re.IGNORECASE)
    last = max((m.end() for m in copies), default=0)
    return text[last:]


def is_dump(completion: str, source: str, *, most_words: int = 12) -> bool:
    """Whether a reply of more than ``most_words`` words repeats the source and marks no answer.

    Over half of its runs of four words stand in the source. Quoting one sentence as the answer is
    no dump, and neither is quoting many before an ``Answer:`` line or a box.
    """
    text = strip_reasoning(completion)
    if boxed_answer(text) or answer_line(text) is not None:
        return False
    said = text[:_MAX_CHARACTERS].casefold().split()
    if len(said) <= most_words:
        return False
    runs = _runs(said)
    return 2 * len(runs & _runs(source.casefold().split())) > len(runs)


def _runs(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)}
