"""What is done when a guard finds something wrong: say it, slow down, go back, or end the stage.

Going back means the weights and the optimizer of the last good checkpoint; steps, tasks and budgets
go on from where they are. So no step is done twice, and however often a stage goes back it ends.
Rank 0 judges, the others follow its orders: all ranks hold the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from educe.config.settings import GuardSettings
from educe.core.protocols import MetricRow, Recorder
from educe.session import Announce
from educe.trainers.guards import Finding, GuardWatch
from educe.trainers.screen_falls import ScreenValues, mean_screen_score

if TYPE_CHECKING:
    from educe.trainers.checkpoint import CheckpointStore
    from educe.trainers.step import TrainerState

Screen = Callable[[], ScreenValues]


@dataclass(slots=True)
class StageGuard:
    """Guards one training stage.

    Args:
        screen: measures the run's domains on screen tasks; None where the stage has no such look.
    """

    settings: GuardSettings
    stage: str
    state: TrainerState
    checkpoints: CheckpointStore
    recorder: Recorder
    announce: Announce
    screen: Screen | None = None
    watch: GuardWatch = field(init=False)

    def __post_init__(self) -> None:
        from educe.trainers.step_limits import StepLimits

        self.watch = GuardWatch(self.settings, self.stage)
        if self.settings.action != "off":
            self.state.limits = StepLimits(self.settings.grad_norm, self.settings.update_norm)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back the guard's state of a checkpoint; an empty one is a fresh start."""
        self.watch.restore(state)
        self.state.rate_scale = self.watch.rate_scale

    def begin(self, save: Callable[[], str]) -> None:
        """Make sure of an anchor: of a fresh stage, its start.

        Args:
            save: names a checkpoint of now; writes it when there is none.
        """
        is_main = self.state.collectives.rank == 0
        if is_main and self.settings.action == "rollback" and not self.watch.anchor:
            self.watch.anchor = save()

    def after_step(self, number: int, values: Mapping[str, float]) -> bool:
        """Judge step ``number`` by its metrics; return whether the weights were put back."""
        if self.settings.action == "off":
            return False
        found: list[Finding] = []
        if self.state.collectives.rank == 0:
            from educe.trainers.step_limits import are_finite

            is_sound = are_finite([p for _, p in self.state.trainable()])
            found = self.watch.observe(values, are_weights_finite=is_sound)
        is_back = self.act(number, found)
        if is_back:
            self.watch.screened_at = number + 1  # the step that it would judge is gone
        return is_back

    def look(self, steps_done: int) -> bool:
        """Look at the screen tasks when it is time; return whether the weights were put back.

        Asked between steps, also of the one that a stop or a kill came after.
        """
        every = self.settings.screen_every
        if self.screen is None or not every or self.settings.action == "off":
            return False
        if steps_done % every or self.watch.screened_at >= steps_done:
            return False
        found: list[Finding] = []
        if self.state.collectives.rank == 0:
            found = self._look_at_screen(self.screen, steps_done)
        self.watch.screened_at = steps_done
        return self.act(steps_done - 1, found)

    def finish(self, steps_done: int) -> bool:
        """End the stage with its anchor when it went back and was not seen as good since; return
        whether the weights were put back."""
        collectives, watch = self.state.collectives, self.watch
        back_to = ""
        if collectives.rank == 0 and watch.is_doubtful:
            back_to = watch.anchor
            seen = "was not looked at" if watch.last_screen is None else f"{watch.last_screen:.3g}"
            cause = (
                f"the stage went back before, and its score on screen tasks since ({seen}) is not "
                f"that of {watch.anchor} ({watch.anchor_screen:.3g})"
            )
            told = {"stage": self.stage, "step": steps_done - 1, "kind": "doubtful_end"}
            told |= {"cause": cause, "rate_scale": watch.rate_scale, "to": watch.anchor}
            self.recorder.record_event("rollback", told)
            self.announce(f"{self.stage}: {cause}. The stage ends with {watch.anchor}")
            self.checkpoints.wait()
        back_to = collectives.broadcast(back_to)
        if back_to:
            self._go_back(back_to)
        return bool(back_to)

    def act(self, number: int, found: list[Finding]) -> bool:
        """Do, on every rank, what follows from rank 0's findings; return whether the weights were
        put back."""
        collectives = self.state.collectives
        order = self._order(number, found) if collectives.rank == 0 else None
        order = collectives.broadcast(order)
        self.state.rate_scale = order["rate_scale"]
        self.watch.has_given_up = order["has_given_up"]
        if not order["back_to"]:
            return False
        self._go_back(order["back_to"])
        return True

    # Rank 0

    def _order(self, number: int, found: list[Finding]) -> dict[str, Any]:
        for finding in found:
            self.recorder.record_event(
                "alarm",
                {**asdict(finding), "stage": self.stage, "step": number, "domain": ""},
            )
        is_back = False
        if found and self.settings.action == "rollback" and not self.watch.has_given_up:
            is_back = self._respond(number, found)
        if is_back:
            self.checkpoints.wait()  # the anchor may still be on its way to the disk
        return {
            "back_to": self.watch.anchor if is_back else "",
            "rate_scale": self.watch.rate_scale,
            "has_given_up": self.watch.has_given_up,
        }

    def _look_at_screen(self, screen: Screen, steps_done: int) -> list[Finding]:
        values = screen()
        scores = {name: mean_screen_score({name: values[name]}) for name in values}
        mean = mean_screen_score(values)
        self.recorder.record_event(
            "screen", {"stage": self.stage, "step": steps_done, "score": mean, "scores": scores}
        )
        if steps_done:
            row = {f"domain/{n}/screen_score": s for n, s in scores.items()}
            row[f"{self.stage}/screen_score"] = mean
            self.recorder.record_metrics(MetricRow(self.stage, steps_done - 1, row))
        return self.watch.observe_screen(values)

    def _respond(self, number: int, found: list[Finding]) -> bool:
        """Lower the rate, say why; return whether to go back."""
        finding = next((f for f in found if f.response == "rollback"), found[0])
        self.watch.lower_rate(finding.response)
        told: dict[str, Any] = {
            "stage": self.stage,
            "step": number,
            "kind": finding.kind,
            "cause": finding.cause,
            "rate_scale": self.watch.rate_scale,
        }
        rate = f"learning rate x {self.watch.rate_scale:.3g} from here on"
        if finding.response == "back_off":
            self.recorder.record_event("back_off", told)
            self.announce(f"{self.stage} step {number}: {finding.cause}. {rate}")
            return False
        told |= {"to": self.watch.anchor, "number": self.watch.num_rollbacks}
        if self.watch.has_given_up:
            rate = (
                f"the stage ends there, as it went back {self.settings.max_rollbacks} times "
                "before (guards.max_rollbacks)"
            )
            told["given_up"] = rate
        self.recorder.record_event("rollback", told)
        self.announce(
            f"{self.stage} step {number}: {finding.cause}. Back to {self.watch.anchor}; {rate}"
        )
        return True

    # Every rank

    def _go_back(self, name: str) -> None:
        from educe.trainers.checkpoint import load_checkpoint

        # Steps are counted on, since later checkpoints must sort after earlier ones; a refreshed
        # reference stays with the loop that made it.
        step, frozen = self.state.step, self.state.frozen
        load_checkpoint(self.checkpoints.folder / name, self.state)
        self.state.step, self.state.frozen = step, frozen
