"""Checks on model-written code: what this host enforces, and whose tests may train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from educe.core.errors import EduceError, RecipeError
from educe.core.stages import stage_kind
from educe.preflight.plan import DomainPlan, Plan

# Stages that run programs of the model: all that score. Those that learn from the scores:
_SCORING = {"rl", "rejection", "preference", "eval"}
_LEARNING = {"rl", "rejection", "preference"}
_MEANINGS = {
    "plain": "limits and a deadline only: it keeps accidents in, not attackers",
    "confined": "files, system calls and the network are confined, but processes and disks are "
    "the user's own",
}


def check_isolation(plan: Plan) -> Iterator[EduceError]:
    """Yield what keeps model-written code from running or training; note how it will run.

    The host's level is found by opening a sandbox, which attacks itself (a quarter of a second).
    """
    kinds = {stage_kind(stage) for stage in plan.recipe.stages}
    running = [d for d in plan.domains.values() if d.spec.executes_code]
    if not running or not kinds & _SCORING:
        return
    if kinds & _LEARNING:
        yield from _integrity(plan, running)
    yield from _level(plan, running)


def _integrity(plan: Plan, domains: Sequence[DomainPlan]) -> Iterator[EduceError]:
    sharing = [d for d in domains if d.spec.integrity == "in_process"]
    if not sharing:
        return
    if plan.recipe.sandbox.in_process_tests:
        plan.notes.append(
            f"tests that share a process with the model's code may train "
            f"(sandbox.in_process_tests): {_names(sharing)}"
        )
        return
    yield RecipeError(
        f"sandbox.in_process_tests: the tests of {_names(sharing)} run in the process of the "
        f"model's code, where a program that knows them can forge a pass. Training on that must be "
        f"opted in to: set sandbox.in_process_tests = true. Or remove the domains, or keep only "
        f"the stage 'eval'.",
        plan.where("sandbox.in_process_tests") or plan.where(sharing[0].origin_key),
    )


def _level(plan: Plan, domains: Sequence[DomainPlan]) -> Iterator[EduceError]:
    from educe.sandbox import SandboxError, open_sandbox

    minimum = plan.recipe.sandbox.minimum
    try:
        with open_sandbox(minimum=minimum) as sandbox:
            level = sandbox.level.name.lower()
    except SandboxError as error:
        reason = str(error).split(". Run `educe")[0]
        yield plan.error(
            "sandbox.minimum",
            f"{_names(domains)} run model-written code, and this machine does not enforce the "
            f'level "{minimum}": {reason}. `educe sandbox doctor` says what would help. To accept '
            f'less, name it: sandbox.minimum = "confined" ({_MEANINGS["confined"]}) or "plain" '
            f"({_MEANINGS['plain']}).",
        )
        return
    meaning = f": {_MEANINGS[level]}" if level in _MEANINGS else ""
    plan.notes.append(f"model-written code runs at sandbox level {level}{meaning}")


def _names(domains: Sequence[DomainPlan]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(d.name for d in domains[:3])
    return shown if len(domains) <= 3 else f"{shown} and {len(domains) - 3} more"
