"""A run from its recipe to its report: stages, checkpoints, resume, stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from educe.config.loader import LoadedRecipe
from educe.core.errors import EduceError
from educe.core.protocols import MetricRow, Recorder
from educe.core.stopping import Budget, StopRequested, StopSignal
from educe.core.types import Split
from educe.goal import GoalWatch
from educe.observability.run_store import RunStore
from educe.observability.timing import Spans
from educe.rollout.journal import Journal, JournalledScoring
from educe.rollout.metering import BatchCosts, MeteredScoring
from educe.session import Announce, Session, build_session, resolved_bundles, resolved_domains
from educe.sources import LocalSource, RemoteSource
from educe.stage_eval import EvalStage


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a callback sees after each training step."""

    stage: str
    step: int
    metrics: Mapping[str, float]
    session: Session


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
    """Where a run is: the stage, the steps done in it, seconds spent, the loop's own progress."""

    stage_index: int = 0
    stage_step: int = 0
    spent_s: float = 0.0
    loop: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "stage_index": self.stage_index,
            "stage_step": self.stage_step,
            "spent_s": self.spent_s,
            "loop": self.loop,
        }


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
        self.version = 0
        self._place = _Place()
        self._recent: list[float] = []
        self._last_save_s = 0.0
        self._saved_step: int | None = None

    # The road

    def run(self) -> RunResult:
        """Do all stages from where the run is; return how it ended."""
        evaluation = None
        with ExitStack() as stack:
            self._stack = stack
            self._open(stack)
            while self._place.stage_index < len(self.recipe.stages):
                stage = self.recipe.stages[self._place.stage_index]
                try:
                    if stage == "eval":
                        evaluation = self._evaluate()
                    else:
                        self._train(stage)
                except (StopRequested, KeyboardInterrupt) as error:
                    return self._stopped(stage, error)
            self.checkpoints.wait()
        report = self.folder / "report.html"
        return RunResult(
            self.folder,
            "done",
            self.recipe.stages,
            report if report.exists() else None,
            evaluation,
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
        )
        self._announce_model()
        self._announce_sandbox()
        self._restore()

    def _announce_model(self) -> None:
        import torch

        model = self.session.model
        trained = sum(p.numel() for _, p in model.trainable())
        self.announce(
            f"{model.name}: {model.num_parameters / 1e6:.1f} M parameters, "
            f"{trained / 1e6:.1f} M trained, on {model.device.type} "
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
        found = self.checkpoints.load_newest(self.state)
        if found is None:
            return
        raw = found.progress
        self._place = _Place(raw["stage_index"], raw["stage_step"], raw["spent_s"], raw["loop"])
        self.version = raw["version"]
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
        return RunResult(self.folder, "stopped", self.recipe.stages)

    # Training stages

    def _train(self, stage: str) -> None:
        settings = self.recipe.sft if stage == "sft" else self.recipe.rl
        budget = Budget(settings.minutes, self._place.spent_s)
        total, step_of, progress_of = self._sft() if stage == "sft" else self._rl()
        self.recorder.record_event(
            "stage_start", {"stage": stage, "steps": total, "minutes": settings.minutes}
        )
        while self._place.stage_step < total and not budget.is_spent:
            self.stop.check()
            number = self._place.stage_step
            if self.scoring is not None:
                self.scoring.step = self._journal_step(number)
            metrics = step_of(number)
            self._place.stage_step += 1
            self._place.spent_s = budget.spent_s
            self._place.loop = progress_of()
            for callback in self.callbacks:
                callback(StepInfo(stage, number, metrics, self.session))
            self._checkpoint_when_due(metrics)
            if self._is_enough(stage, metrics):
                break
        self._finish_stage(stage, budget)

    def _sft(self) -> tuple[int, Callable[[int], dict[str, float]], Callable[[], dict[str, Any]]]:
        from educe.trainers.supervised import (
            batch_rows,
            collect_demonstrations,
            planned_steps,
            supervised_step,
        )

        settings = self.recipe.sft
        rows = collect_demonstrations(
            self.session.domains,
            {n: s.weight for n, s in self.session.domain_settings.items()},
            self.session.chat,
            count=settings.num_tasks,
            seed=self.recipe.run.seed,
            context_length=self.session.runner.context_length,
        )
        total = planned_steps(settings)

        def step(number: int) -> dict[str, float]:
            picked = batch_rows(len(rows), settings.batch_size, number, self.recipe.run.seed)
            with self.spans.measure("train"):
                result = supervised_step(
                    self.state, [rows[i] for i in picked], settings, number, total
                )
            if result.skipped:
                self.recorder.record_event(
                    "non_finite", {"stage": "sft", "step": number, "reason": result.skipped}
                )
            values = {
                n if n.startswith("domain/") else f"sft/{n}": v
                for n, v in result.tally.values().items()
            }
            values |= {
                "sft/grad_norm": result.grad_norm,
                "sft/trained_tokens": float(result.num_tokens),
                **self.spans.drain(),
            }
            if self.collectives.rank == 0:
                self.recorder.record_metrics(MetricRow("sft", number, values, result.seconds))
            return values

        return total, step, dict

    def _rl(self) -> tuple[int, Callable[[int], dict[str, float]], Callable[[], dict[str, Any]]]:
        from educe.trainers.mixing import order_of
        from educe.trainers.rl import ReinforceLoop

        settings = self.recipe.rl
        weights = {n: s.weight for n, s in self.session.domain_settings.items()}
        bundles = resolved_bundles(self.recipe, self.session.domain_settings)
        meter = None if self.recipe.engine.workers else self.meter
        costs = BatchCosts(self.journal, meter, self._journal_step)
        loop = ReinforceLoop(
            state=self.state,
            source=LocalSource(self.session),
            domains=self.session.domains,
            settings=settings,
            domain_settings=self.session.domain_settings,
            bundles=bundles,
            order=order_of(self.recipe, self.session.domains, weights, costs),
            recorder=self.recorder,
            spans=self.spans,
            folder=self.folder / "non_finite",
            reference=self._reference(any(b.kl_coefficient for b in bundles.values())),
            version=self.version,
        )
        if self.recipe.engine.workers and self.collectives.rank == 0:
            loop.source = self._stack.enter_context(
                RemoteSource(self.recipe, self.session, self.folder, self.version)
            )
        goal = GoalWatch(self.recipe.goal, self._screen)
        if self._place.loop:
            loop.restore(self._place.loop)
            goal.restore(self._place.loop.get("goal", []))
        self._loop, self._goal = loop, goal

        def step(number: int) -> dict[str, float]:
            metrics = loop.step(number)
            self.version = loop.version
            return metrics

        return settings.steps, step, lambda: {**loop.progress(), "goal": goal.state()}

    def _reference(self, is_needed: bool) -> Any:
        """Return the model as it was when the RL stage began, frozen; also after a resume."""
        if not is_needed:
            return None
        from educe.models.load import load

        index = self._place.stage_index
        before = self.recipe.stages[:index]
        trained = [s for s in before if s != "eval"]
        source = str(self.folder / "models" / trained[-1]) if trained else self.recipe.model.name
        reference = load(source, dtype=self.recipe.model.dtype, device=self.recipe.model.device)
        reference.causal.requires_grad_(False)
        return reference

    def _is_enough(self, stage: str, metrics: Mapping[str, float]) -> bool:
        """Return whether the token budget is spent or the goal reached."""
        if stage != "rl":
            return False
        if self.recipe.rl.tokens and self._loop.num_completion_tokens >= self.recipe.rl.tokens:
            return True
        if not self._goal.is_due(self._place.stage_step):
            return False
        event = self._goal.look(self._place.stage_step)
        self._place.loop["goal"] = self._goal.state()
        self.recorder.record_event("goal", event)
        self.announce(_goal_line(event))
        return event["status"] in ("reached", "guardrail")

    def _screen(self, names: list[str]) -> dict[str, float]:
        """Score domains on screen tasks, greedily."""
        from educe.evaluation.runner import evaluate

        known = {n: self.session.domains[n] for n in names}
        result = evaluate(
            self.session,
            known,
            tasks_per_domain=self.recipe.goal.tasks,
            split=Split.SCREEN,
            limits=self.session.limits,
            label="screen",
        )
        return {
            n: _mean([r.value for r in result.rows_in(n) if r.value is not None]) for n in names
        }

    def _finish_stage(self, stage: str, budget: Budget) -> None:
        """Save the stage's model and a checkpoint from which the next stage starts."""
        from educe.models.load import save
        from educe.trainers.step import TrainerState

        if stage == "rl" and self._goal.is_set:
            last = self._goal.looks[-1] if self._goal.looks else None
            self.recorder.record_event("goal_end", {"looks": len(self._goal.looks), "last": last})
        if self.collectives.rank == 0:
            save(self.session.model, self.folder / "models" / stage)
        self.recorder.record_event(
            "stage_end",
            {"stage": stage, "steps": self._place.stage_step, "seconds": round(budget.spent_s, 1)},
        )
        self._place = _Place(self._place.stage_index + 1)
        step = self.state.step
        self.state = TrainerState.create(
            self.session.model,
            self.recipe.optimizer,
            self.recipe.rl.learning_rate,
            compute_dtype=self.state.compute_dtype,
            collectives=self.collectives,
        )
        self.state.step = step
        self.version += 1
        self.session.engine.publish(self.version)
        self._recent.clear()
        self._save(wait=True)

    # Checkpoints

    def _checkpoint_when_due(self, metrics: Mapping[str, float]) -> None:
        settings = self.recipe.checkpoint
        stage = self.recipe.stages[self._place.stage_index]
        value = metrics.get(f"{stage}/{settings.best_metric}")
        if value is not None:
            self._recent = [*self._recent[-9:], value]
        by_steps = settings.every_steps and self._place.stage_step % settings.every_steps == 0
        elapsed = self._place.spent_s - self._last_save_s
        by_time = settings.every_minutes and elapsed >= 60 * settings.every_minutes
        if by_steps or by_time:
            self._save()

    def _journal_step(self, number: int) -> int:
        """Number steps over all stages, so that the journal can be cut at a checkpoint."""
        return self._place.stage_index * 10**9 + number

    def _save(self, *, wait: bool = False) -> None:
        self._last_save_s = self._place.spent_s
        if self.collectives.rank != 0:
            return
        self.journal.sync()
        # Only a checkpoint that is whole on disk makes earlier records superfluous.
        self.checkpoints.wait()
        if self._saved_step is not None:
            self.journal.truncate_before(self._saved_step)
        self._saved_step = self._journal_step(self._place.stage_step)
        metric = _mean(self._recent) if self._recent else None
        self.checkpoints.save(
            self.state,
            {**self._place.to_json(), "version": self.version},
            metric=metric,
            wait=wait,
        )
        self.recorder.record_event(
            "checkpoint", {"step": self.state.step, **self._place.to_json(), "loop": None}
        )

    # Evaluation

    def _evaluate(self) -> Any:
        self.recorder.record_event("stage_start", {"stage": "eval", "steps": 0, "minutes": 0})
        outcome = None
        if self.collectives.rank == 0:
            outcome = EvalStage(
                self.recipe, self.session, self.folder, self.recorder, self.announce
            ).run()
        self.collectives.barrier()
        self.recorder.record_event("stage_end", {"stage": "eval", "steps": 0})
        self._place = _Place(self._place.stage_index + 1)
        self._save(wait=True)
        return outcome


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _goal_line(event: Mapping[str, Any]) -> str:
    scores = ", ".join(f"{n} {v:.2f}" for n, v in sorted(event["scores"].items()))
    words = {
        "reached": "goal reached",
        "guardrail": "a guardrail is undercut",
        "out_of_reach": "the goal seems out of reach: no look came nearer",
        "pursued": "goal not reached yet",
    }
    return f"step {event['step']}: {words[event['status']]} ({scores})"


def prepare_folder(loaded: LoadedRecipe, *, resume: bool) -> tuple[Path, RunStore]:
    """Create or reopen the run folder of a recipe.

    Raises:
        EduceError: a fresh run whose folder holds one already, or a resume without one.
    """
    from educe.trainers.checkpoint import CheckpointStore, read_progress

    recipe = loaded.recipe
    folder = Path(recipe.run.out) / recipe.run.name
    raw = recipe.model_dump(mode="json")
    if not resume:
        return folder, RunStore.create(folder, raw, name=recipe.run.name)
    if not (folder / "run.json").exists():
        raise EduceError(f"--resume: {folder} holds no run; start it without --resume")
    found = CheckpointStore(folder / "checkpoints").complete()
    starts: dict[str, int] = {}
    done = read_progress(found[-1])["progress"] if found else {"stage_index": 0, "stage_step": 0}
    for index, stage in enumerate(recipe.stages):
        if index == done["stage_index"]:
            starts[stage] = done["stage_step"]
        elif index > done["stage_index"]:
            starts.setdefault(stage, 0)
    return folder, RunStore.resume(folder, next_step=starts, recipe_json=raw)
