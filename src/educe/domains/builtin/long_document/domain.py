"""The prompt around a document, the score, and the controls that show the document was needed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.seeds import python_random
from educe.core.splits import draw_task
from educe.core.types import JSON, Message, Score, Split, Task, user
from educe.domains.builtin.long_document.kinds import Kind
from educe.domains.builtin.long_document.world import estimate_tokens, filler

_OPENING = "Read the document and answer the question.\n\n"
_PARAGRAPH = 6


class DocumentDomain(DomainBase):
    """A generated document of about ``num_tokens`` tokens (prompt included) and one question."""

    def __init__(self, spec: DomainSpec, kind: Kind, num_tokens: int) -> None:
        self.spec = spec
        self._kind = kind
        self._num_tokens = num_tokens

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self._candidate, self.spec.name, split, index)

    def _candidate(self, rng: random.Random) -> Task:
        kind = self._kind
        budget = int(self._num_tokens / kind.token_ratio) - 50
        # Four fifths of the room for statements, the rest for sentences that do not matter.
        draft = kind.write(rng, max(3, int(0.8 * budget / kind.tokens)))
        document, places = _compose(rng, kind, draft.statements, budget)
        question = f"\n\nQuestion: {draft.question}\n{_reply(kind, draft.reply)}"
        text = f"{_OPENING}{document}{question}"
        start = len(_OPENING)
        metadata: dict[str, JSON] = {
            "answers": draft.answers,
            "check": draft.check,
            "evidence": [draft.statements[i] for i in draft.evidence],
            "depth": _depth([places[i] for i in draft.evidence], len(document)),
            "candidates": draft.candidates,
            "span": [start, start + len(document)],
            "title": kind.title,
        }
        return Task("", Split.TRAIN, 0, (user(text),), ", ".join(draft.answers), metadata)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        replies = [m for m in transcript[len(task.messages) :] if m.role == "assistant"]
        completion = replies[-1].content if replies else ""
        if task.metadata["check"] == "number":
            from educe.rewards.outcome.copying import is_dump
            from educe.rewards.outcome.numeric import numeric_match

            # The last number of a log is often the one that is asked for.
            if is_dump(completion, task.messages[-1].content):
                return Score.wrong("a copy of the document is no answer")
            return numeric_match(completion, task.metadata["answers"][0])
        from educe.rewards.outcome.text import set_match

        return set_match(completion, task.metadata["answers"])


def _reply(kind: Kind, reply: str) -> str:
    text = f"Reply with the {reply} only."
    if kind.abstains:
        text += ' If the document does not say, reply "not stated".'
    return text


def _compose(
    rng: random.Random, kind: Kind, statements: Sequence[str], budget: int
) -> tuple[str, list[int]]:
    """Return the document and where each statement begins in it.

    Sentences that do not matter are spread evenly at random until the budget is filled.
    """
    used = sum(map(estimate_tokens, statements)) + estimate_tokens(kind.title)
    between: list[list[str]] = [[] for _ in range(len(statements) + 1)]
    while used < budget:
        sentence = filler(rng)
        between[rng.randrange(len(between))].append(sentence)
        used += estimate_tokens(sentence)
    pieces: list[str] = [kind.title + "\n"]
    places: list[int] = []
    length, in_paragraph = len(pieces[0]), 0
    for position in range(len(statements) + 1):
        group = list(between[position])
        if position < len(statements):
            group.append(statements[position])
        for number, sentence in enumerate(group):
            is_new = kind.is_listing or in_paragraph % _PARAGRAPH == 0
            separator = "\n" if is_new else " "
            if position < len(statements) and number == len(group) - 1:
                places.append(length + 1)
            pieces.append(separator + sentence)
            length += 1 + len(sentence)
            in_paragraph += 1
    return "".join(pieces), places


def _depth(places: Sequence[int], length: int) -> float | None:
    """Mean position of the evidence, 0 at the start and 1 at the end of the document."""
    return round(sum(places) / len(places) / length, 4) if places else None


# ---------------------------------------------------------------- controls


def _with_document(task: Task, document: str) -> Task:
    start, end = task.metadata["span"]
    text = task.messages[0].content
    changed = text[:start] + document + text[end:]
    metadata = {**task.metadata, "span": [start, start + len(document)]}
    return replace(task, messages=(user(changed),), metadata=metadata)


def without_document(task: Task) -> Task:
    """The control without context: what is right here was guessed or known beforehand."""
    return _with_document(task, "(The document is not available.)")


def oracle_document(task: Task) -> Task:
    """The control with nothing but the evidence: what is wrong here is no matter of length."""
    return _with_document(task, "\n".join([task.metadata["title"], *task.metadata["evidence"]]))


def shuffled_document(task: Task) -> Task:
    """The control with the document's words in random order: the words are there, the facts not."""
    start, end = task.metadata["span"]
    words = task.messages[0].content[start:end].split()
    python_random("shuffled-document", task.task_id).shuffle(words)
    return _with_document(task, " ".join(words))
