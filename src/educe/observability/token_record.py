"""The tokens of a sample with the training mask, from what its record holds.

A record holds either token texts and a mask, or the turns' token ids only; ids need a decoder. What
was sampled is trained, what was fed is context. Turns whose context continues the turn before are
one sequence; where a template rewrote the past, each turn is a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from educe.core.types import JSON

Decode = Callable[[int], str]
MarkedTokens = list[tuple[str, bool]]


def id_sequences(body: Mapping[str, JSON]) -> list[list[tuple[int, bool]]]:
    """Return the sequences of (token id, is trained) of a sample's turns."""
    sequences: list[list[tuple[int, bool]]] = []
    for turn in body.get("turns") or []:
        context, completion = turn["context_token_ids"], turn["completion_token_ids"]
        past = sequences[-1] if sequences else []
        if past and [i for i, _ in past] == context[: len(past)]:
            past += [(i, False) for i in context[len(past) :]]
        else:
            past = [(i, False) for i in context]
            sequences.append(past)
        past += [(i, True) for i in completion]
    return sequences


def marked_sequences(body: Mapping[str, JSON], decode: Decode | None = None) -> list[MarkedTokens]:
    """Return the sequences of (token text, is trained); empty when there are ids but no decoder."""
    tokens, mask = body.get("tokens"), body.get("mask")
    if tokens and mask and len(tokens) == len(mask):
        return [[(str(t), bool(m)) for t, m in zip(tokens, mask, strict=True)]]
    if decode is None:
        return []
    return [[(decode(i), trained) for i, trained in ids] for ids in id_sequences(body)]
