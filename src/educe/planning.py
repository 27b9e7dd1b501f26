"""``educe plan``: what a recipe will take on some hardware, before it is run.

:func:`plan_run` returns plain data (what ``--json`` prints), :func:`render` makes it readable.
Only the measuring of this machine loads torch, in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from educe.config.loader import LoadedRecipe
from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.preflight import make_plan
from educe.preflight.budget import propose_split
from educe.preflight.costs import StepCosts, gpu_costs
from educe.preflight.estimate import gigabytes, num_trained
from educe.preflight.hardware import HERE, GpuProfile, gpu_named
from educe.preflight.machine import memory_of
from educe.preflight.plan import Plan
from educe.preflight.predict import (
    StagePrediction,
    largest_pack,
    predict_eval,
    predict_memory,
    predict_rl_step,
    predict_sft_step,
    prompts_of_batch,
    workspace_of,
)
from educe.preflight.workload import (
    ASSUMED_PART,
    ASSUMED_SIGNAL,
    DomainLoad,
    loads_of,
    read_probe,
)
from educe.scheduling.resources import planned_workers

_PREDICTED = ("sft", "rl", "eval")
_DEFAULT_DEMONSTRATIONS = 512


def plan_run(
    loaded: LoadedRecipe,
    *,
    hardware: str = HERE,
    price_per_hour: float = 0.0,
    probe: Path | None = None,
    budget_h: float = 0.0,
    refresh: bool = False,
    announce: Callable[[str], None] = print,
) -> dict[str, JSON]:
    """Return the prediction of a run as JSON-able data.

    Args:
        hardware: ``here`` (measured, once) or a name of ``preflight.hardware.GPUS``.
        price_per_hour: of the machine, in any currency.
        probe: what ``educe probe RECIPE --json`` printed.
        budget_h: hours to split over SFT, RL and evaluation; 0 proposes nothing.
        refresh: measure this machine again.

    Raises:
        EduceError: the recipe cannot run, the hardware is unknown, the probe is of other domains.
    """
    gpu = None if hardware == HERE else gpu_named(hardware)
    plan = _checked(loaded, gpu)
    shape = plan.shape
    if shape is None:
        raise EduceError(
            f"the sizes of {plan.recipe.model.name} are not known before it is here; fetch it, "
            "then plan again"
        )
    probed = read_probe(probe) if probe is not None else {}
    loads = loads_of(plan, probed)
    if probed and not any(d.name in probed for d in loads):
        raise EduceError(f"{probe} was probed on other domains than this recipe's; probe it again")
    costs = _costs(plan, gpu, refresh, announce)
    stages = _stages(plan, costs, loads)
    memory = predict_memory(plan, shape, costs, loads)
    total, _, place = memory_of(plan.recipe.model.device) if gpu is None else _memory_of(gpu)
    seconds = sum(stage.seconds for stage in stages)
    told: dict[str, JSON] = {
        "recipe": plan.recipe.run.name,
        "hardware": hardware,
        "source": costs.source,
        "memory": {**memory, "total": sum(memory.values()), "available": total},
        "fits": total is None or sum(memory.values()) <= total,
        "place": place,
        "stages": [stage.to_json() for stage in stages],
        "hours": seconds / 3600,
        "price_per_hour": price_per_hour,
        "cost": seconds / 3600 * price_per_hour,
        "largest_micro_batch_tokens": largest_pack(plan, costs, memory, total) if total else None,
        "workers": _workers(plan, stages, loads),
        "split": _split(plan, stages, loads, budget_h),
        "notes": _notes(plan, loads, probed, budget_h),
    }
    return told


def _checked(loaded: LoadedRecipe, gpu: GpuProfile | None) -> Plan:
    plan, problems = make_plan(loaded)
    if gpu is not None:
        # What is wrong with this machine says nothing of another one.
        own = ("model.device", "model.name", "run.out", "sandbox.minimum")
        problems = [p for p in problems if not any(f"{key}: " in str(p) for key in own)]
    if problems:
        raise problems[0]
    return plan


def _costs(
    plan: Plan, gpu: GpuProfile | None, refresh: bool, announce: Callable[[str], None]
) -> StepCosts:
    assert plan.shape is not None
    if gpu is None:
        from educe.calibration import measured_costs

        return measured_costs(plan.recipe, plan.shape, refresh=refresh, announce=announce)
    trained = num_trained(plan.shape, plan.recipe.model.lora.rank)
    return gpu_costs(gpu, plan.shape, workspace_of(plan), trained)


def _memory_of(gpu: GpuProfile) -> tuple[int, int, str]:
    size = int(gpu.memory_gb * 1024**3)
    return size, size, f"the {gpu.name}"


def _stages(plan: Plan, costs: StepCosts, loads: Sequence[DomainLoad]) -> list[StagePrediction]:
    recipe, found = plan.recipe, []
    for name, kind in zip(recipe.stage_names, recipe.stages, strict=True):
        if kind == "sft":
            count = recipe.sft.num_tasks or _DEFAULT_DEMONSTRATIONS
            steps = recipe.sft.steps or math.ceil(count * recipe.sft.epochs / recipe.sft.batch_size)
            step = predict_sft_step(plan, costs, loads)
            found.append(_stage(name, step, steps, recipe.sft.minutes))
        elif kind == "rl":
            step = predict_rl_step(plan, costs, loads)
            found.append(_stage(name, step, recipe.rl.steps, recipe.rl.minutes))
        elif kind == "eval":
            models = {"none": 1, "start": 2, "base-best-prompt": 3}[recipe.eval.baseline]
            found.append(_stage(name, predict_eval(plan, costs, loads), models, 0.0))
    return found


def _stage(name: str, step: Any, num_steps: int, minutes: float) -> StagePrediction:
    if minutes:
        num_steps = min(num_steps, max(1, int(minutes * 60 / step.seconds)))
    return StagePrediction(name, step, num_steps, num_steps * step.seconds)


def _workers(
    plan: Plan, stages: Sequence[StagePrediction], loads: Sequence[DomainLoad]
) -> dict[str, JSON]:
    """Reward workers that each domain keeps busy while a batch is sampled."""
    step = next((s.step for s in stages if s.name.startswith("rl")), None)
    if step is None:
        return {}
    sampling = max(step.parts["decode"] + step.parts["prefill"], 1e-9)
    prompts = prompts_of_batch(plan, loads)
    asked = {d.name: d.share * prompts * d.group_size / sampling for d in loads}
    seconds = {d.name: d.score_s for d in loads}
    needed = sum(asked[n] * seconds[n] for n in asked)
    given = planned_workers(asked, seconds, plan.recipe.rl.score_workers)
    return {"needed": needed, "given": plan.recipe.rl.score_workers, "by_domain": given}


def _split(
    plan: Plan, stages: Sequence[StagePrediction], loads: Sequence[DomainLoad], budget_h: float
) -> JSON:
    if not budget_h or not any(d.pass_at_1 is not None for d in loads):
        return None
    evaluated = [s for s in stages if s.name.startswith("eval")]
    if evaluated:
        tasks = plan.recipe.eval.tasks_per_domain * len(loads)
        task_s = evaluated[0].seconds / max(1, tasks)
    else:
        task_s = 0.0
    has_gold = any(d.spec.has_gold for d in plan.domains.values())
    return propose_split(budget_h * 3600, loads, task_s, has_gold=has_gold).to_json()


def _notes(
    plan: Plan, loads: Sequence[DomainLoad], probed: Mapping[str, Any], budget_h: float
) -> list[str]:
    notes = []
    missing = [d.name for d in loads if d.name not in probed]
    if missing:
        which = "nothing was probed" if len(missing) == len(loads) else f"{len(missing)} domains"
        notes.append(
            f"{which}: completions are taken to fill {ASSUMED_PART:.0%} of their limits and "
            f"{ASSUMED_SIGNAL:.0%} of groups to carry signal. `educe probe RECIPE --json > FILE`, "
            "then --probe FILE, replaces guesses by figures"
        )
    if budget_h and not probed:
        notes.append("a split of the budget needs --probe")
    others = sorted({k for k in plan.recipe.stages if k not in _PREDICTED})
    if others:
        notes.append(f"not predicted, and not in the sums: {', '.join(others)}")
    return notes


# Text


def render(told: Mapping[str, Any]) -> str:
    """Return what :func:`plan_run` found as text for a terminal."""
    lines = [f"{told['recipe']} on {told['hardware']} ({told['source']})", ""]
    lines += [*_memory_lines(told), "", *_stage_lines(told)]
    if told["workers"]:
        lines += ["", *_worker_lines(told["workers"])]
    if told["split"] is not None:
        lines += ["", *_split_lines(told["split"])]
    return "\n".join([*lines, *(f"note: {note}" for note in told["notes"])])


def _memory_lines(told: Mapping[str, Any]) -> list[str]:
    memory = told["memory"]
    parts = {k: v for k, v in memory.items() if k not in ("total", "available") and v}
    listed = sorted(parts.items(), key=lambda item: -item[1])
    available = memory["available"]
    of = f" of {gigabytes(available)} ({told['place']})" if available else ""
    verdict = "" if told["fits"] else "; IT DOES NOT FIT"
    largest = told["largest_micro_batch_tokens"]
    return [
        f"memory at the peak: {gigabytes(memory['total'])}{of}{verdict}",
        "  " + ", ".join(f"{name} {gigabytes(amount)}" for name, amount in listed),
        *([f"  packs of {largest} tokens (optimizer.micro_batch_tokens) fit"] if largest else []),
    ]


def _stage_lines(told: Mapping[str, Any]) -> list[str]:
    lines = [f"{'stage':<8} {'steps':>6} {'s a step':>9} {'tokens/s':>9} {'time':>10} {'cost':>8}"]
    price = told["price_per_hour"]
    for stage in told["stages"]:
        step, hours = stage["step"], stage["seconds"] / 3600
        cost = f"{hours * price:.2f}" if price else "-"
        lines.append(
            f"{stage['stage']:<8} {stage['steps']:>6} {step['seconds']:>9.2f} "
            f"{step['tokens_per_s']:>9.0f} {duration(stage['seconds']):>10} {cost:>8}"
        )
    cost = f"{told['cost']:.2f}" if price else "-"
    lines.append(
        f"{'all':<8} {'':>6} {'':>9} {'':>9} {duration(told['hours'] * 3600):>10} {cost:>8}"
    )
    for stage in told["stages"]:
        parts = sorted(stage["step"]["parts"].items(), key=lambda item: -item[1])
        whole = max(stage["step"]["seconds"], 1e-9)
        shown = ", ".join(f"{n} {s / whole:.0%}" for n, s in parts if s / whole >= 0.005)
        lines.append(f"  {stage['stage']}: {shown}")
    return lines


def _worker_lines(workers: Mapping[str, Any]) -> list[str]:
    busiest = sorted(workers["by_domain"].items(), key=lambda item: -item[1])[:3]
    told = ", ".join(f"{name} {count:.2f}" for name, count in busiest)
    return [
        f"reward workers kept busy while sampling: {workers['needed']:.2f} of {workers['given']} "
        f"(most: {told})"
    ]


def _split_lines(split: Mapping[str, Any]) -> list[str]:
    shown = ", ".join(
        f"{name} {duration(split[f'{key}_minutes'] * 60)}"
        for name, key in (("SFT", "sft"), ("RL", "rl"), ("evaluation", "eval"))
    )
    return [
        f"proposed split: {shown}",
        *(f"  {reason}" for reason in split["reasons"]),
        f"  as settings: sft.minutes={split['sft_minutes']:.0f} "
        f"rl.minutes={split['rl_minutes']:.0f} eval.tasks_per_domain={split['tasks_per_domain']}",
    ]


def duration(seconds: float) -> str:
    """Return seconds as ``45 s``, ``12 min`` or ``1 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
