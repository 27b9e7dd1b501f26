"""Checks on the stages that learn from examples, and what ``educe explain`` tells of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from educe.algorithms.preferences import Preference, resolve_preference
from educe.config.positions import format_key
from educe.config.settings import DataSettings, PreferenceSettings, Recipe, WatchSettings
from educe.core.errors import (
    DomainError,
    EduceError,
    MissingExtraError,
    RecipeError,
    did_you_mean,
)
from educe.core.stages import stage_kind
from educe.domains.example_sets import ExampleSet, SetSummary, epoch_size, source_weights
from educe.domains.formats import COLUMNS
from educe.models.architectures import read_shape
from educe.models.packaged_weights import PACKAGED, packaged_folder
from educe.preflight.credit import changed_fields
from educe.preflight.plan import Plan
from educe.rollout.integrity import OPT_IN

# Characters a token, counted low (see preflight.model): a row is rather thought too long.
CHARACTERS_PER_TOKEN = 2.5


def needs_domains(recipe: Recipe) -> bool:
    """Return whether something in the recipe samples from domains or trains on their answers."""
    kinds = set(recipe.stages)
    if kinds & {"rl", "eval", "rejection", "distillation"} or not kinds:
        return True
    if "sft" in kinds and not recipe.sft.data:
        return True
    return "preference" in kinds and recipe.preference.mine.prompts > 0


def preference_of(settings: PreferenceSettings) -> Preference:
    """Return the preference loss with what the recipe changes of it.

    Raises:
        RecipeError: an unknown loss, or a setting that it does not have.
    """
    names = (
        "beta",
        "label_smoothing",
        "margin",
        "odds_weight",
        "desirable_weight",
        "undesirable_weight",
        "sft_weight",
    )
    return resolve_preference(settings.loss, {name: getattr(settings, name) for name in names})


def reference_kind(recipe: Recipe, before: Sequence[str]) -> str:
    """Return how a preference stage gets its reference; ``before`` are the stages before it."""
    chosen = recipe.preference.reference
    if chosen != "auto":
        return chosen
    is_first = all(stage_kind(name) == "eval" for name in before)
    return "adapter_off" if recipe.model.lora.rank and is_first else "precomputed"


def keeps_preference_copy(plan: Plan) -> bool:
    """Return whether a preference stage holds its reference as a second model."""
    try:
        needs = preference_of(plan.recipe.preference).needs_reference
    except RecipeError:
        return False
    is_there = "preference" in plan.recipe.stages
    return is_there and needs and plan.recipe.preference.reference == "copy"


def samples(recipe: Recipe) -> bool:
    """Return whether some stage samples from the model."""
    kinds = set(recipe.stages)
    mines = "preference" in kinds and recipe.preference.mine.prompts > 0
    return mines or bool(kinds & {"rl", "eval", "rejection", "distillation"})


# Checks


def check_stages(plan: Plan) -> Iterator[EduceError]:
    """Yield what is wrong with the settings of the stages, and fill ``plan.example_sets``."""
    kinds = set(plan.recipe.stages)
    if "sft" in kinds:
        yield from _check_sets(plan, "sft", plan.recipe.sft.data)
        yield from _check_streams(plan)
        yield from _check_watch(plan, "sft", plan.recipe.sft.watch, plan.recipe.sft.data)
    if "preference" in kinds:
        yield from _check_sets(plan, "preference", plan.recipe.preference.data)
        yield from _check_preference(plan)
        settings = plan.recipe.preference
        yield from _check_watch(plan, "preference", settings.watch, settings.data)
    if "rejection" in kinds and plan.recipe.rejection.keep > plan.recipe.rejection.group_size:
        rejection = plan.recipe.rejection
        yield plan.error(
            "rejection.keep",
            f"{rejection.keep} of {rejection.group_size} completions cannot be kept. Expected "
            f"rejection.keep <= rejection.group_size.",
        )
    if "distillation" in kinds:
        yield from _check_teacher(plan)


def _check_sets(plan: Plan, stage: str, data: Mapping[str, DataSettings]) -> Iterator[EduceError]:
    for name, settings in data.items():
        key = format_key((stage, "data", name))
        if name in plan.recipe.domains:
            yield plan.error(
                key, f"a domain has the name '{name}', too: give the data set another one."
            )
        if settings.streaming and stage != "sft":
            yield plan.error(f"{key}.streaming", "only [sft.data] can be a stream.")
            continue
        yield from _check_set_settings(plan, key, settings)
        try:
            examples = ExampleSet(name, settings, stage)
            summary = examples.check()
        except MissingExtraError as error:
            yield error
            continue
        except (DomainError, OSError) as error:
            yield RecipeError(str(error), plan.where(f"{key}.path"))
            continue
        plan.example_sets[stage, name] = summary
        if examples.in_process and not plan.recipe.sandbox.in_process_tests:
            yield plan.error(f"{key}.path", f"{examples.in_process}: {OPT_IN}")
        context = plan.recipe.model.context_length
        if context and summary.longest > context * CHARACTERS_PER_TOKEN:
            action = "left out" if _too_long(plan.recipe, stage) == "skip" else "cut"
            plan.notes.append(
                f"{key}: an example of {summary.longest} characters may be longer than the "
                f"context of {context} tokens; such ones are {action} ({stage}.too_long)"
            )


def _check_set_settings(plan: Plan, key: str, settings: DataSettings) -> Iterator[EduceError]:
    """Settings of a data set that would silently do nothing."""
    if "shuffle_buffer" in changed_fields(settings) and not settings.streaming:
        yield plan.error(
            f"{key}.shuffle_buffer",
            "a set that is no stream is shuffled as a whole, so this does nothing. Set "
            f"{key}.streaming, or remove this.",
        )
    for column in settings.columns:
        if column not in COLUMNS:
            yield plan.error(
                f"{key}.columns.{column}",
                f"there is no such column to be called otherwise.{did_you_mean(column, COLUMNS)} "
                f"Expected one of {', '.join(COLUMNS)} = the name in your rows.",
            )


def _too_long(recipe: Recipe, stage: str) -> str:
    return recipe.sft.too_long if stage == "sft" else recipe.preference.too_long


def _check_streams(plan: Plan) -> Iterator[EduceError]:
    sft = plan.recipe.sft
    streams = [name for name, own in sft.data.items() if own.streaming]
    if not streams:
        return
    key = format_key(("sft", "data", streams[0]))
    if not sft.steps:
        yield plan.error(
            f"{key}.streaming",
            "a stream has no end to count epochs by. Set sft.steps.",
        )
    others = len(sft.data) > 1 or (sft.demonstrations and bool(plan.recipe.domains))
    for name in streams:
        if others and sft.data[name].weight is None:
            yield plan.error(
                f"{format_key(('sft', 'data', name))}.weight",
                "a stream that is mixed with other sources needs a weight: its rows are not "
                "counted. Set it, or sft.demonstrations = false.",
            )


def _check_watch(
    plan: Plan, stage: str, watch: WatchSettings, data: Mapping[str, DataSettings]
) -> Iterator[EduceError]:
    if not watch.every:
        for name in sorted(changed_fields(watch)):
            yield plan.error(
                f"{stage}.watch.{name}",
                f"nothing is evaluated during training, so this does nothing. Set "
                f"{stage}.watch.every, or remove it.",
            )
        plan.notes.extend(
            f"{format_key((stage, 'data', name))}: its held-out rows are not looked at: "
            f"{stage}.watch.every is 0"
            for name, own in data.items()
            if own.eval_fraction or own.eval_path
        )
        return
    held_out = any(s.num_held_out for (kind, _), s in plan.example_sets.items() if kind == stage)
    if stage == "sft" and plan.recipe.sft.demonstrations:
        held_out |= any(d.spec.has_gold for d in plan.domains.values())
    # Rows that are not all read may hold some out.
    held_out |= any(own.eval_fraction or own.eval_path for own in data.values())
    if not held_out:
        yield plan.error(
            f"{stage}.watch.every",
            f"nothing is held out to evaluate on. Set eval_fraction or eval_path of a data set "
            f"under [{stage}.data], or remove [{stage}.watch].",
        )


def _check_preference(plan: Plan) -> Iterator[EduceError]:
    settings, recipe = plan.recipe.preference, plan.recipe
    try:
        loss = preference_of(settings)
    except RecipeError as error:
        key = next(iter(_named(str(error))), "preference.loss")
        yield RecipeError(str(error), plan.where(key))
        return
    if not settings.data and not settings.mine.prompts:
        yield plan.error(
            "preference",
            "there is nothing to compare. Give [preference.data.NAME] with a path, or set "
            "preference.mine.prompts to compare the domains' own samples.",
        )
    for name in sorted(changed_fields(settings.mine)) if not settings.mine.prompts else ():
        yield plan.error(
            f"preference.mine.{name}",
            "preference.mine.prompts is 0, so nothing is sampled to make pairs of and this does "
            "nothing. Set it, or remove this.",
        )
    for (stage, name), summary in plan.example_sets.items():
        key = format_key(("preference", "data", name, "path"))
        if stage == "preference" and loss.is_paired and "labelled" in summary.kinds:
            yield plan.error(
                key,
                f"the rows have labels and no pairs, which only kto learns from; "
                f'preference.loss is "{loss.name}".',
            )
        elif stage == "preference" and len(summary.kinds) > 1:
            yield plan.error(key, "some rows are pairs and some have labels; give one kind.")
    if not loss.is_paired and settings.batch_size < 2:
        yield plan.error(
            "preference.batch_size",
            f"{loss.name} estimates its reference point over the batch. Expected at least 2.",
        )
    if settings.reference == "adapter_off" and not recipe.model.lora.rank:
        yield plan.error(
            "preference.reference",
            '"adapter_off" needs an adapter. Set model.lora.rank, or take "precomputed" or "copy".',
        )
    if settings.reference != "auto" and not loss.needs_reference:
        yield plan.error(
            "preference.reference", f"{loss.name} has no reference, so this does nothing."
        )


def _named(text: str) -> Iterator[str]:
    """Yield the setting that an error begins with, if it does."""
    first = text.partition(" ")[0]
    if first.startswith("preference."):
        yield first


def _check_teacher(plan: Plan) -> Iterator[EduceError]:
    name = plan.recipe.distillation.teacher
    if not name:
        yield plan.error(
            "distillation.teacher", "name the teacher: a model folder or a known model."
        )
        return
    folder = _model_folder(name)
    if folder is None:
        yield plan.error(
            "distillation.teacher",
            f"'{name}' is neither a known model nor a folder. Expected one of: "
            f"{', '.join(sorted(PACKAGED))}; or the path of a Hugging Face model folder.",
        )
        return
    if not folder.is_dir():
        plan.notes.append(f"the teacher {name} will be fetched first")
        return
    try:
        plan.teacher_shape = read_shape(folder)
    except EduceError as error:
        yield RecipeError(str(error), plan.where("distillation.teacher"))
        return
    if plan.model_folder is not None:
        difference = tokenizer_difference(plan.model_folder, folder)
        if difference:
            yield plan.error(
                "distillation.teacher",
                f"the teacher's tokenizer is not the policy's: it has {difference}. Its "
                "probabilities would be of other tokens; choose a teacher of the same family.",
            )


def _model_folder(name: str) -> Path | None:
    """Return the folder of a model name (which may have to be fetched), None for an unknown one."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    key = name.lower().rpartition("/")[2]
    return packaged_folder(key) if key in PACKAGED else None


