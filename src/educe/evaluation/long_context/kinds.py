"""All kinds of long prompts by name."""

from __future__ import annotations

from collections.abc import Mapping

from educe.core.errors import EduceError, did_you_mean
from educe.evaluation.long_context.chats import CHATS
from educe.evaluation.long_context.code import CODE
from educe.evaluation.long_context.documents import DOCUMENTS
from educe.evaluation.long_context.draft import Kind
from educe.evaluation.long_context.needles import NEEDLES
from educe.evaluation.long_context.statements import STATEMENTS

KINDS: Mapping[str, Kind] = {k.name: k for k in (*NEEDLES, *STATEMENTS, *CHATS, *CODE, *DOCUMENTS)}
GENERATED: tuple[str, ...] = tuple(k.name for k in KINDS.values() if not k.source)
"""Kinds that need no package."""


def load_kind(name: str) -> Kind:
    """Return a kind; raises EduceError for an unknown one."""
    if name not in KINDS:
        raise EduceError(
            f"there is no kind of long prompt {name!r}; known: {', '.join(KINDS)}."
            f"{did_you_mean(name, KINDS)}"
        )
    return KINDS[name]
