"""Long conversations: a last request that only the whole of them answers, 150 to 32,000 tokens.

Domains are called ``long-dialogue/KIND/LENGTH`` with the lengths of ``long-document``. ``brief``
asks for a long text, judged over all of its parts by what was settled at the beginning.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import DomainSpec
from educe.domains.builtin.long_dialogue.domain import DialogueDomain
from educe.domains.builtin.long_dialogue.kinds import KINDS
from educe.domains.builtin.long_document import LENGTHS

__all__ = ["KINDS", "LENGTHS", "create", "specs"]


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains of this module.

    Floors are measured up to 1k; longer conversations take the floor of 1k, since guessing among
    what they offer only gets harder.
    """
    text = resources.files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    floors: dict[str, float] = json.loads(text)
    return tuple(
        DomainSpec(
            name=(name := f"long-dialogue/{kind.name}/{length}"),
            family=f"long-dialogue/{kind.name}",
            kind="long-dialogue",
            description=f"{kind.description}; conversations of about {num_tokens} tokens",
            floor=floors.get(name, floors.get(f"long-dialogue/{kind.name}/1k", 0.999)),
            max_completion_tokens=kind.max_completion_tokens,
            tags=(length, "long-context"),
        )
        for kind in KINDS.values()
        for length, num_tokens in LENGTHS.items()
        if not kind.lengths or length in kind.lengths
    )


def create(name: str, **unknown: Any) -> DialogueDomain:
    """Return the domain called ``name``; raises DomainError for unknown names and options."""
    if unknown:
        raise DomainError(f"{name}: unknown option {sorted(unknown)[0]!r}; there are none")
    spec = next((s for s in specs() if s.name == name), None)
    if spec is None:
        known = [s.name for s in specs()]
        raise DomainError(f"no dialogue domain {name!r}.{did_you_mean(name, known)}")
    _, kind, length = name.split("/")
    return DialogueDomain(spec, KINDS[kind], LENGTHS[length])
