"""From written examples to tokens: what is read, and which tokens are trained.

Messages go through ``models.chat`` exactly as rollouts do. Text without a template is joined as it
stands: the tokenizer's own start, the prompt, the completion, the end token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from educe.core.errors import EduceError
from educe.core.types import Message, Trajectory
from educe.domains.formats import Written
from educe.models.chat import ChatFormat
from educe.rollout.packing import IntArray, trajectory_sequences

LossOn = Literal["assistant", "last", "all"]
TooLong = Literal["skip", "cut"]


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """One sequence of T tokens; ``mask`` is true where it is trained, never on the first."""

    token_ids: IntArray
    mask: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        return int(self.mask.sum())


Side = tuple[Rendered, ...]
"""One example: a single sequence, or several where a template rewrites earlier turns."""


def render(chat: ChatFormat, written: Written, loss_on: LossOn = "assistant") -> Side:
    """Return the sequences of an example.

    A template that rewrites earlier turns (one that strips thinking, say) gives a sequence for each
    assistant turn, as the engine would have seen it.
    """
    if written.is_text:
        return (_text(chat, str(written.prompt), str(written.completion), loss_on),)
    prompt, turns = _messages(written.prompt), _messages(written.completion)
    try:
        sides = [_conversation(chat, prompt, turns)]
    except EduceError:
        sides = _by_turn(chat, prompt, turns)
    if loss_on == "last":
        return (_last_only(sides[-1]),)
    if loss_on == "all":
        return tuple(_everything(side) for side in sides)
    return tuple(sides)


def fit(side: Side, limit: int, too_long: TooLong) -> Side | None:
    """Return the sequences as they fit into ``limit`` tokens; None when they are to be left out."""
    if all(len(sequence) <= limit for sequence in side):
        return side if any(s.num_trained for s in side) else None
    if too_long == "skip":
        return None
    cut = tuple(Rendered(s.token_ids[:limit], s.mask[:limit]) for s in side)
    return cut if any(s.num_trained for s in cut) else None


def render_trajectory(trajectory: Trajectory) -> Side:
    """Return the sequences of a sampled attempt, in the very tokens that were sampled."""
    return tuple(Rendered(tokens, mask) for tokens, mask, _, _ in trajectory_sequences(trajectory))


def _messages(part: str | tuple[Message, ...]) -> tuple[Message, ...]:
    if isinstance(part, str):
        raise TypeError("a conversation was expected, got plain text")
    return part


def _conversation(
    chat: ChatFormat, prompt: tuple[Message, ...], turns: tuple[Message, ...]
) -> Rendered:
    tokens = chat.demonstration(prompt, turns)
    return Rendered(np.array(tokens.token_ids, np.int64), np.array(tokens.mask, np.bool_))


def _by_turn(
    chat: ChatFormat, prompt: tuple[Message, ...], turns: tuple[Message, ...]
) -> list[Rendered]:
    return [
        _conversation(chat, (*prompt, *turns[:i]), (turn,))
        for i, turn in enumerate(turns)
        if turn.role == "assistant"
    ]


def _text(chat: ChatFormat, prompt: str, completion: str, loss_on: LossOn) -> Rendered:
    """The tokenizer's own start (if it has one), the prompt, the completion and the end token."""
    start = list(chat.tokenizer.encode(prompt, add_special_tokens=True)) if prompt else []
    rest = chat.encode(completion) if prompt else list(chat.tokenizer.encode(completion))
    end = chat.tokenizer.eos_token_id
    if end is not None and rest[-1:] != [end]:
        rest.append(end)
    tokens = np.array(start + rest, np.int64)
    first = 1 if loss_on == "all" or not prompt else len(start)
    return Rendered(tokens, np.arange(len(tokens)) >= max(1, first))


def _last_only(side: Rendered) -> Rendered:
    """Train the last run of trained tokens only: the last assistant turn."""
    untrained = np.flatnonzero(~side.mask)
    return Rendered(side.token_ids, np.arange(len(side)) > (untrained[-1] if len(untrained) else 0))


def _everything(side: Rendered) -> Rendered:
    return Rendered(side.token_ids, np.arange(len(side)) >= 1)
