"""Checks on [mixture] and [curriculum]: settings that contradict each other or would do nothing."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import replace

from educe.core.errors import EduceError, did_you_mean
from educe.preflight.plan import Plan

_FIXED = ("static", "size", "temperature")


def check_mixture(plan: Plan) -> Iterator[EduceError]:
    """Yield problems of the mixture; note what follows from it and set shares by size."""
    if "rl" not in plan.recipe.stages or not plan.domains:
        return
    yield from _empty(plan)
    yield from _protected(plan)
    yield from _long(plan)
    yield from _curriculum(plan)
    _set_shares(plan)
    _note(plan)


def _empty(plan: Plan) -> Iterator[EduceError]:
    for domain in plan.domains.values():
        if domain.spec.num_tasks == 0 and domain.settings.weight > 0:
            yield plan.error(
                domain.origin_key,
                f"{domain.name} has no training tasks. Give it rows (eval_fraction may have taken "
                f"them all), a weight of 0, or take it out.",
            )


def _protected(plan: Plan) -> Iterator[EduceError]:
    settings = plan.recipe.mixture
    if settings.protected and settings.strategy in _FIXED:
        yield plan.error(
            "mixture.protected",
            f"nothing moves the shares of mixture.strategy = {settings.strategy!r}, so no domain "
            f'can be given more when it slips. Set mixture.strategy = "expected_gain", or remove '
            f"mixture.protected.",
        )
    for pattern in settings.protected:
        if not fnmatch.filter(plan.domains, pattern):
            yield plan.error(
                "mixture.protected",
                f"{pattern!r} matches no domain of the run.{did_you_mean(pattern, plan.domains)}",
            )


def _long(plan: Plan) -> Iterator[EduceError]:
    settings = plan.recipe.mixture
    if not settings.long_share:
        return
    active = [n for n, d in plan.domains.items() if d.settings.weight > 0]
    long = [n for n in active if any(fnmatch.fnmatchcase(n, p) for p in settings.long)]
    if not long or len(long) == len(active):
        which = "no domain" if not long else "every domain"
        yield plan.error(
            "mixture.long_share",
            f"{which} of the run matches mixture.long ({', '.join(settings.long)}), so there is "
            f"nothing to share between. Name the domains with long contexts there, or set this to "
            f"0.",
        )


def check_lengths(plan: Plan) -> Iterator[EduceError]:
    """Yield a length curriculum that holds nothing back; asked once prompts were measured."""
    settings = plan.recipe.curriculum
    if "rl" not in plan.recipe.stages or settings.lengths != "growing":
        return
    known = [d.prompt_tokens for d in plan.domains.values() if d.prompt_tokens is not None]
    if known and len(known) == len(plan.domains) and max(known) <= settings.length_first:
        yield plan.error(
            "curriculum.length_first",
            f"the longest prompt of this run has about {max(known)} tokens, so a limit of "
            f"{settings.length_first} holds nothing back. Lower it, or set curriculum.lengths to "
            '"all".',
        )


def _curriculum(plan: Plan) -> Iterator[EduceError]:
    from educe.scheduling.levels import LEVELS, ladders_of

    settings = plan.recipe.curriculum
    if settings.levels != "band":
        return
    if settings.band_low >= settings.band_high:
        yield plan.error(
            "curriculum.band_low",
            f"the band is empty: expected band_low < band_high, got {settings.band_low} and "
            f"{settings.band_high}.",
        )
    families = {d.name: d.spec.family for d in plan.domains.values() if d.settings.weight > 0}
    if not ladders_of(families):
        yield plan.error(
            "curriculum.levels",
            f'"band" moves between the levels ({", ".join(LEVELS)}) of a family, and no family of '
            f'this recipe has two. Add some, for example [domains."rg/gcd/*"], or set it to '
            f'"fixed".',
        )


def _set_shares(plan: Plan) -> None:
    from educe.scheduling.choice import sized_weights

    if plan.recipe.mixture.strategy not in ("size", "temperature"):
        return
    weights = sized_weights(
        plan.recipe.mixture,
        {n: d.settings.weight for n, d in plan.domains.items()},
        {n: d.spec for n, d in plan.domains.items()},
    )
    total = sum(weights.values())
    for name, weight in weights.items():
        plan.domains[name] = replace(plan.domains[name], share=weight / total)


def _note(plan: Plan) -> None:
    mixture, curriculum = plan.recipe.mixture, plan.recipe.curriculum
    sizes = [d.spec.num_tasks for d in plan.domains.values()]
    if mixture.strategy in ("size", "temperature") and not any(sizes):
        plan.notes.append(
            f"no domain says how many tasks it has, so mixture.strategy = "
            f"{mixture.strategy!r} gives all of them the same size: shares are the weights"
        )
    if mixture.strategy not in _FIXED:
        plan.notes.append(
            f"shares move after each rollout batch ({mixture.strategy}), between "
            f"{mixture.floor:g} and {mixture.ceiling:g} times what the weights say; "
            f"`educe runs mixture` shows them"
        )
        if mixture.cost == "seconds" and plan.recipe.engine.workers:
            plan.notes.append(
                "mixture.cost is seconds and rollouts run in workers: a batch's wall time is "
                "charged by tokens, the time of scorers is not known apart"
            )
    if curriculum.tasks == "predicted" and not any(sizes):
        plan.notes.append(
            "curriculum.tasks = predicted passes over tasks of finite domains; this run has none"
        )
