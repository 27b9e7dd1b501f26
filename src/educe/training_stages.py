"""The training stages as the pipeline drives them: a step, what it needs to continue, its budgets.

A stage is made at its start (and again at a resume) from the run's parts. A new kind of stage is a
function of :class:`StageParts` with a line in ``educe.stages``; the pipeline knows none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.config.settings import Recipe
from educe.core.protocols import MetricRow, Recorder
from educe.core.stages import stage_kind
from educe.core.types import Split
from educe.goal import GoalWatch
from educe.observability.timing import Spans
from educe.rollout.metering import BatchCosts
from educe.scheduling.forgetting import watched
from educe.session import Announce, Session, resolved_bundles
from educe.sources import LocalSource, RemoteSource
from educe.stage_forgetting import ForgettingWatch
from educe.trainers.screen_falls import mean_screen_score

if TYPE_CHECKING:
    from educe.models.load import LoadedModel
    from educe.models.value_head import ValueHead
    from educe.trainers.reference_policy import ReferencePolicy
    from educe.trainers.rl import ReinforceLoop
    from educe.trainers.step import TrainerState


@dataclass(slots=True)
class StageParts:
    """What a stage is made of.

    Attributes:
        name: of the stage (``sft``, ``rl-2``); metrics carry it.
        before: names of the stages before it, which have left their models in the run folder.
        version: policy version at the start.
        saved: what :attr:`TrainingStage.progress` gave at the checkpoint; empty at a fresh start.
        costs: what batches cost, by the journal where it knows.
        stack: closes what the stage opens, at the end of the run.
    """

    name: str
    before: tuple[str, ...]
    recipe: Recipe
    session: Session
    state: TrainerState
    recorder: Recorder
    spans: Spans
    folder: Path
    version: int
    saved: Mapping[str, Any]
    costs: BatchCosts
    stack: ExitStack
    announce: Announce = print

    @property
    def rank(self) -> int:
        return self.state.collectives.rank

    @property
    def num_repeats(self) -> int:
        """How many stages of this kind came before."""
        return sum(stage_kind(name) == stage_kind(self.name) for name in self.before)


@dataclass(slots=True)
class TrainingStage:
    """A training stage.

    Attributes:
        total: steps at most.
        minutes: wall-clock budget; 0 is none.
        step: does step ``number`` (from 0) and returns its metrics.
        progress: all that the stage needs to continue, as JSON.
        version: the policy version now.
        republish: shows weights that were changed from outside to whoever samples.
        is_spent: whether a budget of its own (tokens) is used up.
        goal: what ends the stage early; looked at between steps.
        forgetting: watches what domains lose; looked at between steps.
        finish: called once after the last step, before the model is saved.
    """

    total: int
    minutes: float
    step: Callable[[int], dict[str, float]]
    version: Callable[[], int]
    progress: Callable[[], dict[str, Any]] = dict
    republish: Callable[[], None] = lambda: None
    is_spent: Callable[[], bool] = lambda: False
    goal: GoalWatch | None = None
    forgetting: ForgettingWatch | None = None
    finish: Callable[[], None] = field(default=lambda: None)


def record_step(parts: StageParts, number: int, result: Any) -> dict[str, float]:
    """Record a step that was one optimizer step on known examples; return its metrics."""
    name = parts.name
    if result.skipped:
        parts.recorder.record_event(
            "non_finite", {"stage": name, "step": number, "reason": result.skipped}
        )
    values = {
        n if n.startswith("domain/") else f"{name}/{n}": v for n, v in result.tally.values().items()
    }
    values |= {
        f"{name}/grad_norm": result.grad_norm,
        f"{name}/skipped": float(bool(result.skipped)),
        f"{name}/trained_tokens": float(result.num_tokens),
        **parts.spans.drain(),
    }
    if parts.rank == 0:
        parts.recorder.record_metrics(MetricRow(name, number, values, result.seconds))
    return values


def reinforce_stage(parts: StageParts) -> TrainingStage:
    """Return a stage that samples, scores and steps on the domains' own rewards."""
    from educe.trainers.balance import Balance
    from educe.trainers.mixing import order_of
    from educe.trainers.rl import ReinforceLoop

    recipe, session, settings = parts.recipe, parts.session, parts.recipe.rl
    weights = {n: s.weight for n, s in session.domain_settings.items()}
    bundles = resolved_bundles(recipe, session.domain_settings)
    order = order_of(recipe, session.domains, weights, parts.costs, prompt_lengths(parts))
    specs = {n: d.spec for n, d in session.domains.items() if weights[n] > 0}
    order.first_index = parts.num_repeats * settings.steps * settings.prompts
    loop = ReinforceLoop(
        state=parts.state,
        source=LocalSource(session),
        domains=session.domains,
        settings=settings,
        domain_settings=session.domain_settings,
        bundles=bundles,
        order=order,
        recorder=parts.recorder,
        spans=parts.spans,
        folder=parts.folder / "non_finite",
        algorithm=recipe.algorithm,
        shaping=recipe.shaping,
        reference=reference_policy(parts)
        if any(b.needs_reference for b in bundles.values())
        else None,
        balance=Balance.of(recipe.balance, recipe.optimizer.back_off, specs, recipe.run.seed),
        version=parts.version,
        name=parts.name,
    )
    if recipe.engine.workers and parts.rank == 0:
        loop.source = parts.stack.enter_context(
            RemoteSource(recipe, session, parts.folder, parts.version)
        )
    goal = GoalWatch(
        recipe.goal, lambda names: screen_scores(session, names, recipe.goal.tasks), parts.name
    )
    watch = forgetting_watch(parts, loop)
    if parts.saved:
        loop.restore(parts.saved)
        goal.restore(parts.saved.get("goal", []))

    def republish() -> None:
        loop.version += 1
        loop.source.publish(loop.version)

    return TrainingStage(
        settings.steps,
        settings.minutes,
        loop.step,
        version=lambda: loop.version,
        progress=lambda: {
            **loop.progress(),
            "goal": goal.state(),
            "forgetting": {} if watch is None else watch.progress(),
        },
        republish=republish,
        is_spent=lambda: (
            0 < settings.tokens <= loop.num_completion_tokens or loop.is_far_from_reference
        ),
        goal=goal,
        forgetting=watch,
    )


