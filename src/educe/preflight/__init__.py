"""Everything that can be known to go wrong before torch is loaded and a single step is taken.

:func:`preflight` looks up names (domains, model, algorithm), checks that the numbers fit each other
and the machine, and returns the :class:`Plan` that ``educe explain`` prints. All problems are told
at once, each with the place in the recipe. No torch, under two seconds for the shipped recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from educe.config.loader import LoadedRecipe, join_problems
from educe.config.settings import Recipe
from educe.core.errors import EduceError, RecipeError
from educe.preflight import (
    balance,
    batch,
    credit,
    data,
    isolation,
    machine,
    mixing,
    model,
    review,
    stages,
    suites,
)
from educe.preflight.estimate import Estimate, estimate_run
from educe.preflight.plan import Plan, reinforce_algebra

__all__ = ["Estimate", "Plan", "make_plan", "preflight"]

_Check = Callable[[Plan], Iterator[EduceError]]

# Domains and model first: what they find, the later ones measure.
_CHECKS: tuple[_Check, ...] = (
    batch.check_batch,
    batch.check_algorithms,
    credit.check_credit,
    batch.check_exclusions,
    data.resolve_domains,
    data.check_gold,
    batch.check_goal,
    suites.check_suite,
    mixing.check_mixture,
    balance.check_balance,
    model.locate_model,
    model.scale_positions,
    stages.check_stages,
    stages.check_sizes,
    model.check_template,
    machine.check_extras,
    machine.check_device,
    machine.check_activations,
    batch.check_optimizer,
    batch.check_prefetch,
    machine.check_run_folder,
    isolation.check_isolation,
    review.check_review,
)


def preflight(recipe: LoadedRecipe | Recipe) -> Plan:
    """Check a recipe and return what it comes to.

    Raises:
        RecipeError: something in the recipe cannot run; several problems are told in one message.
        UnsupportedModelError, MissingExtraError: when that is the only problem.
    """
    plan, problems = make_plan(recipe)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise join_problems([RecipeError(str(p)) for p in problems])
    return plan


def make_plan(recipe: LoadedRecipe | Recipe) -> tuple[Plan, list[EduceError]]:
    """Return the plan as far as it can be made, and every problem found."""
    loaded = recipe if isinstance(recipe, LoadedRecipe) else LoadedRecipe(recipe)
    plan = Plan(loaded)
    problems = [problem for check in _CHECKS for problem in check(plan)]
    if not problems:
        problems += model.measure_prompts(plan)
    problems += model.check_context(plan)
    problems += mixing.check_lengths(plan)
    problems += batch.check_batch_tokens(plan)
    problems += machine.check_resources(plan, estimate_run(plan))
    _note_batches(plan)
    return plan, problems


def _note_batches(plan: Plan) -> None:
    if "rl" not in plan.recipe.stages or not plan.domains:
        return
    algebra = reinforce_algebra(plan)
    micro = plan.recipe.optimizer.micro_batch_tokens
    if algebra.tokens and algebra.tokens / algebra.updates < micro:
        plan.notes.append(
            f"a micro-batch of {micro} tokens holds the whole update "
            f"(at most {algebra.tokens // algebra.updates} completion tokens): one pass a step"
        )
