"""The conversation around a request, and the score of the reply."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task
from educe.core.types import JSON, Message, Score, Split, Task, assistant, user
from educe.domains.builtin.long_dialogue.talk import (
    MESSAGE_TOKENS,
    Draft,
    Kind,
    exchange_tokens,
    spread,
)
from educe.domains.builtin.long_document.world import estimate_tokens

# Of the room that small talk and the draft's own exchanges share.
_OWN_SHARE = 0.5


class DialogueDomain(DomainBase):
    """A conversation of about ``num_tokens`` tokens (request included), and a reply to its end."""

    def __init__(self, spec: DomainSpec, kind: Kind, num_tokens: int) -> None:
        self.spec = spec
        self._kind = kind
        self._num_tokens = num_tokens

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self._candidate, self.spec.name, split, index)

    def _candidate(self, rng: random.Random) -> Task:
        kind = self._kind
        room = int(0.96 * self._num_tokens / kind.token_ratio)
        count = int(_OWN_SHARE * (room - kind.reserve) / kind.tokens)
        draft = kind.write(rng, max(kind.least, count))
        room -= estimate_tokens(draft.request) + 2 * MESSAGE_TOKENS
        exchanges, places = spread(rng, draft, room, kind.is_early)
        messages = _messages(draft, exchanges, places)
        metadata: dict[str, JSON] = {
            **draft.judged,
            "check": draft.check,
            "candidates": draft.candidates,
            "depth": _depth(exchanges, [places[i] for i in draft.evidence]),
        }
        return Task("", Split.TRAIN, 0, messages, draft.gold, metadata)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        replies = [m for m in transcript[len(task.messages) :] if m.role == "assistant"]
        completion = replies[-1].content if replies else ""
        return _CHECKS[task.metadata["check"]](completion, task.metadata)

    def attacks(self, task: Task) -> Mapping[str, tuple[Message, ...]]:
        """Return replies that show nothing: all that was said, or an empty form."""
        said = "\n".join(m.content for m in task.messages)
        tried = {"the conversation again": said}
        form = task.metadata.get("form")
        if form:
            numbers = range(1, form["sections"] + 1)
            rest = " ".join(["and so on"] * form["least_words"])
            flat = " ".join(said.split())
            heading = form["heading"]
            tried["the form alone"] = "\n".join(f"{heading} {n}: {rest}" for n in numbers)
            tried["everything in each part"] = "\n".join(f"{heading} {n}: {flat}" for n in numbers)
        return {name: (assistant(text),) for name, text in tried.items()}


def _messages(
    draft: Draft, exchanges: Sequence[tuple[str, str]], places: Sequence[int]
) -> tuple[Message, ...]:
    """Return the conversation; where replies follow a rule, small talk follows it too."""
    found: list[Message] = []
    opening, rules = "", dict(zip(places, draft.openings, strict=False))
    for number, (said, answered) in enumerate(exchanges):
        opening = rules.get(number, opening)
        found += [user(said), assistant(f"{opening} {answered}".strip())]
    return (*found, user(draft.request))


def _depth(exchanges: Sequence[tuple[str, str]], places: Sequence[int]) -> float:
    """Mean position of the evidence, 0 at the start and 1 at the end of the conversation."""
    sizes = [exchange_tokens(e) for e in exchanges]
    starts = [sum(sizes[:place]) for place in places]
    return round(sum(starts) / len(starts) / max(1, sum(sizes)), 4)


# ---------------------------------------------------------------- checks


def _items(completion: str, judged: Mapping[str, Any]) -> Score:
    from educe.rewards.outcome.text import set_match

    return set_match(completion, judged["answers"])


def _opening(completion: str, judged: Mapping[str, Any]) -> Score:
    """The opening first and nothing before it, then the answer alone."""
    text = completion.strip()
    if not text:
        return Score.unparseable("no answer found")
    opening = str(judged["opening"])
    if not text.startswith(opening):
        return Score.wrong(f"expected a reply that begins with {opening!r}, got {text[:40]!r}")
    return _items(text.removeprefix(opening), judged)


def _commitments(completion: str, judged: Mapping[str, Any]) -> Score:
    from educe.rewards.outcome.commitments import score_commitments

    return score_commitments(completion, judged["form"], judged["commitments"])


_CHECKS = {
    "items": _items,
    "opening": _opening,
    "commitments": _commitments,
}
