"""Drafts of conversations: exchanges that matter, what is asked at the end, small talk between."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.domains.builtin.long_document.world import estimate_tokens, filler

Rng = random.Random
Exchange = tuple[str, str]
"""What the user says and what the assistant answered."""

# What a chat template puts around a message, about.
MESSAGE_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Draft:
    """Exchanges with one request at their end.

    Attributes:
        exchanges: in the order of the conversation.
        request: the user's last message.
        gold: a reply that is right.
        evidence: indices of the exchanges that decide it.
        check: how a reply is judged: ``items``, ``opening`` or ``commitments``.
        judged: what the check needs.
        candidates: replies of the right kind that the conversation offers, for the chance level; 0
            where none of them is right.
        openings: word that the assistant begins its turns with from each exchange on; empty for
            conversations without such a rule.
    """

    exchanges: list[Exchange]
    request: str
    gold: str
    evidence: list[int]
    check: str
    judged: Mapping[str, Any]
    candidates: int = 0
    openings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """A generator of drafts.

    Attributes:
        write: given a generator and the number of exchanges to write at least.
        tokens: what one exchange takes on average by ``estimate_tokens``.
        reserve: tokens of what every conversation has besides (request, brief).
        least: exchanges that are written at least.
        lengths: the lengths that it has room in; empty for all.
        token_ratio: what SmolLM2's tokenizer gave for whole conversations / the estimate.
        is_early: no small talk before the first exchange.
        max_completion_tokens: what a right reply needs at most.
    """

    name: str
    description: str
    write: Callable[[Rng, int], Draft]
    tokens: int
    reserve: int = 40
    token_ratio: float = 1.02
    is_early: bool = False
    max_completion_tokens: int = 16
    least: int = 3
    lengths: tuple[str, ...] = ()


_STARTS = ("By the way:", "Just so you know:", "A word on the side:", "While I think of it:", "")
_ANSWERS = ("I see.", "Good to know.", "Thank you for telling me.", "That sounds familiar.", "Yes.")


def small_talk(rng: Rng) -> Exchange:
    """Return an exchange without a name, number, town or thing that requests ask about."""
    said = " ".join(filler(rng) for _ in range(rng.randint(1, 3)))
    start = rng.choice(_STARTS)
    answer = " ".join([rng.choice(_ANSWERS), *(filler(rng) for _ in range(rng.randint(0, 2)))])
    return (f"{start} {said}".strip(), answer)


def exchange_tokens(exchange: Exchange) -> int:
    return sum(estimate_tokens(text) + MESSAGE_TOKENS for text in exchange)


def spread(rng: Rng, draft: Draft, budget: int, is_early: bool) -> tuple[list[Exchange], list[int]]:
    """Fill a conversation with small talk, evenly at random.

    Returns its exchanges and the places of the draft's own among them.
    """
    # A rule for replies puts a word before each.
    extra = 3 if draft.openings else 0
    used = sum(exchange_tokens(e) + extra for e in draft.exchanges)
    between: list[list[Exchange]] = [[] for _ in range(len(draft.exchanges) + 1)]
    while used < budget:
        talk = small_talk(rng)
        used += exchange_tokens(talk) + extra
        if used > budget:
            break
        between[rng.randrange(int(is_early), len(between))].append(talk)
    found: list[Exchange] = []
    places: list[int] = []
    for number in range(len(draft.exchanges) + 1):
        group = list(between[number])
        if number < len(draft.exchanges):
            group.append(draft.exchanges[number])
            places.append(len(found) + len(group) - 1)
        found += group
    return found, places
