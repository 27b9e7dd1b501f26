"""What the stages that learn from examples come to: their loss as a formula, their batches."""

from __future__ import annotations

import math
from typing import Any

from educe.core.errors import RecipeError
from educe.core.types import JSON
from educe.preflight.plan import Plan
from educe.preflight.stages import (
    preference_of,
    preference_size,
    reference_kind,
    supervised_size,
    supervised_weights,
)

_TRAINED = {
    "assistant": "the assistant's tokens",
    "last": "the last assistant turn's tokens",
    "all": "all tokens",
}


def stage_losses(plan: Plan) -> list[dict[str, JSON]]:
    """Return the loss of each stage but ``rl``."""
    recipe = plan.recipe
    told: list[dict[str, JSON]] = []
    if "sft" in recipe.stages:
        told.append({"stage": "sft", "name": "cross_entropy", "formula": supervised_formula(plan)})
    if "rejection" in recipe.stages:
        kept = recipe.rejection
        formula = (
            f"loss = token-mean[ -log policy ]  over the {kept.keep} best of {kept.group_size} "
            f"completions a prompt with a score >= {kept.min_score:g}"
        )
        told.append({"stage": "rejection", "name": "best_of_n", "formula": formula})
    if "preference" in recipe.stages:
        told += _preference(plan)
    if "distillation" in recipe.stages:
        own = recipe.distillation
        others = " - mean of the other completions" if own.baseline == "others" else ""
        formula = (
            f"loss = token-mean[ -A log policy ] on what the policy samples, "
            f"A = {own.coefficient:.12g} sg(d{others}), d = log teacher - log policy, "
            f"|d| <= {own.limit:.12g}"
        )
        paper = "Agarwal et al. 2023, arXiv 2306.13649; Gu et al. 2023, arXiv 2306.08543"
        told.append(
            {"stage": "distillation", "name": "reverse_kl", "formula": formula, "paper": paper}
        )
    return told


def supervised_formula(plan: Plan) -> str:
    """Return the loss of ``sft`` as one line of text."""
    sft = plan.recipe.sft
    smoothing = sft.label_smoothing
    body = "-log policy"
    if smoothing:
        body = f"-{1 - smoothing:.12g} log policy - {smoothing:.12g} mean over tokens of log policy"
    noise = f", embeddings + U(+-{sft.neftune_alpha:.12g} / sqrt(L D))" if sft.neftune_alpha else ""
    data = " and ".join(
        what
        for what, is_there in (
            ("gold answers", sft.demonstrations and bool(plan.domains)),
            (", ".join(sft.data), bool(sft.data)),
        )
        if is_there
    )
    return f"loss = token-mean[ {body} ]{noise}  over {_TRAINED[sft.loss_on]} of {data}"


def _preference(plan: Plan) -> list[dict[str, JSON]]:
    try:
        loss = preference_of(plan.recipe.preference)
    except RecipeError:
        return []  # told as a problem
    told: dict[str, JSON] = {
        "stage": "preference",
        "name": loss.name,
        "formula": loss.formula(),
        "paper": loss.paper,
    }
    if loss.needs_reference:
        names = plan.recipe.stage_names
        place = next(i for i, kind in enumerate(plan.recipe.stages) if kind == "preference")
        told["reference"] = reference_kind(plan.recipe, names[:place])
    return [told]


def stage_batches(plan: Plan) -> dict[str, JSON]:
    """Return the batches of each stage but ``rl`` and ``eval``."""
    recipe = plan.recipe
    told: dict[str, JSON] = {}
    if "sft" in recipe.stages:
        told["sft"] = _supervised(plan)
    if "rejection" in recipe.stages:
        own = recipe.rejection
        most = own.prompts * own.keep
        told["rejection"] = {
            "prompts": own.prompts,
            "group_size": own.group_size,
            "completions": own.prompts * own.group_size,
            "kept_at_most": most,
            "optimizer_steps_at_most": _steps(0, most, own.epochs, own.batch_size),
            "batch_size": own.batch_size,
            "minutes": own.minutes or None,
        }
    if "preference" in recipe.stages:
        told |= _preference_batches(plan)
    if "distillation" in recipe.stages:
        student = recipe.distillation
        told["distillation"] = {
            "optimizer_steps": student.steps,
            "completions": student.prompts * student.group_size,
            "teacher": student.teacher,
            "minutes": student.minutes or None,
        }
    return told


def _supervised(plan: Plan) -> dict[str, JSON]:
    sft = plan.recipe.sft
    size = supervised_size(plan)
    steps = sft.steps if size is None else _steps(sft.steps, size, sft.epochs, sft.batch_size)
    weights = supervised_weights(plan)
    total = sum(weights.values())
    sources: dict[str, JSON] = {}
    for name in sft.data:
        summary = plan.example_sets.get(("sft", name))
        sources[name] = {
            "rows": summary.num_rows if summary else None,
            "held_out": summary.num_held_out if summary else None,
            "share": weights.get(name, 0.0) / total if total else 0.0,
        }
    return {
        "demonstrations": size,
        "batch_size": sft.batch_size,
        "optimizer_steps": steps,
        "demonstrations_seen": steps * sft.batch_size,
        "data": sources,
        "minutes": sft.minutes or None,
    }


def _preference_batches(plan: Plan) -> dict[str, JSON]:
    own = plan.recipe.preference
    try:
        size = preference_size(plan)
    except RecipeError:
        return {}
    mined = own.mine.prompts * own.mine.pairs
    return {
        "preference": {
            "examples": size,
            "mined_at_most": mined,
            "batch_size": own.batch_size,
            "optimizer_steps_at_most": _steps(own.steps, size + mined, own.epochs, own.batch_size),
            "minutes": own.minutes or None,
        }
    }


def _steps(steps: int, size: int, epochs: float, batch_size: int) -> int:
    return steps or max(1, math.ceil(size * epochs / batch_size))


def render_batches(stage: str, told: dict[str, Any]) -> list[str]:
    """Return the lines of such a stage in ``educe explain``."""
    if stage == "sft":
        of = "a stream" if told["demonstrations"] is None else str(told["demonstrations"])
        lines = [
            f"  sft   {told['optimizer_steps']} optimizer steps x {told['batch_size']} "
            f"demonstrations = {told['demonstrations_seen']} seen, of {of}{_budget(told)}"
        ]
        for name, source in told["data"].items():
            rows = "a stream" if source["rows"] is None else f"{source['rows']} rows"
            held = f", {source['held_out']} held out" if source["held_out"] else ""
            lines.append(f"        {name}: {rows}{held}, {source['share']:.1%} of the examples")
        return lines
    if stage == "rejection":
        return [
            f"  rejection  {told['prompts']} prompts x {told['group_size']} completions, at most "
            f"{told['kept_at_most']} kept: at most {told['optimizer_steps_at_most']} optimizer "
            f"steps x {told['batch_size']}{_budget(told)}"
        ]
    if stage == "preference":
        mined = f" and at most {told['mined_at_most']} mined" if told["mined_at_most"] else ""
        return [
            f"  preference  {told['examples']} examples{mined}: at most "
            f"{told['optimizer_steps_at_most']} optimizer steps x {told['batch_size']}"
            f"{_budget(told)}"
        ]
    return [
        f"  distillation  {told['optimizer_steps']} optimizer steps x "
        f"{told['completions']} completions, teacher {told['teacher']}{_budget(told)}"
    ]


def _budget(stage: dict[str, Any]) -> str:
    return f"; ends after {stage['minutes']:g} minutes at the latest" if stage["minutes"] else ""
