"""The run folder of a recipe: made, reopened, or refused, before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from educe.config.loader import LoadedRecipe
from educe.config.positions import format_key
from educe.config.render import diff_recipes
from educe.config.schema import format_value
from educe.config.settings import Recipe
from educe.core.errors import EduceError, RecipeError
from educe.observability.run_store import RunStore
from educe.trainers.checkpoint_files import complete_checkpoints, read_progress

# What may change when a run is continued. Everything else was part of what is in its checkpoint.
FREE = (
    "run.out",
    "run.sinks",
    "checkpoint.*",
    "eval.*",
    "goal.*",
    "guards.*",
    "*.minutes",
    "rl.tokens",
    "sandbox.num_parallel",
    "model.activation_offload",
    "prefetch.*",
)
# Without a schedule that counts on them, steps are only where a stage ends.
STEPS = ("sft.steps", "sft.epochs", "rl.steps", "preference.steps", "distillation.steps")
# These change the last bits of sums, or the order of draws, which only ``exact`` promises.
FAST = (
    "run.threads",
    "run.ranks",
    "engine.*",
    "optimizer.micro_batch_tokens",
    "model.compute_dtype",
    "model.gradient_checkpointing",
    "optimizer.implementation",
    "rl.score_workers",
    "rl.score_timeout_s",
    "rl.learning_rate",
    "rl.temperature",
    "sft.learning_rate",
)


def prepare_folder(loaded: LoadedRecipe, *, resume: bool) -> tuple[Path, RunStore]:
    """Create or reopen the run folder of a recipe.

    Raises:
        EduceError: a fresh run whose folder holds one already; a resume without one, or with
            settings that its checkpoint contradicts.
    """
    recipe = loaded.recipe
    folder = Path(recipe.run.out).expanduser() / recipe.run.name
    raw = recipe.model_dump(mode="json")
    if not resume:
        return folder, RunStore.create(folder, raw, name=recipe.run.name)
    if not (folder / "run.json").exists():
        raise EduceError(f"--resume: {folder} holds no run; start it without --resume")
    found = complete_checkpoints(folder / "checkpoints")
    done = {"stage_index": 0, "stage_step": 0}
    if found:
        done = read_progress(found[-1])["progress"]
        check_changes(_stored_recipe(folder), loaded, stage_index=done["stage_index"])
    starts: dict[str, int] = {}
    for index, stage in enumerate(recipe.stage_names):
        if index == done["stage_index"]:
            starts[stage] = done["stage_step"]
        elif index > done["stage_index"]:
            starts.setdefault(stage, 0)
    return folder, RunStore.resume(folder, next_step=starts, recipe_json=raw)


def _stored_recipe(folder: Path) -> Recipe:
    """Return the recipe of the newest attempt; settings that this educe no longer has are gone."""
    raw = RunStore.open(folder).recipe
    return Recipe.model_validate(_known(raw, Recipe().model_dump()))


def _known(raw: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    # Tables whose keys the user chooses (domains, targets) have an empty default.
    return {
        k: _known(v, shape[k]) if isinstance(v, Mapping) and shape.get(k) else v
        for k, v in raw.items()
        if k in shape
    }


def check_changes(before: Recipe, now: LoadedRecipe, *, stage_index: int) -> None:
    """Refuse settings that differ from those of the run that is continued.

    Args:
        before: the recipe of the newest attempt.
        stage_index: the stage that the newest checkpoint is in; later ones may change.

    Raises:
        RecipeError: names every such setting, both values, and what may change.
    """
    problems = list(_contradictions(before, now, stage_index))
    if not problems:
        return
    mode = now.recipe.run.mode
    fast = (*FAST, "domains (whole ones, in rl)") if mode == "fast" else ()
    free = [*FREE, *fast, "steps (with a constant schedule)"]
    listed = "\n".join(f"  {p}" for p in problems)
    raise RecipeError(
        f"this run cannot be continued with other settings than it was started with:\n{listed}\n"
        f"Put them back, or start a new run (another run.name). In {mode} mode a resume may "
        f"change: {', '.join(free)}; and stages that have not begun."
    )


def _contradictions(before: Recipe, now: LoadedRecipe, stage_index: int) -> Iterator[str]:
    recipe = now.recipe
    done = before.stages[: stage_index + 1]
    if recipe.stages[: len(done)] != done:
        yield _told(now, "stages", list(before.stages), list(recipe.stages))
    allowed = FREE + (FAST if recipe.run.mode == "fast" else ())
    if before.optimizer.schedule == recipe.optimizer.schedule == "constant":
        allowed += STEPS
    tables = _moved_domains(before, recipe, stage_index)
    for key, (old, new) in diff_recipes(before, recipe).items():
        is_free = any(fnmatchcase(key, pattern) for pattern in allowed) or _is_same(old, new)
        # An empty table, before or after, is a setting of its own.
        is_free = is_free or (bool(tables) and (key == "domains" or key.startswith(tables)))
        if not is_free and key != "stages" and not _is_to_come(key, before, recipe, stage_index):
            yield _told(now, key, old, new)


def _moved_domains(before: Recipe, now: Recipe, stage_index: int) -> tuple[str, ...]:
    """Return the keys' beginnings of domains that came or went and may: in a stage of rl that is a
    change of what is sampled next, not of what was done; ``exact`` has no such thing."""
    is_sampling = stage_index < len(before.stages) and before.stages[stage_index] == "rl"
    if now.run.mode != "fast" or not is_sampling:
        return ()
    moved = before.domains.keys() ^ now.domains.keys()
    return tuple(f"{format_key(('domains', name))}." for name in sorted(moved))


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two texts, or lists of them, name the same file, folder or function."""
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(
            a == b or _is_same(a, b) for a, b in zip(old, new, strict=True)
        )
    if not (isinstance(old, str) and isinstance(new, str) and old and new):
        return False
    (old, of_old), (new, of_new) = _parts(old), _parts(new)
    paths = Path(old).expanduser(), Path(new).expanduser()
    if of_old != of_new:
        return False
    return all(p.exists() for p in paths) and paths[0].resolve() == paths[1].resolve()


def _parts(text: str) -> tuple[str, str]:
    """Return the file and the function of ``file.py:function``; other texts are whole files."""
    file, _, function = text.rpartition(":")
    return (file, function) if file.endswith(".py") else (text, "")


def _is_to_come(key: str, before: Recipe, now: Recipe, stage_index: int) -> bool:
    """Return whether a setting belongs to kinds of stages that have not begun."""
    kind = key.partition(".")[0]
    begun = {*before.stages[: stage_index + 1], *now.stages[: stage_index + 1]}
    return kind in {*before.stages, *now.stages} - begun


def _told(now: LoadedRecipe, key: str, old: Any, new: Any) -> str:
    origin = now.where(key)
    place = f" ({origin})" if origin else ""
    return f"{key}: was {_shown(old)}, is {_shown(new)}{place}"


def _shown(value: Any) -> str:
    return "not set" if value is None else format_value(value)
