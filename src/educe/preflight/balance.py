"""Checks on [balance], [forgetting] and [optimizer.back_off], and what they come to in words."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from educe.core.errors import EduceError, did_you_mean
from educe.preflight.plan import Plan
from educe.scheduling.forgetting import watched
from educe.scheduling.interference import clusters_of


def check_balance(plan: Plan) -> Iterator[EduceError]:
    """Yield settings that exclude each other or that would do nothing."""
    if not plan.domains:
        return
    if "rl" not in plan.recipe.stages:
        yield from _no_rl(plan)
        return
    yield from _sizes(plan)
    yield from _measuring(plan)
    yield from _rates(plan)
    yield from _forgetting(plan)


def _no_rl(plan: Plan) -> Iterator[EduceError]:
    recipe = plan.recipe
    given = {
        "forgetting.every": recipe.forgetting.every,
        "balance.measure_every": recipe.balance.measure_every,
        "optimizer.back_off.kl": recipe.optimizer.back_off.kl,
    }
    for key, value in given.items():
        if value:
            yield plan.error(
                key,
                "this is done in the stage 'rl', which this recipe has not. Remove it, or add "
                "the stage.",
            )


def _active(plan: Plan) -> list[str]:
    return [name for name, d in plan.domains.items() if d.settings.weight > 0]


def _sizes(plan: Plan) -> Iterator[EduceError]:
    balance = plan.recipe.balance
    asked = {
        "advantages": balance.advantages == "alike",
        "denominators": balance.denominators == "domain",
        "norms": balance.norms > 0,
        "conflicts": balance.conflicts == "project",
        "rates": balance.rates == "follow",
    }
    if len(_active(plan)) < 2:
        for name in (n for n, is_asked in asked.items() if is_asked):
            yield plan.error(
                f"balance.{name}",
                "one domain has nothing to be balanced with. Expected at least two domains with a "
                "weight; add one, or remove the setting.",
            )
        return
    if asked["advantages"] and asked["norms"]:
        yield plan.error(
            "balance.advantages",
            '"alike" scales what balance.norms measures and scales back: the gradient is linear in '
            f"the advantages. Keep one of the two (norms = {balance.norms:g} takes lengths and "
            "curvature into account too).",
        )
    uses = {d.bundle.aggregation for d in plan.domains.values()}
    if asked["denominators"] and "token-mean" not in uses:
        yield plan.error(
            "balance.denominators",
            f'"domain" changes token-mean only, and this run has {", ".join(sorted(uses))}, where '
            "a domain's say is its share of the prompts already. Remove it.",
        )
    limits = {d.bundle.name for d in plan.domains.values() if d.bundle.whitening}
    if asked["advantages"] and limits:
        plan.notes.append(
            f"{', '.join(sorted(limits))} whitens advantages over the batch first; "
            f"balance.advantages then brings each domain to the same size"
        )


def _measuring(plan: Plan) -> Iterator[EduceError]:
    balance = plan.recipe.balance
    for name, is_asked in (("norms", balance.norms > 0), ("conflicts", balance.conflicts != "sum")):
        if is_asked and not balance.measure_every:
            yield plan.error(
                f"balance.{name}",
                "it follows what is measured, and balance.measure_every = 0 measures nothing. Set "
                "that to 5, say, or remove this.",
            )
    if balance.measure_every >= plan.recipe.rl.steps > 0:
        plan.notes.append(
            f"balance.measure_every = {balance.measure_every}: only the first of "
            f"{plan.recipe.rl.steps} rollout batches is measured, and a single measurement has no "
            f"error bar"
        )


def _rates(plan: Plan) -> Iterator[EduceError]:
    recipe = plan.recipe
    balance, back_off = recipe.balance, recipe.optimizer.back_off
    has_updates = recipe.rl.updates * recipe.rl.epochs > 1
    if balance.rates == "follow" and not (has_updates or plan.needs_reference):
        yield plan.error(
            "balance.rates",
            '"follow" needs a KL, and none is measured: there is one update a rollout batch and no '
            "reference. Raise rl.updates, or set algorithm.kl_coefficient above 0.",
        )
    if not back_off.kl:
        return
    if back_off.of == "update" and not has_updates:
        yield plan.error(
            "optimizer.back_off.of",
            'the KL of an "update" is 0 with one update a rollout batch. Raise rl.updates, or '
            'measure the "reference" (algorithm.kl_coefficient above 0).',
        )
    if back_off.of == "reference" and not plan.needs_reference:
        yield plan.error(
            "optimizer.back_off.of",
            "no algorithm of this run has a reference policy. Set algorithm.kl_coefficient above "
            '0, or follow the "update" with several rl.updates.',
        )
    if recipe.algorithm.kl.target and back_off.of == "reference":
        yield plan.error(
            "optimizer.back_off.kl",
            f"algorithm.kl.target = {recipe.algorithm.kl.target:g} steers the same KL by its "
            f"coefficient; two controllers on one number swing. Keep one of them.",
        )


def _forgetting(plan: Plan) -> Iterator[EduceError]:
    settings, recipe = plan.recipe.forgetting, plan.recipe
    if not settings.every:
        return
    for pattern in settings.domains:
        if not fnmatch.filter(plan.domains, pattern):
            yield plan.error(
                "forgetting.domains",
                f"{pattern!r} matches no domain of the run.{did_you_mean(pattern, plan.domains)}",
            )
    names = watched(settings.domains, plan.domains)
    actions = settings.actions
    if not actions:
        yield plan.error("forgetting.actions", 'the list is empty; ["tell"] only says so.')
    idle = [n for n in names if plan.domains[n].settings.weight == 0]
    if "raise_share" in actions and idle:
        yield plan.error(
            "forgetting.actions",
            f'"raise_share" multiplies a weight, and {", ".join(idle[:3])} has weight 0. Give it a '
            f"small one, take it out of forgetting.domains, or choose add_replay or add_anchor.",
        )
    if {"add_replay", "add_anchor"} & set(actions) and not settings.replay:
        yield plan.error(
            "forgetting.replay",
            "0 keeps nothing of the start, so add_replay and add_anchor have nothing to train on. "
            "Expected at least 1.",
        )
    if settings.kl_limit and not settings.replay:
        yield plan.error(
            "forgetting.kl_limit",
            "the KL to the start is measured on forgetting.replay completions, and that is 0.",
        )
    if "roll_back" in actions and recipe.guards.action != "rollback":
        yield plan.error(
            "forgetting.actions",
            f'"roll_back" goes back to the checkpoint that [guards] keeps, and guards.action is '
            f'{recipe.guards.action!r}. Set it to "rollback".',
        )
    if settings.every > recipe.rl.steps:
        yield plan.error(
            "forgetting.every",
            f"the first look would come after the last of {recipe.rl.steps} rollout batches.",
        )


def balance_lines(plan: Plan) -> list[str]:
    """Return, in words, how domains are balanced and watched; empty where nothing is asked for."""
    recipe = plan.recipe
    if "rl" not in recipe.stages or not plan.domains:
        return []
    balance, back_off = recipe.balance, recipe.optimizer.back_off
    lines = []
    if balance.advantages == "alike":
        lines.append(
            f"advantages: each domain's brought to the run's size (x 1/{balance.advantage_limit:g} "
            f"to {balance.advantage_limit:g})"
        )
    if balance.denominators == "domain":
        lines.append("denominators: each domain's own tokens; its say is its share of prompts")
    if balance.measure_every:
        lines += _measure_lines(plan)
    if balance.rates == "follow":
        lines.append(
            f"rates: each domain's {balance.rate_least:g} to {balance.rate_most:g} times the "
            f"run's, down over a KL of {balance.rate_kl:g} or a sinking score"
        )
    if back_off.kl:
        lines.append(
            f"learning rate: x {back_off.factor:g} while the KL of the {back_off.of} is over "
            f"{back_off.kl:g} nats a token, then back by x {back_off.recovery:g}"
        )
    return lines + _mixture_lines(plan) + _forgetting_lines(plan)


def _measure_lines(plan: Plan) -> list[str]:
    balance = plan.recipe.balance
    active = _active(plan)
    clusters = clusters_of(
        {n: plan.domains[n].spec.family for n in active},
        {n: plan.domains[n].spec.kind for n in active},
        balance.clusters,
    )
    line = (
        f"gradients: measured every {balance.measure_every} rollout batches, "
        f"{len(set(clusters.values()))} x {len(set(clusters.values()))} cosines"
    )
    acts = []
    if balance.norms:
        acts.append(f"sizes made equal (power {balance.norms:g})")
    if balance.conflicts == "project":
        acts.append("conflicts projected away")
    return [line, *(f"  {act}, weights within x {balance.weight_limit:g}" for act in acts)]


def _mixture_lines(plan: Plan) -> list[str]:
    mixture, curriculum, recipe = plan.recipe.mixture, plan.recipe.curriculum, plan.recipe
    lines = []
    if mixture.long_share:
        lines.append(
            f"long contexts: {mixture.long_share:.0%} of all {mixture.cost} for "
            f"{', '.join(mixture.long)}"
        )
    if curriculum.lengths == "growing":
        steps = curriculum.length_steps or recipe.rl.steps // 2
        lines.append(
            f"lengths: prompts of {curriculum.length_first} tokens first, all after {steps} "
            f"rollout batches"
        )
    return lines


def _forgetting_lines(plan: Plan) -> list[str]:
    settings = plan.recipe.forgetting
    if not settings.every:
        return []
    names = watched(settings.domains, plan.domains)
    looks = min(len(names), settings.at_once)
    begin = len(names) * (settings.start_tasks + settings.replay)
    return [
        f"forgetting: {len(names)} domains watched every {settings.every} rollout batches; then "
        f"{', '.join(settings.actions)}",
        f"  costs {begin} completions at the start, {looks * settings.tasks} a look, "
        f"{settings.trial_tasks} a trial",
    ]
