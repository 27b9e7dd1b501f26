"""The generator families of reasoning-gym as domains ``rg/<family>/<level>``."""

from __future__ import annotations

from typing import Any

from educe.core.errors import DomainError
from educe.core.protocols import Domain, DomainSpec

EXCLUDED: dict[str, str] = {}


def specs() -> tuple[DomainSpec, ...]:
    """Return the specs of all offered families and levels, from the shipped manifest."""
    return ()


def create(name: str, **options: Any) -> Domain:
    """Return the domain called ``name``; ``options`` override the family's configuration."""
    raise DomainError(f"there is no domain {name!r}")