def tokenizer_difference(first: Path, second: Path) -> str:
    """Return how two folders' tokenizers differ, empty when each text has the same ids in both.

    Compared are vocabulary, added tokens, merges and what is done to the text before and after.
    """
    one, other = _tokenizer(first), _tokenizer(second)
    if one is None or other is None:
        return f"no tokenizer.json that can be read in {first if one is None else second}"
    for part in ("vocabulary", "merges", "added tokens", "normalizer", "pre_tokenizer"):
        if one[part] == other[part]:
            continue
        if part in ("vocabulary", "added tokens"):
            odd = sorted(set(one[part].items()) ^ set(other[part].items()))[:2]
            shown = ", ".join(f"{token!r} = {number}" for token, number in odd)
            return f"other {part}, e.g. {shown}"
        return f"other {part}"
    return ""


def _tokenizer(folder: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        model = raw["model"]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, list):  # unigram: [token, score] by id
            vocabulary = {str(entry): number for number, entry in enumerate(vocabulary)}
        return {
            "vocabulary": vocabulary,
            "merges": [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())],
            "added tokens": {t["content"]: t["id"] for t in raw.get("added_tokens", ())},
            "normalizer": raw.get("normalizer"),
            "pre_tokenizer": raw.get("pre_tokenizer"),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_sizes(plan: Plan) -> Iterator[EduceError]:
    """Yield batches that are larger than what there is to draw from."""
    recipe = plan.recipe
    if "sft" in recipe.stages:
        size = supervised_size(plan)
        if size is not None and recipe.sft.batch_size > size:
            yield plan.error(
                "sft.batch_size",
                f"a batch of {recipe.sft.batch_size} examples is larger than the {size} there "
                f"are. Lower sft.batch_size or raise sft.num_tasks.",
            )


