"""Checks on the model, from the files of its folder: architecture, weights, template, context."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from educe.core.errors import (
    DomainError,
    EduceError,
    RecipeError,
    UnsupportedModelError,
    did_you_mean,
)
from educe.core.types import Split, Task
from educe.models.architectures import KNOWN_SHAPES, read_shape
from educe.models.packaged_weights import PACKAGED, packaged_folder
from educe.models.rope import describe_positions, scaled_config
from educe.preflight.plan import DomainPlan, Plan

# Characters a token, counted low: a prompt is then rather thought too long than too short.
_CHARACTERS_PER_TOKEN = 2.5
# What a chat template adds around a short conversation, at most.
_TEMPLATE_TOKENS = 48
_MEASURED_ROWS = 10_000
# Tasks made in all, so that a recipe of hundreds of domains is still checked in a second or two.
_MEASURED_TASKS, _MEASURED_TASKS_A_DOMAIN = 120, 4


def locate_model(plan: Plan) -> Iterator[EduceError]:
    """Fill ``plan.shape`` and ``plan.model_folder``; yield why the model cannot be used."""
    name = plan.recipe.model.name
    key = packaged_key(name)
    folder = Path(name).expanduser()
    if not folder.is_dir() and key in PACKAGED:
        folder = packaged_folder(key)
    if not folder.is_dir() and key in PACKAGED:
        packaged = PACKAGED[key]
        plan.shape = KNOWN_SHAPES.get(key)
        plan.notes.append(
            f"{key} will be fetched first: {packaged.download_mb} MB, {packaged.disk_mb} MB on disk"
        )
    elif folder.is_dir():
        plan.model_folder = folder
        try:
            plan.shape = read_shape(folder)
        except UnsupportedModelError as error:
            origin = plan.where("model.name")
            yield UnsupportedModelError(f"{origin}: {error}" if origin else str(error))
            return
        yield from _check_folder(plan, folder)
    elif plan.recipe.model.allow_hub and name.count("/") == 1:
        plan.notes.append(f"{name} comes from the hub; its architecture is checked once it is here")
    else:
        known = ", ".join(sorted(PACKAGED))
        hub = " To try the hub, set model.allow_hub = true." if name.count("/") == 1 else ""
        yield plan.error(
            "model.name",
            f"'{name}' is neither a known model nor a folder.{did_you_mean(name, PACKAGED)} "
            f"Expected one of: {known}; or the path of a Hugging Face model folder.{hub}",
        )


def scale_positions(plan: Plan) -> Iterator[EduceError]:
    """Lengthen the context by the recipe's rope scaling; yield scalings that cannot be."""
    rope = plan.recipe.model.rope
    if rope.kind == "own" and rope.factor > 1:
        yield plan.error(
            "model.rope.factor",
            f'a factor of {rope.factor:g} needs a way to scale: set model.rope.kind = "yarn" (or '
            f'"linear", "llama3").',
        )
    if rope.kind != "own" and rope.factor == 1:
        yield plan.error(
            "model.rope.kind",
            f'"{rope.kind}" with a factor of 1 changes nothing; set model.rope.factor to new '
            f"context / own context.",
        )
    if plan.shape is None:
        return
    config = _read_json(plan.model_folder / "config.json") if plan.model_folder else {}
    config = {"max_position_embeddings": plan.shape.context_length, **config}
    source = plan.recipe.model.name
    try:
        changed = scaled_config(config, kind=rope.kind, factor=rope.factor, source=source)
    except UnsupportedModelError as error:
        yield plan.error("model.rope", str(error))
        return
    plan.positions = describe_positions({**config, **changed})
    if changed:
        length = int(changed["max_position_embeddings"])
        plan.notes.append(
            f"positions are scaled ({plan.positions}): the context grows from "
            f"{plan.shape.context_length} to {length} tokens, and the untrained model answers a "
            f"little differently than without"
        )
        plan.shape = replace(plan.shape, context_length=length)


def packaged_key(name: str) -> str:
    """Return the name under which packaged weights would be known (``Org/Name`` is ``name``)."""
    return name.lower().rpartition("/")[2]


def _check_folder(plan: Plan, folder: Path) -> Iterator[EduceError]:
    if not any(folder.glob("*.safetensors")):
        yield plan.error(
            "model.name",
            f"{folder} holds no *.safetensors. educe reads no pickled weights (*.bin, *.pt); "
            f"save the model again with safetensors.",
        )
    if not (folder / "tokenizer.json").is_file():
        yield plan.error("model.name", f"{folder} holds no tokenizer.json (a fast tokenizer).")
    template = plan.recipe.model.chat_template
    if not template and not _has_template(folder):
        yield plan.error(
            "model.name",
            f"the tokenizer in {folder} has no chat template. Name a Jinja file with "
            f"model.chat_template.",
        )


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    return bool(_read_json(folder / "tokenizer_config.json").get("chat_template"))


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_template(plan: Plan) -> Iterator[EduceError]:
    """Yield a chat template file that is missing or is not Jinja."""
    template = plan.recipe.model.chat_template
    if not template:
        return
    import jinja2

    try:
        text = Path(template).expanduser().read_text(encoding="utf-8")
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except OSError as error:
        yield plan.error("model.chat_template", f"cannot read the file '{template}': {error}")
    except jinja2.TemplateSyntaxError as error:
        if "unknown tag" not in str(error):  # transformers adds tags such as 'generation'
            yield plan.error(
                "model.chat_template", f"{template}:{error.lineno}: this is not Jinja: {error}"
            )


