"""A recipe, resolved: its loss as a formula, its batches in numbers, each value with its origin.

:func:`explain` returns plain data (what ``educe explain --json`` prints); :func:`render` makes it
readable. Torch-free.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from educe.algorithms.catalogue import BUNDLES, Bundle
from educe.config.loader import LoadedRecipe
from educe.config.render import flatten_recipe
from educe.config.schema import format_value
from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.observability.terminal_text import format_count
from educe.preflight import make_plan
from educe.preflight.balance import balance_lines
from educe.preflight.devices import takes_cuda
from educe.preflight.estimate import estimate_run, gigabytes
from educe.preflight.plan import (
    SETTING_OF,
    Plan,
    algorithm_overrides,
    reinforce_algebra,
)
from educe.preflight.stage_facts import render_batches, stage_batches, stage_losses


def explain(loaded: LoadedRecipe) -> tuple[dict[str, JSON], list[EduceError]]:
    """Return the resolved run as JSON-able data, and the problems that keep it from running."""
    plan, problems = make_plan(loaded)
    told: dict[str, JSON] = {
        "recipe": str(loaded.path) if loaded.path else "python",
        "run_folder": str(plan.run_folder),
        "stages": list(plan.recipe.stage_names),
        "model": _model(plan),
        "loss": _losses(plan),
        "batch": _batch(plan),
        "domains": [_domain(plan, name) for name in plan.domains],
        "balance": balance_lines(plan),
        "settings": dict(_settings(plan)),
        "notes": plan.notes,
        "problems": [str(p) for p in problems],
    }
    estimate = estimate_run(plan)
    if estimate is not None:
        told["memory"] = {**estimate.memory, "total": estimate.memory_total}
        told["disk"] = {**estimate.disk, "total": estimate.disk_total}
        if estimate.put_aside:
            aside = estimate.put_aside
            told["disk_temporary"] = {"activations": aside, "total": aside}
        told["model"]["num_trained"] = estimate.num_trained
    return told, problems


def _model(plan: Plan) -> dict[str, JSON]:
    shape = plan.shape
    told: dict[str, JSON] = {
        "name": plan.recipe.model.name,
        "folder": str(plan.model_folder) if plan.model_folder else None,
        "context_length": plan.context_length or None,
        "positions": plan.positions or None,
        "activations": _activations(plan),
        "reference": plan.needs_reference,
    }
    if shape is not None:
        told |= {"model_type": shape.model_type, "num_parameters": shape.num_parameters}
    return told


def _activations(plan: Plan) -> str | None:
    """How what the backward needs is kept, when not simply kept."""
    model = plan.recipe.model
    if not model.gradient_checkpointing:
        return None
    if not model.activation_offload:
        return "recomputed but for attention"
    place = "host memory" if takes_cuda(model) else f"a file in {tempfile.gettempdir()}"
    return f"recomputed but for attention, what is kept in {place}"


def _losses(plan: Plan) -> list[dict[str, JSON]]:
    """The loss of each stage that trains, and of each algorithm in it."""
    told = stage_losses(plan)
    if "rl" in plan.recipe.stages:
        for name, bundle in plan.bundles.items():
            told.append(
                {
                    "stage": "rl",
                    "name": name,
                    "formula": bundle.formula(),
                    "paper": bundle.paper,
                    "changed": _changed(plan, bundle),
                    "domains": [d.name for d in plan.domains.values() if d.bundle.name == name],
                }
            )
    return sorted(told, key=lambda loss: plan.recipe.stages.index(loss["stage"]))


def _changed(plan: Plan, bundle: Bundle) -> dict[str, JSON]:
    """What the recipe changes of the published bundle: {setting: [published, here, origin]}."""
    if bundle.name != plan.recipe.algorithm.name:
        return {}
    published = BUNDLES[bundle.name]
    names = {*algorithm_overrides(plan.recipe.algorithm), *dict(bundle.options)}
    return {
        key: [published.setting(key), bundle.setting(key), _origin(plan.loaded, _key_of(key))]
        for key in sorted(names)
        if published.setting(key) != bundle.setting(key)
    }


def _key_of(name: str) -> str:
    """Return where a recipe says what a bundle calls ``name``."""
    return SETTING_OF.get(name, f"algorithm.{name}")


def _batch(plan: Plan) -> dict[str, JSON]:
    recipe = plan.recipe
    told = stage_batches(plan)
    if "rl" in recipe.stages:
        algebra = reinforce_algebra(plan)
        told["rl"] = {
            "rollout_batches": algebra.steps,
            "prompts": algebra.prompts,
            "tokens_a_batch": recipe.rl.batch_tokens or None,
            "group_size": recipe.rl.group_size,
            "completions": algebra.completions,
            "completion_tokens_at_most": algebra.tokens,
            "optimizer_steps_a_batch": algebra.updates * algebra.epochs,
            "prompts_an_optimizer_step": algebra.prompts_per_update,
            "optimizer_steps": algebra.optimizer_steps,
            "minutes": recipe.rl.minutes or None,
            "tokens": recipe.rl.tokens or None,
        }
    if "eval" in recipe.stages:
        tasks = recipe.eval.tasks_per_domain * len(plan.domains)
        told["eval"] = {
            "domains": len(plan.domains),
            "tasks_at_most": tasks,
            "completions_at_most": tasks * recipe.eval.samples,
            "baseline": recipe.eval.baseline,
        }
    return {stage: told[stage] for stage in dict.fromkeys(recipe.stages) if stage in told}


def _domain(plan: Plan, name: str) -> dict[str, JSON]:
    domain = plan.domains[name]
    return {
        "name": name,
        "entry": domain.key,
        "origin": _origin(plan.loaded, domain.origin_key),
        "share": domain.share,
        "prompts_a_batch": domain.share * plan.recipe.rl.prompts,
        "prompt_tokens": domain.prompt_tokens,
        "completion_tokens": domain.completion_tokens,
        "max_turns": domain.max_turns,
        "temperature": domain.temperature,
        "algorithm": domain.bundle.name,
        "floor": domain.spec.floor,
    }


def _settings(plan: Plan) -> Iterator[tuple[str, dict[str, JSON]]]:
    bundle = BUNDLES.get(plan.recipe.algorithm.name)
    names = {key: name for name, key in SETTING_OF.items()}
    for key, value in flatten_recipe(plan.recipe).items():
        origin = _origin(plan.loaded, key)
        name = names.get(key, key.removeprefix("algorithm."))
        if bundle and key.startswith("algorithm.") and value is None:
            value, origin = bundle.setting(name), f"default of {bundle.name}"
        yield key, {"value": value, "origin": origin}


def _origin(loaded: LoadedRecipe, key: str) -> str:
    origin = loaded.origins.get(key)
    return str(origin) if origin else "default"


def render(told: Mapping[str, Any]) -> str:
    """Return what :func:`explain` found as text for a terminal."""
    blocks = [
        _render_head(told),
        *(_render_loss(loss) for loss in told["loss"]),
        *([_render_batch(told["batch"])] if told["domains"] or not told["problems"] else []),
        _render_domains(told["domains"]) if told["domains"] else "",
        _render_lines("Balance of domains", told["balance"]),
        _render_amounts("Memory (estimate)", told.get("memory")),
        _render_amounts("Disk (estimate)", told.get("disk")),
        _render_amounts("Temporary files (estimate)", told.get("disk_temporary")),
        _render_settings(told["settings"]),
    ]
    blocks.append(_render_lines("Notes", told["notes"]))
    return "\n\n".join(block for block in blocks if block)


def _render_lines(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _render_head(told: Mapping[str, Any]) -> str:
    model = told["model"]
    size = model.get("num_parameters")
    trained = model.get("num_trained", size)
    sizes = f", {format_count(size)} weights" if size else ""
    sizes += f" ({format_count(trained)} trained)" if size and trained != size else ""
    context = model["context_length"]
    return "\n".join(
        [
            f"{told['recipe']}: {' -> '.join(told['stages'])}, into {told['run_folder']}",
            f"  model {model['name']}"
            + (f", {model['model_type']}" if "model_type" in model else "")
            + sizes
            + (f", context {context}" if context else "")
            + (f" (positions {model['positions']})" if model["positions"] else "")
            + (", with a reference copy" if model["reference"] else ""),
            *([f"  activations {model['activations']}"] if model["activations"] else []),
        ]
    )


def _render_loss(loss: Mapping[str, Any]) -> str:
    lines = [f"Loss of {loss['stage']}: {loss['name']}", f"  {loss['formula']}"]
    if loss.get("paper"):
        lines.append(f"  as in {loss['paper']}")
    for key, (published, here, origin) in loss.get("changed", {}).items():
        lines.append(f"  but {key} = {_shown(here)} instead of {_shown(published)}  ({origin})")
    return "\n".join(lines)


def _render_batch(batch: Mapping[str, Any]) -> str:
    lines = ["Batches"]
    for stage, told in batch.items():
        if stage == "rl":
            lines += [
                f"  rl    a rollout batch: {told['prompts']} prompts x {told['group_size']} "
                f"completions = {told['completions']} completions, at most "
                f"{told['completion_tokens_at_most']} tokens",
                *_by_tokens(told),
                f"        {told['optimizer_steps_a_batch']} optimizer step(s) a rollout batch, "
                f"{told['prompts_an_optimizer_step']:g} prompts each",
                f"        {told['rollout_batches']} rollout batches = {told['optimizer_steps']} "
                f"optimizer steps, {told['rollout_batches'] * told['completions']} completions"
                f"{_budget(told)}",
            ]
        elif stage == "eval":
            lines.append(
                f"  eval  {told['domains']} domains, at most {told['tasks_at_most']} tasks, "
                f"{told['completions_at_most']} completions; compared with: {told['baseline']}"
            )
        else:
            lines += render_batches(stage, told)
    return "\n".join(lines)


def _by_tokens(told: Mapping[str, Any]) -> list[str]:
    if not told["tokens_a_batch"]:
        return []
    return [
        f"        at most so: it ends with the prompt that is predicted to reach "
        f"{told['tokens_a_batch']} tokens (prompt once, completions)"
    ]


def _budget(stage: Mapping[str, Any]) -> str:
    limits = [f"{stage[k]:g} {k}" for k in ("minutes", "tokens") if stage.get(k)]
    return f"; ends after {' or '.join(limits)} at the latest" if limits else ""


def _render_domains(domains: list[Mapping[str, Any]]) -> str:
    head = ("domain", "share", "prompts", "prompt", "completion", "turns", "temp", "loss", "floor")
    rows = [
        (
            d["name"],
            f"{d['share']:.1%}",
            f"{d['prompts_a_batch']:.2f}",
            str(d["prompt_tokens"] or "?"),
            str(d["completion_tokens"]),
            str(d["max_turns"]),
            f"{d['temperature']:g}",
            d["algorithm"],
            f"{d['floor']:g}",
        )
        for d in domains
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["Domains (prompts: a batch; prompt, completion: tokens at most; floor: chance level)"]
    for row in [head, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)


def _render_amounts(title: str, amounts: Mapping[str, int] | None) -> str:
    if amounts is None:
        return ""
    parts = {k: v for k, v in amounts.items() if k != "total" and v}
    told = ", ".join(f"{k} {gigabytes(v)}" for k, v in sorted(parts.items(), key=lambda p: -p[1]))
    return f"{title}: {gigabytes(amounts['total'])}\n  {told}"


def _render_settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Every value with its origin; of the domains, only what was set."""
    shown = {
        key: entry
        for key, entry in settings.items()
        if entry["origin"] != "default" or not key.startswith("domains")
    }
    width = max((len(f"{k} = {_shown(e['value'])}") for k, e in shown.items()), default=0)
    lines = ["Settings"]
    for key, entry in shown.items():
        text = f"{key} = {_shown(entry['value'])}"
        lines.append(f"  {text.ljust(min(width, 60))}  {entry['origin']}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "not set" if value is None else format_value(value)