# Sizes, for explain and the estimates


def supervised_weights(plan: Plan) -> dict[str, float]:
    """Return the weight of every source of the ``sft`` stage."""
    sft = plan.recipe.sft
    gold = {
        name: domain.settings.weight
        for name, domain in plan.domains.items()
        if sft.demonstrations and domain.spec.has_gold
    }
    data = {name: (own.weight, _rows(plan, "sft", name)) for name, own in sft.data.items()}
    return source_weights(gold, data)


def supervised_size(plan: Plan) -> int | None:
    """Return the examples of an epoch of ``sft``; None for a stream and for rows that are bad."""
    sft = plan.recipe.sft
    unknown = any(("sft", name) not in plan.example_sets for name in sft.data)
    if unknown or any(own.streaming for own in sft.data.values()):
        return None
    weights = supervised_weights(plan)
    if not weights:
        return sft.num_tasks or None
    return epoch_size(sft.num_tasks, weights, {n: _rows(plan, "sft", n) for n in sft.data})


def preference_size(plan: Plan) -> int:
    """Return the cases of the ``preference`` stage's data sets; mined ones are not known yet."""
    is_paired = preference_of(plan.recipe.preference).is_paired
    total = 0
    for (stage, _), summary in plan.example_sets.items():
        if stage == "preference":
            halves = 2 if not is_paired and "pair" in summary.kinds else 1
            total += halves * summary.num_train
    return total


def _rows(plan: Plan, stage: str, name: str) -> int:
    summary: SetSummary | None = plan.example_sets.get((stage, name))
    return summary.num_train if summary else 1
