"""The stage ``preference``: learn which of two completions is better, or which are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from educe.config.settings import PreferenceSettings
from educe.core.errors import DomainError
from educe.domains.example_sets import epoch_size, source_weights
from educe.preflight.stages import preference_of, reference_kind
from educe.rollout.integrity import OPT_IN
from educe.stages.sampled import harvest_groups, tell_harvest
from educe.stages.supervised import example_sets, fitting, watch_of, watched_stage
from educe.training_stages import StageParts, TrainingStage, stage_reference

if TYPE_CHECKING:
    from educe.algorithms.preferences import Preference
    from educe.trainers.feeds import Source
    from educe.trainers.preference import Case
    from educe.trainers.preference_loop import PreferenceLoop
    from educe.trainers.references import Reference


def preference_stage(parts: StageParts) -> TrainingStage:
    """Return a stage that learns which of two completions is better, or which are wanted."""
    from educe.trainers.case_making import CaseMaker
    from educe.trainers.feeds import IndexedFeed
    from educe.trainers.preference_loop import PreferenceLoop
    from educe.trainers.supervised import steps_of

    settings = parts.recipe.preference
    loss = preference_of(settings)
    sources, rows = _sources(parts, settings, loss)
    maker = CaseMaker(
        sources,
        lambda written: fitting(parts, settings.too_long, written),
        loss.is_paired,
        parts.session.runner.context_length,
    )
    # Mined pairs are a data set without a weight.
    given = {n: settings.data[n].weight if n in settings.data else None for n in rows}
    weights = source_weights({}, {n: (given[n], rows[n]) for n in rows})
    size = epoch_size(0, weights, rows)
    feed = IndexedFeed(sources, weights, size, settings.batch_size, parts.recipe.run.seed)
    total = steps_of(settings.steps, size, settings.epochs, settings.batch_size)
    held_out = maker.held_out(settings.watch.examples) if settings.watch.every else []
    loop = PreferenceLoop(
        parts.state, feed, maker, loss, settings.learning_rate, total, held_out=held_out
    )
    if loss.needs_reference:
        loop.reference = _reference(parts, loop)
    watch = watch_of(parts, settings, loop.evaluate, total)
    return watched_stage(parts, loop, watch, total, settings.minutes)


def _sources(
    parts: StageParts, settings: PreferenceSettings, loss: Preference
) -> tuple[dict[str, Source], dict[str, int]]:
    """Return the sources and how many cases each has."""
    from educe.domains.formats import Pair
    from educe.trainers.feeds import LabelledSource, ListSource, SetSource

    sources: dict[str, Source] = {}
    rows: dict[str, int] = {}
    for name, examples in example_sets(settings.data, "preference").items():
        if examples.in_process and not parts.recipe.sandbox.in_process_tests:
            raise DomainError(f"preference.data.{name}: {examples.in_process}: {OPT_IN}")
        sources[name], rows[name] = SetSource(examples), examples.num_train
        if not loss.is_paired and isinstance(examples.train(0), Pair):
            sources[name], rows[name] = LabelledSource(sources[name]), 2 * rows[name]
    for name, cases in _mined(parts, settings, loss).items():
        sources[name], rows[name] = ListSource(cases), len(cases)
    if not sources:
        raise DomainError(
            f"the stage {parts.name} has nothing to compare: give [preference.data.NAME] with a "
            f"path, or set preference.mine.prompts"
        )
    return sources, rows


def _mined(
    parts: StageParts, settings: PreferenceSettings, loss: Preference
) -> dict[str, list[Case]]:
    """Return pairs from the domains' own samples, with the weights of the stage's start."""
    from educe.trainers.rejection import labelled_cases, mined_cases
    from educe.trainers.sampling import SamplingPlan

    mine = settings.mine
    if not mine.prompts:
        return {}
    plan = SamplingPlan(mine.group_size, mine.temperature, mine.max_completion_tokens)
    groups = harvest_groups(parts, plan, mine.prompts)
    found = mined_cases(groups, min_gap=mine.min_gap, limit=mine.pairs)
    tell_harvest(parts, groups, {name: len(cases) for name, cases in found.items()})
    if not found and not settings.data:
        raise DomainError(
            f"the stage {parts.name} found no pair: no two of {mine.group_size} completions of a "
            f"prompt differ by {mine.min_gap:g} in their score. Lower preference.mine.min_gap, or "
            f"choose domains that the model solves now and then (educe probe)"
        )
    if loss.is_paired:
        return found
    return {name: labelled_cases(cases) for name, cases in found.items()}


def _reference(parts: StageParts, loop: PreferenceLoop) -> Reference:
    """Return where reference values come from; compute them now when they are to be kept."""
    from educe.trainers.references import AdapterOff, FrozenCopy, Precomputed

    kind = reference_kind(parts.recipe, parts.before)
    if kind == "adapter_off":
        return AdapterOff(parts.state)
    if kind == "copy":
        return FrozenCopy(stage_reference(parts), parts.state)
    reference = Precomputed(parts.folder / "reference" / f"{parts.name}.jsonl")
    if not parts.saved:
        with parts.spans.measure("reference"):
            reference.compute(parts.state, _all_cases(loop), check=parts.session.runner.check)
    return reference


def _all_cases(loop: PreferenceLoop) -> Iterator[Case]:
    """Every case that the stage will read, held-out ones first."""
    entries = (entry for step in range(loop.total_steps) for entry in loop.feed.entries(step))
    yield from loop.held_out
    yield from loop.maker.distinct(entries)
