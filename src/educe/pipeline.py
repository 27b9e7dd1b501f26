"""A run from its recipe to its report: stages, checkpoints, resume, stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from educe.config.loader import LoadedRecipe
from educe.core.protocols import Recorder
from educe.core.stages import stage_kind
from educe.core.stopping import Budget, StopRequested, StopSignal
from educe.goal import goal_line
from educe.observability.terminal_text import format_count
from educe.observability.timing import SILENT, PhaseTimer, Spans
from educe.rollout.journal import Journal, JournalledScoring
from educe.rollout.metering import BatchCosts, MeteredScoring
from educe.session import Announce, Session, build_session, resolved_domains
from educe.stage_eval import EvalStage
from educe.stage_guard import StageGuard
from educe.stages import STAGES
from educe.trainers.screen_falls import ScreenValues
from educe.training_stages import (
    StageParts,
    TrainingStage,
    screen_values,
    value_head_of,
)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a callback sees after each training step; printing it leaves the session out."""

    stage: str
    step: int
    metrics: Mapping[str, float]
    session: Session = field(repr=False)


Callback = Callable[[StepInfo], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: ``status`` is done or stopped."""

    folder: Path
    status: str
    stages: tuple[str, ...]
    report: Path | None = None
    evaluation: Any = None


@dataclass(slots=True)
class _Place:
    """Where a run is; all of it is in each checkpoint.

    Attributes:
        stage_step: steps done in the stage.
        spent_s: seconds that the stage has run.
        loop: the stage's own progress.
        recent: last values of the watched metric, whose mean marks the best checkpoint.
        guard: what the stage's guard knows.
    """

    stage_index: int = 0
    stage_step: int = 0
    spent_s: float = 0.0
    loop: dict[str, Any] = field(default_factory=dict)
    recent: list[float] = field(default_factory=list)
    guard: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> _Place:
        """Take a checkpoint's progress; what an older one did not know starts afresh."""
        known = {k: raw[k] for k in _Place.__dataclass_fields__ if k in raw}
        return _Place(**known)


class Pipeline:
    """Runs a recipe's stages in a run folder.

    Args:
        loaded: the recipe.
        recorder: where metrics, samples and events go (the run store, perhaps with guests).
        folder: the run folder.
        stop: asked at safe points.
        callbacks: called after each training step.
        announce: one line of text for the user.
        collectives: of this trainer rank; only rank 0 records and writes.
    """

    def __init__(
        self,
        loaded: LoadedRecipe,
        recorder: Recorder,
        folder: Path,
        *,
        stop: StopSignal | None = None,
        callbacks: Sequence[Callback] = (),
        announce: Announce = print,
        collectives: Any = None,
        timeline: PhaseTimer = SILENT,
    ) -> None:
        from educe.parallel.collectives import SingleProcess
        from educe.trainers.checkpoint import CheckpointStore

        self.recipe = loaded.recipe
        self.recorder = recorder
        self.folder = folder
        self.stop = stop or StopSignal()
        self.callbacks = callbacks
        self.announce = announce
        self.collectives = collectives or SingleProcess()
        self.checkpoints = CheckpointStore(folder / "checkpoints", keep=self.recipe.checkpoint.keep)
        self.spans = Spans()
        self.timeline = timeline
        self.version = 0
        self._place = _Place()
        self._guard: StageGuard | None = None
        self._at_rest = ""  # the checkpoint that holds just what is in memory
        self._last_save_s = 0.0
        self._saved_step: int | None = None

    # The road

    def run(self) -> RunResult:
        """Do all stages from where the run is; return how it ended."""
        evaluation = None
        names = self.recipe.stage_names
        with ExitStack() as stack:
            self._stack = stack
            self._open(stack)
            while self._place.stage_index < len(names):
                name = names[self._place.stage_index]
                try:
                    if stage_kind(name) == "eval":
                        evaluation = self._evaluate(name)
                    else:
                        self._train(name)
                except (StopRequested, KeyboardInterrupt) as error:
                    return self._stopped(name, error)
            self.checkpoints.wait()
        report = self.folder / "report.html"
        return RunResult(
            self.folder, "done", names, report if report.exists() else None, evaluation
        )

    def _open(self, stack: ExitStack) -> None:
        """Load the model and whatever an earlier attempt left, and get the stack ready."""
        import torch

        from educe.trainers.step import TrainerState

        if self.recipe.run.mode == "exact":
            torch.use_deterministic_algorithms(True)
            stack.callback(torch.use_deterministic_algorithms, False)
        name = f"journal-{self.collectives.rank}.jsonl"
        self.journal = stack.enter_context(Journal(self.folder / name))
        self.scoring: JournalledScoring | None = None
        self.meter: MeteredScoring | None = None

        def journalled(inner: Any) -> Any:
            self.meter = MeteredScoring(inner)
            self.scoring = JournalledScoring(self.meter, self.journal)
            return self.scoring

        settings, domains = resolved_domains(self.recipe)
        self.session = stack.enter_context(
            build_session(
                self.recipe,
                label=self.recipe.run.name,
                trainable=True,
                domains=(settings, domains),
                wrap_scoring=journalled,
                check=self.stop.check,
                log_path=self.folder / f"scorers-{self.collectives.rank}.log",
                announce=self.announce,
            )
        )
        compute = self.recipe.model.compute_dtype
        self.state = TrainerState.create(
            self.session.model,
            self.recipe.optimizer,
            self.recipe.rl.learning_rate,
            compute_dtype=None if compute == "auto" else getattr(torch, compute),
            collectives=self.collectives,
            value_head=value_head_of(self.recipe, self.session),
            value_learning_rate=self.recipe.algorithm.value.learning_rate,
        )
        for part in (self.session.engine, self.session.runner, self.state):
            part.timeline = self.timeline
        self._announce_model()
        self._announce_sandbox()
        self._restore()

    def _announce_model(self) -> None:
        import torch

        model = self.session.model
        trained = sum(p.numel() for _, p in model.trainable())
        self.announce(
            f"{model.name}: {format_count(model.num_parameters)} parameters, "
            f"{format_count(trained)} trained, on {model.device.type} "
            f"({torch.get_num_threads()} threads), {model.head_weight().dtype}, "
            f"{len(self.session.domains)} domains, {self.recipe.run.mode} mode"
        )

    def _announce_sandbox(self) -> None:
        """Say, and keep in the run, what is enforced for model-written code."""
        sandbox = self.session.sandbox
        if sandbox is None:
            return
        level = sandbox.level.name.lower()
        minimum = self.recipe.sandbox.minimum
        self.announce(f"model-written code runs at sandbox level {level} (at least {minimum})")
        self.recorder.record_event(
            "sandbox",
            {
                "level": level,
                "minimum": minimum,
                "in_process_tests": self.recipe.sandbox.in_process_tests,
                "mode": sandbox.facts.get("mode", "child processes"),
                "landlock": sandbox.facts.get("landlock", 0),
                "cgroups": sandbox.facts.get("cgroups", 0),
            },
        )

    def _restore(self) -> None:
        if self.collectives.rank == 0:
            self.checkpoints.mark_missed()
        found = self.checkpoints.load_newest(self.state)
        if found is None:
            return
        self._place = _Place.from_json(found.progress)
        self._last_save_s = self._place.spent_s
        self._at_rest = found.folder.name
        self.version = found.progress["version"]
        self.session.engine.publish(self.version)
        self.announce(f"continuing from {found.folder.name}")

    def _stopped(self, stage: str, error: BaseException) -> RunResult:
        """Keep everything up to the last step boundary and say how to go on.

        A StopRequested comes from a safe point: the weights are those of the boundary. Anything
        else may have come in the middle of an update, so the last checkpoint stays the truth.
        """
        if isinstance(error, StopRequested):
            self._save(wait=True)
        self.recorder.record_event("stopped", {"stage": stage, "reason": str(error)})
        self.announce(
            f"stopped ({error or 'interrupted'}) in stage {stage} after "
            f"{self._place.stage_step} steps; continue with --resume"
        )
        return RunResult(self.folder, "stopped", self.recipe.stage_names)

    # Training stages

    def _train(self, name: str) -> None:
        stage, guard = self._begin_stage(name)
        budget = Budget(stage.minutes, self._place.spent_s)
        self.recorder.record_event(
            "stage_start", {"stage": name, "steps": stage.total, "minutes": stage.minutes}
        )
        guard.begin(self._checkpoint_of_now)
        while not self._is_over(stage, guard, budget):
            self.stop.check()
            number = self._place.stage_step
            self._number_journal()
            self._at_rest = ""
            metrics = stage.step(number)
            self.version = stage.version()
            self._place.stage_step += 1
            self._place.spent_s = budget.spent_s
            self._place.loop = stage.progress()
            self._watch_metric(name, metrics)
            for callback in self.callbacks:
                callback(StepInfo(name, number, metrics, self.session))
            if guard.after_step(number, metrics):
                self._go_on_from_anchor(stage)
            self._look(stage, guard)
            self._checkpoint_when_due(guard)
        if guard.finish(self._place.stage_step):
            self._go_on_from_anchor(stage)
        self._finish_stage(name, stage, budget)

    def _begin_stage(self, name: str) -> tuple[TrainingStage, StageGuard]:
        parts = StageParts(
            name=name,
            before=self.recipe.stage_names[: self._place.stage_index],
            recipe=self.recipe,
            session=self.session,
            state=self.state,
            recorder=self.recorder,
            spans=self.spans,
            folder=self.folder,
            version=self.version,
            saved=self._place.loop,
            costs=BatchCosts(
                self.journal,
                None if self.recipe.engine.workers else self.meter,
                self._journal_step,
                name,
            ),
            stack=self._stack,
            announce=self.announce,
        )
        self._number_journal()
        stage = STAGES[stage_kind(name)](parts)
        self.session.engine.rest()  # until something samples
        guard = StageGuard(
            self.recipe.guards,
            name,
            self.state,
            self.checkpoints,
            self.recorder,
            self.announce,
            screen=self._screen_of_all if stage.goal is not None else None,
        )
        guard.restore(self._place.guard)
        self._guard = guard
        return stage, guard

    def _screen_of_all(self) -> ScreenValues:
        names = sorted(self.session.domains)
        return screen_values(self.session, names, self.recipe.guards.screen_tasks)

    def _go_on_from_anchor(self, stage: TrainingStage) -> None:
        """Show the weights that were put back to whoever samples."""
        stage.republish()
        self.version = stage.version()
        self._place.loop = stage.progress()
        self._place.recent = []

    def _is_over(self, stage: TrainingStage, guard: StageGuard, budget: Budget) -> bool:
        """Return whether the stage ends here, the same on every rank."""
        self._look(stage, guard)  # a kill or a stop may have left it undone
        reasons = (
            self._place.stage_step >= stage.total,
            budget.is_spent,
            stage.is_spent(),
            guard.watch.has_given_up,
            stage.goal is not None and stage.goal.is_over,
        )
        return bool(self.collectives.broadcast(any(reasons)))

    def _look(self, stage: TrainingStage, guard: StageGuard) -> None:
        """Look at screen tasks, for the guard, the goal and what is forgotten; each once a step."""
        if guard.look(self._place.stage_step):
            self._go_on_from_anchor(stage)
        self._look_at_goal(stage)
        watch, done = stage.forgetting, self._place.stage_step
        if watch is None or not watch.is_due(done):
            return
        finding = watch.look(done)
        if finding is not None and guard.act(done - 1, [finding]):
            self._go_on_from_anchor(stage)
        self._place.loop = stage.progress()

    def _look_at_goal(self, stage: TrainingStage) -> None:
        """Measure the goal's domains when it is time to, on rank 0; once a step."""
        goal, done = stage.goal, self._place.stage_step
        if goal is None or self.collectives.rank != 0 or not goal.is_due(done):
            return
        event = goal.look(done)
        self._place.loop = stage.progress()
        self.recorder.record_event("goal", event)
        self.announce(goal_line(event))

    def _finish_stage(self, name: str, stage: TrainingStage, budget: Budget) -> None:
        """Save the stage's model and a checkpoint from which the next stage starts."""
        from educe.models.load import save
        from educe.trainers.step import TrainerState

        stage.finish()
        goal = stage.goal
        if goal is not None and goal.is_set:
            last = goal.looks[-1] if goal.looks else None
            self.recorder.record_event("goal_end", {"looks": len(goal.looks), "last": last})
        if self.collectives.rank == 0:
            save(self.session.model, self.folder / "models" / name)
        self.recorder.record_event(
            "stage_end",
            {
                "stage": name,
                "steps": self._place.stage_step,
                "seconds": round(budget.spent_s, 1),
            },
        )
        self._place = _Place(self._place.stage_index + 1)
        step = self.state.step
        self.state = TrainerState.create(
            self.session.model,
            self.recipe.optimizer,
            self.recipe.rl.learning_rate,
            compute_dtype=self.state.compute_dtype,
            collectives=self.collectives,
            value_head=self.state.value_head,
            value_learning_rate=self.recipe.algorithm.value.learning_rate,
        )
        self.state.step = step
        self.version += 1
        self.session.engine.publish(self.version)
        self._guard = None
        self._save(wait=True)

    # Checkpoints

    def _watch_metric(self, stage: str, metrics: Mapping[str, float]) -> None:
        value = metrics.get(f"{stage}/{self.recipe.checkpoint.best_metric}")
        if value is not None:
            self._place.recent = [*self._place.recent[-9:], value]

    def _checkpoint_when_due(self, guard: StageGuard) -> None:
        settings = self.recipe.checkpoint
        done = self._place.stage_step
        by_steps = settings.every_steps and done % settings.every_steps == 0
        elapsed = self._place.spent_s - self._last_save_s
        by_time = settings.every_minutes and elapsed >= 60 * settings.every_minutes
        is_anchor = guard.watch.is_anchor_due(done)
        if self.collectives.rank == 0 and is_anchor:
            guard.watch.offer(self.checkpoints.next_name(self.state))
        if by_steps or by_time or is_anchor:
            self._save(metric=_mean(self._place.recent) if self._place.recent else None)

    def _number_journal(self) -> None:
        if self.scoring is not None:
            self.scoring.step = self._journal_step(self._place.stage_step)

    def _journal_step(self, number: int) -> int:
        """Number steps over all stages, so that the journal can be cut at a checkpoint."""
        return self._place.stage_index * 10**9 + number

    def _checkpoint_of_now(self) -> str:
        """Return the name of a checkpoint of now; write one when there is none."""
        if not self._at_rest:
            self._save()
        return self._at_rest

    def _save(self, *, metric: float | None = None, wait: bool = False) -> None:
        self._last_save_s = self._place.spent_s
        if self.collectives.rank != 0:
            return
        self.journal.sync()
        # Only a checkpoint that is whole on disk makes earlier records superfluous.
        self.checkpoints.wait()
        if self._saved_step is not None:
            self.journal.truncate_before(self._saved_step)
        self._saved_step = self._journal_step(self._place.stage_step)
        if self._guard is not None:
            self._place.guard = self._guard.watch.state()
        target = self.checkpoints.save(
            self.state,
            {**asdict(self._place), "version": self.version},
            metric=metric,
            needs=self._guard.watch.needs if self._guard is not None else (),
            wait=wait,
        )
        self._at_rest = target.name
        told = {**asdict(self._place), "loop": None, "guard": None}
        self.recorder.record_event("checkpoint", {"step": self.state.step, **told})

    # Evaluation

    def _evaluate(self, name: str) -> Any:
        self.recorder.record_event("stage_start", {"stage": name, "steps": 0, "minutes": 0})
        self._number_journal()
        outcome = None
        if self.collectives.rank == 0:
            outcome = EvalStage(
                self.recipe, self.session, self.folder, self.recorder, self.announce
            ).run()
        # The others wait for rank 0's word without a limit of time.
        self.collectives.broadcast(None)
        self.recorder.record_event("stage_end", {"stage": name, "steps": 0})
        self._place = _Place(self._place.stage_index + 1)
        self._save(wait=True)
        return outcome


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
