"""What a generator of long prompts makes: pieces, the ones that matter, a question, its answers.

A piece is a text (a sentence, a paragraph, a function) or a few chat messages. Messages are made of
pieces by one function, so the controls need nothing of a generator: they render other pieces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from educe.core.types import JSON, Message, user

Piece = str | tuple[Message, ...]
Rng = random.Random
Control = Literal["", "no-context", "shuffled", "oracle"]
CONTROLS: tuple[Control, ...] = ("no-context", "shuffled", "oracle")
ABSENT = "(The document is not available.)"


@dataclass(frozen=True, slots=True)
class Draft:
    """One task before it becomes messages.

    Attributes:
        pieces: in order.
        evidence: indices of the pieces that decide the answer.
        question: asked last.
        answers: the exact set that is right, or the accepted forms of one answer (see ``check``).
        check: how a reply is judged (see ``scoring``); JSON.
        opening: stands before a document; chats have none.
        separator: between the texts of a document.
        gold: a perfect reply; by default the answers joined by commas.
    """

    pieces: tuple[Piece, ...]
    evidence: tuple[int, ...]
    question: str
    answers: tuple[str, ...]
    check: Mapping[str, JSON]
    opening: str = "Read the document and answer the question after it."
    separator: str = " "
    gold: str = ""
    facts: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def gold_text(self) -> str:
        return self.gold or ", ".join(self.answers)

    @property
    def depth(self) -> float | None:
        """Mean place of the evidence, 0 at the start and 1 at the end; None without any."""
        if not self.evidence or len(self.pieces) < 2:
            return None
        return sum(self.evidence) / len(self.evidence) / (len(self.pieces) - 1)


@dataclass(frozen=True, slots=True)
class Kind:
    """A generator of drafts.

    Attributes:
        write: (random numbers, how many pieces of filler, depth in [0, 1]) -> draft. More filler
            never makes a shorter prompt, and the same arguments give the same draft.
        reply_tokens: room that a right reply needs.
        has_depth: whether ``depth`` places the evidence; otherwise it lies where it must.
        floor: best score of a reply that ignores the document.
        source: package of real text, empty for generated ones.
        max_length: tokens that its text suffices for; 0 is any.
    """

    name: str
    description: str
    write: Callable[[Rng, int, float], Draft]
    reply_tokens: int = 32
    has_depth: bool = True
    floor: float = 0.0
    source: str = ""
    licence: str = "Apache-2.0"
    max_length: int = 0


def messages_of(draft: Draft) -> tuple[Message, ...]:
    """Return the prompt: a document with the question behind it, or a chat that ends with it."""
    turns = [m for piece in draft.pieces if not isinstance(piece, str) for m in piece]
    if turns:
        return (*turns, user(draft.question))
    document = draft.separator.join(p for p in draft.pieces if isinstance(p, str))
    if not draft.opening:
        return (user(draft.question),)
    return (user(f"{draft.opening}\n\n{document}\n\n{draft.question}"),)


def with_control(draft: Draft, control: Control, rng: Rng) -> Draft:
    """Return the draft under a control.

    ``no-context``: without the pieces; what is right was guessed or known. ``shuffled``: the same
    words in random order; what is right needs no facts. ``oracle``: the evidence alone; what is
    wrong here is no matter of length.
    """
    if control == "":
        return draft
    if control == "oracle":
        kept = tuple(draft.pieces[i] for i in sorted(draft.evidence))
        return replace(draft, pieces=kept or draft.pieces[:1], evidence=tuple(range(len(kept))))
    if control == "no-context":
        is_chat = any(not isinstance(p, str) for p in draft.pieces)
        return replace(draft, pieces=() if is_chat else (ABSENT,), evidence=(),
                       opening="" if is_chat else draft.opening)  # fmt: skip
    words = [w for p in draft.pieces for w in _words(p)]
    rng.shuffle(words)
    left = iter(words)
    return replace(draft, pieces=tuple(_refilled(p, left) for p in draft.pieces), evidence=())


def _words(piece: Piece) -> list[str]:
    if isinstance(piece, str):
        return piece.split()
    return [w for m in piece for w in m.content.split()]


def _refilled(piece: Piece, words: Iterator[str]) -> Piece:
    """Return a piece of the same shape with the next words."""
    if isinstance(piece, str):
        return " ".join(next(words) for _ in piece.split())
    return tuple(
        replace(m, content=" ".join(next(words) for _ in m.content.split())) for m in piece
    )


def placed(
    hay: Sequence[Piece], needles: Sequence[tuple[float, Piece]]
) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
    """Return hay with needles at their depths, and the needles' indices in the order given.

    Depth 0 is before all hay, 1 behind all of it; needles of one depth keep their order.
    """
    spots: list[list[int]] = [[] for _ in range(len(hay) + 1)]
    for number, (depth, _) in enumerate(needles):
        spots[round(min(max(depth, 0.0), 1.0) * len(hay))].append(number)
    pieces: list[Piece] = []
    index = [0] * len(needles)
    for place in range(len(hay) + 1):
        for number in spots[place]:
            index[number] = len(pieces)
            pieces.append(needles[number][1])
        if place < len(hay):
            pieces.append(hay[place])
    return tuple(pieces), tuple(index)
