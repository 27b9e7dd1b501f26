"""The long-document domains' kinds on a grid of lengths: no shared words, near keys, ledgers.

Statements that matter compete with others of the same form, up to a number that a generator can
still make; what is longer is filled with sentences that do not matter.
"""

from __future__ import annotations

from functools import partial

from educe.domains.builtin.long_document.kinds import KINDS as DOCUMENT_KINDS
from educe.evaluation.long_context.draft import Draft, Kind, Piece, Rng, placed
from educe.evaluation.long_context.needles import hay_sentences

_MAX_STATEMENTS = 1500
_MIN_STATEMENTS = 5

# name here: (name of the document kind, description, whether statements may change places)
_TAKEN = {
    "no-lexical-overlap": ("inference", "question and evidence share no content word", True),
    "near-keys": ("near-keys", "nothing but keys that differ in one character", True),
    "variables": ("variables", "copies and reassignments; all names that hold a value", False),
    "count": ("count", "number of entries of one person", False),
    "total": ("total", "sum over the entries of one person", False),
    "top": ("top", "largest sum over all entries", False),
    "update": ("update", "the last of several updates", False),
    "hops": ("hops", "facts to be joined", False),
}


def write_statements(
    rng: Rng, size: int, depth: float, *, document: str, is_movable: bool
) -> Draft:
    """Write a document kind with ``size`` more statements than it needs, evidence at ``depth``."""
    kind = DOCUMENT_KINDS[document]
    count = min(_MAX_STATEMENTS, _MIN_STATEMENTS + size)
    draft = kind.write(rng, count)
    pieces: list[Piece] = list(draft.statements)
    evidence = list(draft.evidence)
    if is_movable and len(evidence) == 1:
        moved = pieces.pop(evidence[0])
        at = round(depth * len(pieces))
        pieces.insert(at, moved)
        evidence = [at]
    extra = size + _MIN_STATEMENTS - count
    if extra > 0:
        pieces, evidence = _spread(pieces, evidence, hay_sentences(rng, extra), rng)
    check = {"kind": "number"} if draft.check == "number" else {"kind": "items"}
    return Draft(
        tuple(pieces),
        tuple(evidence),
        f"Question: {draft.question}\nReply with the {draft.reply} only.",
        tuple(draft.answers),
        check,
        opening=f"Read the document and answer the question after it.\n\n{kind.title}",
        separator="\n" if kind.is_listing else " ",
    )


def _spread(
    statements: list[Piece], evidence: list[int], hay: list[str], rng: Rng
) -> tuple[list[Piece], list[int]]:
    """Mix statements, in their order, evenly with sentences that do not matter."""
    depths = sorted(rng.random() for _ in statements)
    pieces, index = placed(hay, list(zip(depths, statements, strict=True)))
    return list(pieces), [index[i] for i in evidence]


STATEMENTS: tuple[Kind, ...] = tuple(
    Kind(
        name,
        description,
        partial(write_statements, document=document, is_movable=is_movable),
        reply_tokens=64 if name == "variables" else 24,
        has_depth=is_movable,
    )
    for name, (document, description, is_movable) in _TAKEN.items()
)
