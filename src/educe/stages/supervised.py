"""The stage ``sft``: imitate gold answers and the rows of data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from educe.config.settings import DataSettings, PreferenceSettings, SupervisedSettings
from educe.core.errors import DomainError
from educe.domains.example_sets import ExampleSet, epoch_size, source_weights
from educe.training_stages import StageParts, TrainingStage, record_step

if TYPE_CHECKING:
    from educe.trainers.feeds import Feed, Source
    from educe.trainers.rendering import Side
    from educe.trainers.supervised import Item
    from educe.trainers.watch import BestWatch


@dataclass(frozen=True, slots=True)
class Mixed:
    """Sources, their feed, and the steps that its epochs come to."""

    sources: Mapping[str, Source]
    feed: Feed
    num_steps: int


def supervised_stage(parts: StageParts) -> TrainingStage:
    """Return a stage that imitates gold answers and the rows of data sets."""
    from educe.trainers.prepared import PreparedBatches
    from educe.trainers.supervised import Item, SupervisedLoop

    settings = parts.recipe.sft
    mixed = _mix_sources(parts, settings)

    def render(origin: str, example: Any) -> Item | None:
        side = fitting(parts, settings.too_long, example, settings.loss_on)
        return None if side is None else Item(origin, side)

    held_out = [
        item
        for name, source in mixed.sources.items()
        for example in (source.held_out(settings.watch.examples) if settings.watch.every else ())
        if (item := render(name, example)) is not None
    ]
    prefetch = parts.session.prefetch
    loop = SupervisedLoop(
        parts.state,
        mixed.feed,
        render,
        settings.learning_rate,
        mixed.num_steps,
        parts.recipe.run.seed,
        label_smoothing=settings.label_smoothing,
        neftune_alpha=settings.neftune_alpha,
        held_out=held_out,
        prepared=None if prefetch is None else PreparedBatches(mixed.feed, prefetch),
    )
    watch = watch_of(parts, settings, loop.evaluate, mixed.num_steps)
    return watched_stage(parts, loop, watch, mixed.num_steps, settings.minutes)


def _mix_sources(parts: StageParts, settings: SupervisedSettings) -> Mixed:
    """Mix domains and data sets by their weights."""
    from educe.trainers.feeds import DemonstrationSource, SetSource

    session = parts.session
    gold = {
        name: own.weight
        for name, own in session.domain_settings.items()
        if settings.demonstrations and own.weight > 0 and session.domains[name].spec.has_gold
    }
    sets = example_sets(settings.data, "sft")
    sources: dict[str, Source] = {n: DemonstrationSource(session.domains[n]) for n in gold}
    sources |= {name: SetSource(examples) for name, examples in sets.items()}
    if not sources:
        raise DomainError(
            "the sft stage needs gold answers or data sets ([sft.data.NAME]); none of the "
            f"recipe's domains has gold answers: {', '.join(session.domains) or 'there is none'}"
        )
    return _mixed(parts, sources, sets, gold)


def _mixed(
    parts: StageParts,
    sources: Mapping[str, Source],
    sets: Mapping[str, ExampleSet],
    gold: Mapping[str, float],
) -> Mixed:
    """Streams are read on, everything else is read by index."""
    from educe.trainers.feeds import IndexedFeed, StreamFeed
    from educe.trainers.supervised import steps_of

    settings, seed = parts.recipe.sft, parts.recipe.run.seed
    streams = {name for name, own in settings.data.items() if own.streaming}
    rows = {n: 1 if n in streams else examples.num_train for n, examples in sets.items()}
    weights = source_weights(gold, {n: (settings.data[n].weight, rows[n]) for n in sets})
    if streams:
        readers = {name: sets[name].stream() for name in streams}
        read_on = StreamFeed(sources, readers, weights, settings.batch_size, seed)
        return Mixed(sources, read_on, max(1, settings.steps))
    size = epoch_size(settings.num_tasks, weights, rows)
    feed = IndexedFeed(sources, weights, size, settings.batch_size, seed)
    steps = steps_of(settings.steps, size, settings.epochs, settings.batch_size)
    return Mixed(sources, feed, steps)


# What the stage of preferences shares with this one


def example_sets(data: Mapping[str, DataSettings], purpose: str) -> dict[str, ExampleSet]:
    """Return the data sets of a stage by name."""
    return {name: ExampleSet(name, own, purpose) for name, own in data.items()}


def fitting(
    parts: StageParts, too_long: Any, written: Any, loss_on: Any = "assistant"
) -> Side | None:
    """Return an example's tokens as they fit into the context, None when they do not."""
    from educe.trainers.rendering import fit, render

    limit = parts.session.runner.context_length
    return fit(render(parts.session.chat, written, loss_on), limit, too_long)


def watch_of(
    parts: StageParts,
    settings: SupervisedSettings | PreferenceSettings,
    measure: Callable[[], Any],
    total: int,
) -> BestWatch:
    """Return the watch of a stage over its held-out examples."""
    from educe.trainers.watch import BestWatch

    folder = parts.folder / "best" / parts.name
    return BestWatch(settings.watch, parts.state, measure, folder, total)


def watched_stage(
    parts: StageParts, loop: Any, watch: BestWatch, total: int, minutes: float
) -> TrainingStage:
    """Return the stage of a loop whose held-out loss is watched."""
    if parts.saved:
        loop.restore(parts.saved["loop"])
        watch.restore(parts.saved["watch"])

    def step(number: int) -> dict[str, float]:
        with parts.spans.measure("train"):
            result = loop.step(number)
        if watch.is_due(number + 1):
            with parts.spans.measure("evaluate"):
                found = watch.look(number + 1)
            for name, value in found.items():
                result.tally.mean(name, value)
        return record_step(parts, number, result)

    def finish() -> None:
        best = watch.finish()
        if best is not None:
            parts.recorder.record_event(
                "best", {"stage": parts.name, "step": best, "loss": watch.best_loss}
            )

    return TrainingStage(
        total,
        minutes,
        step,
        version=lambda: parts.version,
        progress=lambda: {"loop": loop.progress(), "watch": watch.progress()},
        is_spent=lambda: watch.should_stop,
        finish=finish,
    )
