"""Repairing generated packages of 3 to 30 modules with tools: planted bugs and API changes.

``repo-repair/bug/SIZE`` has one bug somewhere; in ``repo-repair/api/SIZE`` a function has changed
and its callers must follow. Sizes are tiny, small, medium, large and huge.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import Domain, DomainSpec
from educe.domains.builtin.repo_repair.changes import API_KINDS
from educe.domains.builtin.repo_repair.defects import BUG_KINDS
from educe.domains.builtin.repo_repair.domain import RepoRepair
from educe.domains.builtin.repo_repair.package import SIZES, Size

__all__ = ["API_KINDS", "BUG_KINDS", "create", "specs"]

_KINDS = {"bug": BUG_KINDS, "api": API_KINDS}
_DESCRIPTIONS = {
    "bug": "Find and repair a bug in a Python package of {} modules, with tools.",
    "api": "Make the callers of a changed function follow, in a package of {} modules.",
}


@functools.cache
def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all domains, by defect and size."""
    return tuple(_spec(defect, size) for defect in _KINDS for size in SIZES.values())


def create(name: str, *, kinds: Sequence[str] = (), partial: bool = False) -> Domain:
    """Return a domain.

    Args:
        name: ``repo-repair/bug/SIZE`` or ``repo-repair/api/SIZE``.
        kinds: of bugs or API changes; all by default.
        partial: pay the share of repaired tests when no other test was broken.

    Raises:
        DomainError: for an unknown name or kind.
    """
    known = {spec.name: spec for spec in specs()}
    if name not in known:
        raise DomainError(f"there is no domain {name!r}.{did_you_mean(name, known)}")
    possible = _KINDS[name.split("/")[1]]
    for kind in kinds:
        if kind not in possible:
            raise DomainError(
                f"{name}: unknown kind {kind!r}; known: {', '.join(possible)}."
                + did_you_mean(kind, possible)
            )
    return RepoRepair(known[name], kinds=tuple(kinds) or possible, partial=partial)


def _spec(defect: str, size: Size) -> DomainSpec:
    modules = "-".join(str(number) for number in dict.fromkeys(size.num_modules))
    return DomainSpec(
        name=f"repo-repair/{defect}/{size.name}",
        family=f"repo-repair/{defect}",
        kind="code",
        description=_DESCRIPTIONS[defect].format(modules),
        max_turns=size.max_turns,
        max_completion_tokens=size.max_completion_tokens,
        executes_code=True,
        tags=("tools", "multi-turn", "repository", defect, size.name),
    )
