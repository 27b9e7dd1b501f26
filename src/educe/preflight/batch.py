"""Checks on the recipe alone: numbers that do not fit, options that exclude each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

from educe.config.positions import format_key
from educe.config.settings import DomainSettings, PrefetchSettings
from educe.core.errors import EduceError, RecipeError, did_you_mean
from educe.preflight.plan import Plan, bundle_of

SINKS = ("wandb", "mlflow", "trackio", "tensorboard")


def check_batch(plan: Plan) -> Iterator[EduceError]:
    """Yield what is wrong with the batch sizes of the stages that will run."""
    recipe = plan.recipe
    if not recipe.stages:
        yield plan.error(
            "stages", 'the list is empty; name at least one, for example "sft", "rl", "eval".'
        )
    if "rl" in recipe.stages:
        yield from _reinforce(plan)


def _reinforce(plan: Plan) -> Iterator[EduceError]:
    rl, run = plan.recipe.rl, plan.recipe.run
    if rl.updates > rl.prompts:
        yield plan.error(
            "rl.updates",
            f"{rl.updates} optimizer steps cannot share a rollout batch of {rl.prompts} prompts: "
            f"a mini-batch would be smaller than one prompt. Expected rl.updates <= rl.prompts; "
            f"lower rl.updates or raise rl.prompts.",
        )
    if run.ranks > rl.prompts:
        yield plan.error(
            "run.ranks",
            f"{run.ranks} trainer processes cannot share {rl.prompts} prompts. "
            f"Expected run.ranks <= rl.prompts.",
        )


def check_batch_tokens(plan: Plan) -> Iterator[EduceError]:
    """Yield a size in tokens that no batch can reach; asked once prompts were measured."""
    rl = plan.recipe.rl
    if "rl" not in plan.recipe.stages or not rl.batch_tokens or not plan.domains:
        return
    groups = [
        (d.prompt_tokens or 0)
        + (rl.group_size + d.bundle.needs_greedy) * d.completion_tokens * d.max_turns
        for d in plan.domains.values()
    ]
    most = rl.prompts * max(groups)
    if all(d.prompt_tokens for d in plan.domains.values()) and most < rl.batch_tokens:
        yield plan.error(
            "rl.batch_tokens",
            f"no batch of at most rl.prompts = {rl.prompts} prompts reaches {rl.batch_tokens} "
            f"tokens: their groups have at most about {most}. Raise rl.prompts, which is only a "
            f"bound here, or lower this.",
        )
        return
    plan.notes.append(
        f"a rollout batch ends with the prompt that is predicted to reach {rl.batch_tokens} "
        f"tokens (at least {rl.updates}, at most {rl.prompts} prompts)"
    )


def check_optimizer(plan: Plan) -> Iterator[EduceError]:
    """Yield settings that the optimizer does not have, or types that it cannot keep."""
    settings, dtype = plan.recipe.optimizer, plan.recipe.model.dtype
    if settings.name == "adamw_8bit" and dtype == "float64":
        yield plan.error(
            "optimizer.name",
            'moments of 8 bits are for weights of float32 or bfloat16; model.dtype is "float64". '
            'Set optimizer.name = "adamw".',
        )
    given = plan.loaded.origins
    if "optimizer.momentum" in given and settings.name != "muon":
        yield plan.error(
            "optimizer.momentum",
            f'only muon has it; "{settings.name}" takes optimizer.beta1. Leave it out, or set '
            f'optimizer.name = "muon".',
        )
    if "optimizer.implementation" in given and settings.name in ("sgd", "adamw_8bit"):
        yield plan.error(
            "optimizer.implementation",
            f'it chooses the kernel of AdamW; "{settings.name}" has one of its own. Leave it out.',
        )


def check_prefetch(plan: Plan) -> Iterator[EduceError]:
    """Yield prefetching that cannot help; tell of processes that the cores do not carry."""
    prefetch = plan.recipe.prefetch
    if prefetch.ahead != PrefetchSettings().ahead and not prefetch.workers:
        yield plan.error(
            "prefetch.ahead",
            "without workers nothing is made ahead. Set prefetch.workers, or leave it out.",
        )
    cores, total = os.cpu_count() or 1, prefetch.workers * plan.recipe.run.ranks
    if total > cores:
        ranks = f" x {plan.recipe.run.ranks} ranks" if plan.recipe.run.ranks > 1 else ""
        plan.notes.append(
            f"prefetch.workers = {prefetch.workers}{ranks} is more than this machine's {cores} "
            f"cores"
        )


def check_algorithms(plan: Plan) -> Iterator[EduceError]:
    """Yield unknown algorithms, and groups of one where the baseline is the group."""
    recipe = plan.recipe
    if "rl" not in recipe.stages:
        return
    # An empty entry stands for the domains that take the run's algorithm.
    entries = {"algorithm.name": DomainSettings()} | {
        f"{_key(name)}.algorithm": settings
        for name, settings in recipe.domains.items()
        if settings.algorithm
    }
    for key, settings in entries.items():
        try:
            bundle = bundle_of(recipe, settings)
        except RecipeError as error:
            yield RecipeError(str(error), plan.where(key))
            continue
        if bundle.needs_group and recipe.rl.group_size < 2:
            yield plan.error(
                "rl.group_size",
                f"a group of one has no baseline: {bundle.name} compares a prompt's completions "
                f"with each other. Expected at least 2, got {recipe.rl.group_size}.",
            )
            return


def check_exclusions(plan: Plan) -> Iterator[EduceError]:
    """Yield options that contradict each other or that would silently do nothing."""
    recipe = plan.recipe
    rl, algorithm = recipe.rl, recipe.algorithm
    if recipe.run.mode == "exact" and rl.max_staleness > 0:
        yield plan.error(
            "rl.max_staleness",
            f'run.mode = "exact" trains on-policy only; got max_staleness = {rl.max_staleness}. '
            f'Set it to 0, or run.mode = "fast".',
        )
    engine = recipe.engine
    if engine.dtype == "int8" and (recipe.run.mode == "exact" or engine.forward == "module"):
        other = 'run.mode = "fast"' if recipe.run.mode == "exact" else 'engine.forward = "auto"'
        yield plan.error(
            "engine.dtype",
            "int8 rounds the products of the fused forward, which neither run.mode = exact nor "
            f"engine.forward = module uses. Set {other}, or another engine.dtype.",
        )
    if recipe.eval.samples > 1 and recipe.eval.temperature == 0 and "eval" in recipe.stages:
        yield plan.error(
            "eval.samples",
            f"{recipe.eval.samples} greedy samples of a task are all the same. Raise "
            f"eval.temperature above 0, or set eval.samples = 1.",
        )
    if algorithm.kl_estimator is not None and algorithm.kl_coefficient == 0:
        yield plan.error(
            "algorithm.kl_estimator",
            "algorithm.kl_coefficient is 0, so no KL is estimated. Raise the coefficient, or "
            "remove the estimator.",
        )
    for sink in recipe.run.sinks:
        if sink not in SINKS:
            yield plan.error(
                "run.sinks",
                f"there is no sink {sink!r}.{did_you_mean(sink, SINKS)} Known: {', '.join(SINKS)}.",
            )
    yield from _idle_guards(plan)
    yield from _domain_exclusions(plan)


def _idle_guards(plan: Plan) -> Iterator[EduceError]:
    guards = plan.recipe.guards
    if guards.screen_every and "rl" not in plan.recipe.stages:
        yield plan.error(
            "guards.screen_every",
            "screen tasks are looked at in the stage 'rl', which this recipe has not. Remove it, "
            "or add the stage.",
        )
    for name in ("grad_norm", "update_norm", "screen_every"):
        if guards.action == "off" and getattr(guards, name):
            yield plan.error(
                f"guards.{name}",
                'guards.action is "off", so nothing is limited or looked at. Set it to "alarm" or '
                '"rollback".',
            )


def _domain_exclusions(plan: Plan) -> Iterator[EduceError]:
    for name, settings in plan.recipe.domains.items():
        key = _key(name)
        if settings.path and settings.function:
            yield plan.error(f"{key}.function", "give either 'path' or 'function', not both.")
        elif settings.reward and not settings.path:
            yield plan.error(
                f"{key}.reward",
                "'reward' scores the rows of a 'path'; this domain has none and brings its own.",
            )


def check_goal(plan: Plan) -> Iterator[EduceError]:
    """Yield goals and guardrails on domains that are not part of the run."""
    goal = plan.recipe.goal
    if not plan.domains:
        return  # told already: no domain could be resolved
    for table, entries in (("targets", goal.targets), ("guardrails", goal.guardrails)):
        for name in entries:
            if name not in plan.domains:
                hint = did_you_mean(name, plan.domains)
                yield plan.error(
                    f'goal.{table}."{name}"',
                    f"this domain is not part of the run.{hint} Add it under [domains], or take "
                    f"it out of the goal.",
                )


def _key(name: str) -> str:
    return format_key(("domains", name))
