"""Stages that sample first: ``rejection`` (best of N) and ``distillation`` (from a teacher)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from educe.core.errors import DomainError
from educe.rollout.integrity import check_integrity
from educe.sources import LocalSource, RemoteSource
from educe.training_stages import StageParts, TrainingStage, record_step

if TYPE_CHECKING:
    from educe.core.types import Group
    from educe.trainers.sampling import SamplingPlan, TaskSampler
    from educe.trainers.supervised import Item


def rejection_stage(parts: StageParts) -> TrainingStage:
    """Return a stage that samples, keeps the best completions and imitates them."""
    from educe.trainers.feeds import IndexedFeed, ListSource
    from educe.trainers.rejection import kept_items
    from educe.trainers.sampling import SamplingPlan
    from educe.trainers.supervised import SupervisedLoop, steps_of

    settings, seed = parts.recipe.rejection, parts.recipe.run.seed
    plan = SamplingPlan(settings.group_size, settings.temperature, settings.max_completion_tokens)
    groups = harvest_groups(parts, plan, settings.prompts)
    kept = kept_items(groups, keep=settings.keep, min_score=settings.min_score)
    tell_harvest(parts, groups, {name: len(items) for name, items in kept.items()})
    items = [item for name in sorted(kept) for item in kept[name]]
    if not items:
        raise DomainError(
            f"the stage {parts.name} keeps nothing: of {len(groups)} x {settings.group_size} "
            f"completions {_num_good(groups, settings.min_score)} reach a score of "
            f"{settings.min_score:g}, all of them cut by the token limit. Lower "
            f"rejection.min_score, raise rejection.group_size or max_completion_tokens, or train "
            f"with sft first"
        )
    sources = {"kept": ListSource(items)}
    feed = IndexedFeed(sources, {"kept": 1.0}, len(items), settings.batch_size, seed)
    total = steps_of(0, len(items), settings.epochs, settings.batch_size)
    loop = SupervisedLoop(parts.state, feed, _as_is, settings.learning_rate, total, seed)
    if parts.saved:
        loop.restore(parts.saved["loop"])

    def step(number: int) -> dict[str, float]:
        with parts.spans.measure("train"):
            result = loop.step(number)
        return record_step(parts, number, result)

    return TrainingStage(
        total,
        settings.minutes,
        step,
        version=lambda: parts.version,
        progress=lambda: {"loop": loop.progress()},
    )


def _num_good(groups: list[Group], min_score: float) -> int:
    values = [t.score.value for g in groups for t in g.trajectories]
    return sum(value is not None and value >= min_score for value in values)


def _as_is(_origin: str, item: Item) -> Item | None:
    """What was sampled is in tokens already."""
    return item


def distillation_stage(parts: StageParts) -> TrainingStage:
    """Return a stage that follows a teacher on the policy's own texts."""
    from educe.models.load import load
    from educe.trainers.distillation import DistillationLoop
    from educe.trainers.sampling import SamplingPlan

    settings, model = parts.recipe.distillation, parts.recipe.model
    teacher = load(settings.teacher, dtype=model.dtype, device=model.device)
    teacher.causal.requires_grad_(False)
    plan = SamplingPlan(settings.group_size, settings.temperature, settings.max_completion_tokens)
    sampler, source = _sampler(parts, plan, settings.prompts * settings.steps, parts.stack)
    loop = DistillationLoop(
        parts.state,
        teacher,
        sampler,
        source.publish,
        {name: domain.spec.floor for name, domain in parts.session.domains.items()},
        settings,
        version=parts.version,
    )
    if parts.saved:
        loop.restore(parts.saved["loop"])

    def step(number: int) -> dict[str, float]:
        with parts.spans.measure("train"):
            result = loop.step(number)
        return record_step(parts, number, result)

    def republish() -> None:
        loop.version += 1
        source.publish(loop.version)

    return TrainingStage(
        settings.steps,
        settings.minutes,
        step,
        version=lambda: loop.version,
        progress=lambda: {"loop": loop.progress()},
        republish=republish,
    )


def _sampler(
    parts: StageParts, plan: SamplingPlan, num_prompts: int, stack: ExitStack
) -> tuple[TaskSampler, Any]:
    """Return the sampler over the recipe's domains, and the source that it draws from.

    ``num_prompts`` are those of the whole stage: a repeated one takes the tasks behind them.
    ``stack`` closes the rollout workers, where there are any.
    """
    from educe.scheduling.mixture import StaticMixture
    from educe.trainers.sampling import TaskSampler

    session, recipe = parts.session, parts.recipe
    source: Any = LocalSource(session)
    if recipe.engine.workers and parts.rank == 0:
        source = stack.enter_context(RemoteSource(recipe, session, parts.folder, parts.version))
    weights = {n: s.weight for n, s in session.domain_settings.items()}
    sampler = TaskSampler(
        source,
        session.domains,
        session.domain_settings,
        plan,
        StaticMixture(weights, recipe.run.seed),
        parts.state.collectives,
        first_index=parts.num_repeats * num_prompts,
    )
    return sampler, source


def harvest_groups(parts: StageParts, plan: SamplingPlan, num_prompts: int) -> list[Group]:
    """Sample groups with the weights of the stage's start; kept in RUN/harvest/STAGE.jsonl.

    Raises:
        DomainError: tests shared a process with the model's code, and the recipe does not opt in.
    """
    from educe.trainers.sampling import harvest

    file = parts.folder / "harvest" / f"{parts.name}.jsonl"
    allowed = parts.recipe.sandbox.in_process_tests
    with parts.spans.measure("rollout"), ExitStack() as stack:
        sampler, _ = _sampler(parts, plan, num_prompts, stack)
        groups = harvest(sampler, num_prompts, file)
    # Those that an earlier attempt left in the file were sampled under another recipe, perhaps.
    return [check_integrity(group, in_process_tests=allowed) for group in groups]


def tell_harvest(parts: StageParts, groups: list[Group], kept: Mapping[str, int]) -> None:
    """Record what was sampled and how much of it is used, once."""
    from educe.trainers.sampling import group_metrics

    if parts.saved or parts.rank != 0:
        return
    floors = {name: domain.spec.floor for name, domain in parts.session.domains.items()}
    parts.recorder.record_event(
        "harvest",
        {
            "stage": parts.name,
            "prompts": len(groups),
            "completions": sum(len(g.trajectories) for g in groups),
            "kept": sum(kept.values()),
            "kept_by_domain": dict(kept),
            "metrics": group_metrics(groups, floors).values(),
        },
    )
    for group in groups:
        for trajectory in group.trajectories:
            parts.recorder.record_sample(
                parts.name,
                0,
                {
                    **trajectory.to_json(),
                    "domain": group.request.domain,
                    "task_id": group.task.task_id,
                    "split": str(group.request.split),
                    "gold": group.task.gold,
                    "reward": trajectory.score.value,
                },
            )
