"""Long documents: questions that only the document can answer, from 150 to 32,000 tokens.

Domains are called ``long-document/KIND/LENGTH`` with the lengths tiny, 512, 1k … 32k. Answers are
exact sets or numbers. Controls for evaluation are in ``long_document.domain``: without the
document, with its words shuffled, with the evidence alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import DomainSpec
from educe.domains.builtin.long_document.domain import (
    DocumentDomain,
    oracle_document,
    shuffled_document,
    without_document,
)
from educe.domains.builtin.long_document.kinds import ABSTENTIONS, KINDS

__all__ = [
    "LENGTHS",
    "create",
    "oracle_document",
    "shuffled_document",
    "specs",
    "without_document",
]

LENGTHS: Mapping[str, int] = {
    "tiny": 150,
    "512": 512,
    "1k": 1024,
    "2k": 2048,
    "4k": 4096,
    "8k": 8192,
    "16k": 16384,
    "32k": 32768,
}


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains of this module.

    Floors are measured up to 1k; longer documents take the floor of 1k, since guessing among what a
    document offers only gets harder.
    """
    text = resources.files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    floors: dict[str, float] = json.loads(text)
    return tuple(
        DomainSpec(
            name=(name := f"long-document/{kind.name}/{length}"),
            family=f"long-document/{kind.name}",
            kind="long-document",
            description=f"{kind.description}; documents of about {num_tokens} tokens",
            floor=ABSTENTIONS
            if kind.abstains
            else floors.get(name, floors.get(f"long-document/{kind.name}/1k", 1.0)),
            max_completion_tokens=64 if kind.name in {"group", "variables"} else 16,
            tags=(length, "long-context"),
        )
        for kind in KINDS.values()
        for length, num_tokens in LENGTHS.items()
    )


def create(name: str, **unknown: Any) -> DocumentDomain:
    """Return the domain called ``name``; raises DomainError for unknown names and options."""
    if unknown:
        raise DomainError(f"{name}: unknown option {sorted(unknown)[0]!r}; there are none")
    spec = next((s for s in specs() if s.name == name), None)
    if spec is None:
        known = [s.name for s in specs()]
        raise DomainError(f"no document domain {name!r}.{did_you_mean(name, known)}")
    _, kind, length = name.split("/")
    return DocumentDomain(spec, KINDS[kind], LENGTHS[length])