def prompt_lengths(parts: StageParts) -> dict[str, int]:
    """Return typical prompt lengths by domain, where the curriculum goes by them."""
    from educe.trainers.mixing import typical_lengths

    if parts.recipe.curriculum.lengths == "all" or parts.rank != 0:
        return {}
    chat = parts.session.chat
    return typical_lengths(parts.session.domains, lambda t: len(chat.prompt_tokens(t.messages)))


def forgetting_watch(parts: StageParts, loop: ReinforceLoop) -> ForgettingWatch | None:
    """Return what watches a stage's domains, with what its start could do; None when it is off."""
    settings = parts.recipe.forgetting
    if not settings.every:
        return None
    names = watched(settings.domains, parts.session.domains)
    loop.rehearsal.strength = settings.strength
    watch = ForgettingWatch(
        settings,
        parts.name,
        names,
        parts.session,
        parts.state,
        parts.recorder,
        parts.announce,
        parts.folder / "forgetting" / f"{parts.name}.json",
        loop.rehearsal,
        loop.order.mixture.boost,
    )
    watch.restore(parts.saved.get("forgetting", {}))
    watch.begin(is_fresh=not parts.saved)
    return watch


def reference_policy(parts: StageParts) -> ReferencePolicy:
    """Return what the KL is measured against: the start of the stage, or the untrained model.

    Adapters that were not trained before the stage can be switched off instead of a second model.
    """
    from educe.trainers.reference_policy import FrozenCopy, WithoutAdapter

    settings = parts.recipe.algorithm.kl
    trained = [s for s in parts.before if stage_kind(s) != "eval"]
    is_base = settings.reference == "base" or not trained
    if is_base and parts.session.model.adapter is not None and not settings.refresh_steps:
        return WithoutAdapter()
    return FrozenCopy(stage_reference(parts, base=is_base))


def stage_reference(parts: StageParts, *, base: bool = False) -> LoadedModel:
    """Return the model as it was when the stage began, frozen; also after a resume.

    ``base`` takes the model before any training instead.
    """
    from educe.models.load import load

    settings = parts.recipe.model
    trained = [s for s in parts.before if stage_kind(s) != "eval"]
    is_start = trained and not base
    source = str(parts.folder / "models" / trained[-1]) if is_start else settings.name
    reference = load(
        source,
        dtype=settings.dtype,
        device=settings.device,
        allow_hub=settings.allow_hub,
        rope=settings.rope.model_dump(),
    )
    reference.causal.requires_grad_(False)
    return reference


def value_head_of(recipe: Recipe, session: Session) -> ValueHead | None:
    """Return a fresh value head where an algorithm of the run trains with values."""
    bundles = resolved_bundles(recipe, session.domain_settings)
    if "rl" not in recipe.stages or not any(b.needs_values for b in bundles.values()):
        return None
    from educe.models.value_head import ValueHead

    weight = session.model.head_weight()
    return ValueHead(
        weight.shape[1],
        seed=recipe.run.seed,
        dtype=weight.dtype,
        device=weight.device,
        trunk=recipe.algorithm.value.trunk,
    )


def screen_scores(session: Session, names: list[str], tasks: int) -> dict[str, float]:
    """Return each domain's mean score on screen tasks, answered greedily; NaN without a score."""
    values = screen_values(session, names, tasks)
    return {name: mean_screen_score({name: values[name]}) for name in names}


def screen_values(session: Session, names: list[str], tasks: int) -> dict[str, list[float | None]]:
    """Return each domain's scores on its first ``tasks`` screen tasks, answered greedily; None
    where a task has no score."""
    from educe.evaluation.runner import evaluate

    known = {n: session.domains[n] for n in names}
    result = evaluate(
        session,
        known,
        tasks_per_domain=tasks,
        split=Split.SCREEN,
        limits=session.limits,
        label="screen",
    )
    return {
        name: [r.value for r in sorted(result.rows_in(name), key=lambda r: r.index)]
        for name in names
    }