def check_context(plan: Plan) -> Iterator[EduceError]:
    """Yield prompts and completions that do not fit into the context together."""
    own, chosen = plan.shape.context_length if plan.shape else 0, plan.recipe.model.context_length
    if own and chosen > own:
        yield plan.error(
            "model.context_length",
            f"{chosen} tokens are more than the model was made for. Expected at most {own} (or 0 "
            f"for the model's own). A model.rope of factor {_factor(chosen, own)} makes room.",
        )
    context = plan.context_length
    if not context:
        return
    too_long: dict[str, list[DomainPlan]] = {}
    for domain in plan.domains.values():
        prompt, completion = domain.prompt_tokens or 0, domain.completion_tokens
        if prompt + completion > context:
            too_long.setdefault(_to_blame(plan, domain), []).append(domain)
        elif domain.longest > context:
            plan.notes.append(
                f"{domain.name}: {domain.max_turns} turns of {completion} tokens after a prompt of "
                f"{prompt} can reach the context of {context}; such a trajectory ends there"
            )
    for key, domains in _by_cause(too_long).items():
        yield _too_long(plan, key, domains)


def _factor(wanted: int, own: int) -> int:
    return -(-wanted // own)


def _to_blame(plan: Plan, domain: DomainPlan) -> str:
    """Return the setting without which the domain would fit: the one to change."""
    needed = (domain.prompt_tokens or 0) + domain.completion_tokens
    own = plan.shape.context_length if plan.shape else 0
    if plan.recipe.model.context_length and (not own or needed <= own):
        return "model.context_length"
    if domain.settings.max_completion_tokens:
        return f"{domain.origin_key}.max_completion_tokens"
    return "rl.max_completion_tokens" if plan.recipe.rl.max_completion_tokens else domain.origin_key


def _by_cause(too_long: Mapping[str, list[DomainPlan]]) -> dict[str, list[DomainPlan]]:
    """Tell of a model that is too small for several entries once, not an entry at a time."""
    entries = [key for key, domains in too_long.items() if domains[0].origin_key == key]
    if len(entries) < 2:
        return dict(too_long)
    rest = {key: domains for key, domains in too_long.items() if key not in entries}
    return {"model.name": [d for key in entries for d in too_long[key]], **rest}


def _too_long(plan: Plan, key: str, domains: list[DomainPlan]) -> RecipeError:
    worst = max(domains, key=lambda d: (d.prompt_tokens or 0) + d.completion_tokens)
    prompt, completion = worst.prompt_tokens or 0, worst.completion_tokens
    measured = f"its longest prompt of about {prompt} tokens plus " if prompt else ""
    need = f"{measured}a completion of {completion} tokens"
    remedy = "Lower max_completion_tokens, raise model.context_length, or leave the long rows out."
    if key == "model.context_length":
        remedy = f"Raise it to {prompt + completion}, or lower max_completion_tokens."
    elif key == "model.name":
        remedy = (
            "Take a model of a longer context, scale its positions (model.rope), or lower "
            "max_completion_tokens."
        )
    if len(domains) > 1:
        names = ", ".join(d.name for d in domains[:3]) + (", …" if len(domains) > 3 else "")
        return plan.error(
            key,
            f"{len(domains)} of {len(plan.domains)} domains do not fit into the context of "
            f"{plan.context_length} ({names}). {worst.name} needs most: {need}. {remedy}",
        )
    subject = "" if worst.name in key else f"{worst.name}: "
    return plan.error(
        key,
        f"{subject}{need} {'are' if prompt else 'is'} more than the context of "
        f"{plan.context_length}. {remedy}",
    )


def measure_prompts(plan: Plan) -> Iterator[EduceError]:
    """Fill the longest prompt of each domain; yield the domains that cannot make a task.

    The first rows of a user's data are measured, and a few tasks of registered domains (evenly over
    their names when there are very many). Counts come from the model's own tokenizer where its
    folder is there, else from the number of characters.
    """
    if not plan.domains:
        return
    count = _token_counter(plan)
    stride = -(-len(plan.domains) // _MEASURED_TASKS)
    num_tasks = max(1, min(_MEASURED_TASKS_A_DOMAIN, _MEASURED_TASKS // len(plan.domains)))
    for position, (name, domain) in enumerate(list(plan.domains.items())):
        if position % stride and not domain.settings.path:
            continue
        try:
            texts = _prompt_texts(domain, num_tasks)
        except DomainError as error:
            yield RecipeError(str(error), plan.where(domain.origin_key))
            continue
        if texts:
            longest = max(texts, key=len)
            tokens = count(longest + (plan.recipe.model.system_prompt or "")) + _TEMPLATE_TOKENS
            plan.domains[name] = replace(domain, prompt_tokens=tokens)


def _prompt_texts(domain: DomainPlan, num_tasks: int) -> list[str]:
    # Importing reasoning-gym takes over a second; its prompts are known to be short.
    if domain.name.startswith("rg/") and not domain.settings.path:
        return []
    from educe.domains.datasets import RowsDomain
    from educe.domains.registry import load_domain

    loaded = load_domain(domain.name, domain.settings)
    if isinstance(loaded, RowsDomain):
        rows = itertools.islice(loaded.rows.scan(), _MEASURED_ROWS)
        return [_prompt_text(loaded.as_task(row, key, place)) for key, place, row in rows]
    size = loaded.size(Split.TRAIN)
    wanted = num_tasks if size is None else min(num_tasks, size)
    return [_prompt_text(loaded.task(Split.TRAIN, index)) for index in range(wanted)]


def _prompt_text(task: Task) -> str:
    return "\n".join(m.content for m in task.messages) + (str(task.tools) if task.tools else "")


def _token_counter(plan: Plan) -> Any:
    file = plan.model_folder / "tokenizer.json" if plan.model_folder else None
    if file is not None and file.is_file():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    return lambda text: round(len(text) / _CHARACTERS_PER_TOKEN)
