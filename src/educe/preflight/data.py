"""Checks on domains: names, the reach of globs, and the rows of a user's own data."""

from __future__ import annotations

from collections.abc import Iterator

from educe.config.positions import format_key
from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, EduceError, MissingExtraError, RecipeError
from educe.core.protocols import DomainSpec
from educe.preflight.plan import Plan, plan_domain
from educe.preflight.stages import needs_domains


def resolve_domains(plan: Plan) -> Iterator[EduceError]:
    """Fill ``plan.domains``; yield unknown names, empty globs, unusable rows and functions."""
    entries = plan.recipe.domains
    if not entries and not needs_domains(plan.recipe):
        return  # the stages have data sets of their own
    if not entries:
        yield plan.error(
            "domains",
            'the recipe names no domain. Add for example [domains."rg/gcd/*"]; '
            "`educe domains` lists them.",
        )
        return
    if all(settings.weight == 0 for settings in entries.values()):
        yield plan.error("domains", "every weight is 0; give at least one domain a weight above 0.")
        return
    problems = list(_unknown(plan, entries))
    yield from problems
    if not problems:
        yield from _resolve(plan, entries)


def _unknown(plan: Plan, entries: dict[str, DomainSettings]) -> Iterator[EduceError]:
    from educe.domains.registry import expand

    for key, settings in entries.items():
        if settings.path or settings.function:
            continue
        try:
            expand(key)
        except DomainError as error:
            yield RecipeError(str(error), plan.where(format_key(("domains", key))))


def _resolve(plan: Plan, entries: dict[str, DomainSettings]) -> Iterator[EduceError]:
    from educe.domains.registry import resolve

    try:
        resolved = resolve(entries)
    except DomainError as error:
        yield RecipeError(str(error), plan.where("domains"))
        return
    total = sum(settings.weight for settings in resolved.values())
    for name, settings in resolved.items():
        if settings.path and settings.function:
            continue  # told by check_exclusions
        try:
            spec = _spec(name, settings)
            plan.domains[name] = plan_domain(plan.recipe, name, settings, spec, total)
        except MissingExtraError as error:
            yield error
        except RecipeError:
            continue  # an unknown algorithm, which check_algorithms tells with its place
        except (DomainError, OSError) as error:
            yield RecipeError(str(error), plan.where(format_key(("domains", name))))


def _spec(name: str, settings: DomainSettings) -> DomainSpec:
    from educe.domains.registry import get_spec, load_domain

    if settings.path:
        from educe.domains.datasets import preflight_rows

        preflight_rows(name, settings)
    if settings.path or settings.function or settings.options:
        return load_domain(name, settings).spec
    return get_spec(name)


def check_gold(plan: Plan) -> Iterator[EduceError]:
    """Yield an error when ``sft`` has nothing to imitate; note the domains it leaves out."""
    if "sft" not in plan.recipe.stages or not plan.domains:
        return
    without = [d.name for d in plan.domains.values() if not d.spec.has_gold]
    if len(without) == len(plan.domains) and not plan.recipe.sft.data:
        yield plan.error(
            "stages",
            "the stage 'sft' imitates gold answers, and no domain of this recipe has any. Remove "
            "'sft' from the stages, add a domain with gold answers, or [sft.data.NAME].",
        )
    elif without:
        plan.notes.append(f"no gold answers, so not part of sft: {', '.join(without)}")
