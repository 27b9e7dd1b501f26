"""The generator families of reasoning-gym as domains ``rg/<family>/<level>``.

Listing reads ``manifest.json`` and imports neither reasoning-gym nor numpy. The manifest is written
by ``python -m educe.domains.build_manifest``, which also measures each domain's floor.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import Domain, DomainSpec
from educe.domains.reasoning_gym.levels import EXCLUDED as _EXCLUDED_FAMILIES
from educe.domains.reasoning_gym.levels import FAMILIES

EXCLUDED: dict[str, str] = {f"rg/{family}": reason for family, reason in _EXCLUDED_FAMILIES.items()}
"""Family that is not offered: the reason."""


def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all offered families and levels, from the shipped manifest."""
    return tuple(spec_from_row(row) for row in manifest().values())


def create(name: str, **options: Any) -> Domain:
    """Return the domain called ``name``; ``options`` override the family's configuration.

    Raises:
        DomainError: unknown name, or a configuration that the family refuses.
    """
    from educe.domains.reasoning_gym.domain import ReasoningGymDomain

    row = manifest().get(name)
    if row is None:
        raise DomainError(f"there is no domain {name!r}.{did_you_mean(name, manifest())}")
    _, family, level = name.split("/")
    return ReasoningGymDomain(
        spec_from_row(row),
        family=family,
        configuration={**FAMILIES[family][1][level], **options},
        is_multiline=row["is_multiline"],
        is_numeric=row["is_numeric"],
    )


@functools.cache
def manifest() -> dict[str, dict[str, Any]]:
    """Return the rows of the shipped manifest by domain name."""
    text = resources.files(__package__).joinpath("manifest.json").read_text("utf-8")
    rows: list[dict[str, Any]] = json.loads(text)["domains"]
    return {row["name"]: row for row in rows}


def spec_from_row(row: dict[str, Any]) -> DomainSpec:
    """Return the spec that a manifest row describes."""
    return DomainSpec(
        name=row["name"],
        family=row["family"],
        kind=row["kind"],
        description=row["description"],
        licence="Apache-2.0",
        floor=row["floor"],
        max_completion_tokens=row["max_completion_tokens"],
        num_tasks=row["num_tasks"],
        tags=tuple(row["tags"]),
    )
