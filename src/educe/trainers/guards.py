"""Stability guards: what the metrics of a stage's steps say about its health.

Bookkeeping over numbers alone: no tensors, no files, no clock. The whole state is JSON and every
judgement follows from it and the metrics, so a run that is resumed exactly judges exactly the same.
What is done about a finding is ``educe.stage_guard``'s business.

Levels are means over ``window`` steps; s is a level's standard error, from the window's own spread.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from educe.config.settings import GuardSettings
from educe.trainers.screen_falls import ScreenValues, mean_screen_score, screen_fall

Response = Literal["rollback", "back_off"]
# Standard errors by which a fall must exceed the noise, and a level may fall short of the last.
_CLEAR, _SLACK = 5.0, 2.0
# Standard errors by which a look at the same tasks must be below the best one. Of a policy that
# stays as it is, ten looks at 32 to 200 tasks give a false alarm in 5 % of simulated stages at 3,
# in 11 to 17 % at 2.5, in 11 to 92 % with no such bound (benchmarks/screen_alarms.py).
_SCREEN = 3.0
# Standard error of a single batch's loss, as a part of it: batches differ by what is in them.
_LOSS_ERROR = 0.1
# Correlation of neighbouring steps that is an oscillation: 15 independent values reach -0.7 in one
# case of 400.
_TURNING = -0.7


@dataclass(frozen=True, slots=True)
class Finding:
    """Something is wrong. ``value`` broke ``limit``; ``cause`` says what it means."""

    kind: str
    value: float
    limit: float
    cause: str
    response: Response = "rollback"


@dataclass(frozen=True, slots=True)
class Level:
    """A mean over a window and its standard error."""

    mean: float
    error: float

    @staticmethod
    def of(values: list[float], window: int) -> Level | None:
        """Return the level of the last ``window`` values, None before there are so many."""
        if len(values) < window:
            return None
        recent = values[-window:]
        mean = sum(recent) / window
        variance = sum((v - mean) ** 2 for v in recent) / (window - 1)
        return Level(mean, math.sqrt(variance / window))


@dataclass(slots=True)
class GuardWatch:
    """Watches one stage.

    Attributes:
        quality: rewards of the steps since the last rollback; minus the loss where there is none.
        entropy: of the same steps, nats a token.
        first_quality, first_entropy: levels that the stage began with.
        best: the highest level of ``quality``.
        is_best_start: whether that is still the first step alone.
        noise: standard error of one step's reward, from its groups, or of one step's loss, from how
            it differs from the last one's: the mean over all ``num_errors`` steps; 0 when unknown.
        best_screen: the whole stage's best look at the screen tasks, task by task; ``screened_at``:
            steps done at the last look.
        is_near_best: whether the last look since a rollback was.
        last_screen: score of the last look since a rollback; ``anchor_screen`` and
            ``candidate_screen``: of the last look when those were saved.
        anchor: the checkpoint to go back to; ``candidate`` becomes it when it has proven itself.
        anchor_level: level of ``quality`` when the anchor was proven.
        rate_scale: what the learning rate is multiplied by.
    """

    settings: GuardSettings
    stage: str
    quality: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    first_quality: Level | None = None
    first_entropy: Level | None = None
    best: Level | None = None
    is_best_start: bool = False
    noise: float = 0.0
    num_errors: int = 0
    has_started: bool = False
    is_rewarded: bool = False
    num_skipped: int = 0
    best_screen: dict[str, list[float | None]] | None = None
    screened_at: int = -1
    is_near_best: bool = True
    last_screen: float | None = None
    anchor_screen: float | None = None
    candidate_screen: float | None = None
    anchor: str = ""
    candidate: str = ""
    anchor_level: Level | None = None
    rate_scale: float = 1.0
    num_rollbacks: int = 0
    has_given_up: bool = False
    active: list[str] = field(default_factory=list)

    # Judgements

    def observe(self, values: Mapping[str, float], *, are_weights_finite: bool) -> list[Finding]:
        """Take in a step's metrics (by their full names); return what is newly wrong."""
        if self.settings.action == "off":
            return []
        self._take(values)
        found = [
            *self._broken_weights(are_weights_finite),
            *self._skipped(),
            *self._over("max_advantage", values, self.settings.advantage, _ADVANTAGE),
            *self._over("update_k3", values, self.settings.update_kl, _UPDATE_KL),
            *self._fall(),
            *self._collapse(),
            *self._oscillation(),
        ]
        new = [f for f in found if f.kind not in self.active]
        self.active = [f.kind for f in found]
        return new

    def observe_screen(self, values: ScreenValues) -> list[Finding]:
        """Take in a look at screen tasks: each domain's scores, in the same order at each look."""
        now = mean_screen_score(values)
        if math.isnan(now):
            return []
        self.last_screen = now
        if self.best_screen is None:
            self.best_screen = {n: list(v) for n, v in values.items()}
            self.anchor_screen = now
            return []
        best = mean_screen_score(self.best_screen)
        fall, error = screen_fall(self.best_screen, values)
        allowed = self.settings.screen_drop
        limit = max(allowed, _SCREEN * error)
        self.is_near_best = fall <= max(allowed / 2, error)
        if now > best:
            self.best_screen = {n: list(v) for n, v in values.items()}
        if fall <= limit:
            return []
        return [
            Finding(
                "screen_drop",
                fall,
                limit,
                f"the score on screen tasks fell from {best:.3g} to {now:.3g} (limit {limit:.3g}: "
                f"guards.screen_drop = {allowed:g}, or {_SCREEN:g} standard errors): what is paid "
                "for in training is not what the tasks ask; look at the reward and at samples",
            )
        ]

    def _take(self, values: Mapping[str, float]) -> None:
        window, stage = self.settings.window, self.stage
        reward, loss = values.get(f"{stage}/reward"), values.get(f"{stage}/loss")
        quality = reward if reward is not None else None if loss is None else -loss
        if quality is not None and math.isfinite(quality):
            error = values.get(f"{stage}/reward_error")
            if reward is None and self.quality:
                # Batches of a mixture differ in what they ask, so a loss is compared with its like.
                error = abs(quality - self.quality[-1]) / _MEAN_DIFFERENCE
            self.quality = [*self.quality, quality][-3 * window :]
            if error is not None and math.isfinite(error):
                self.num_errors += 1
                self.noise += (error - self.noise) / self.num_errors
            self._take_start(quality, error, reward is not None)
        entropy = values.get(f"{stage}/entropy")
        if reward is not None and entropy is not None and math.isfinite(entropy):
            self.entropy = [*self.entropy, entropy][-3 * window :]
        self.num_skipped = self.num_skipped + 1 if values.get(f"{stage}/skipped", 0.0) > 0 else 0
        level = Level.of(self.quality, window)
        self.first_quality = self.first_quality or level
        if self.first_entropy is None and self.entropy:
            self.first_entropy = Level(self.entropy[0], 0.0)
        if level is not None and (self.best is None or level.mean > self.best.mean):
            self.best, self.is_best_start = level, False

    def _take_start(self, quality: float, error: float | None, is_reward: bool) -> None:
        """The first step was sampled from the untouched policy: where the stage began.

        Should its error be unknown (one group), the first window is the start.
        """
        if self.has_started:
            return
        self.has_started, self.is_rewarded = True, is_reward
        if not is_reward:
            error = _LOSS_ERROR * abs(quality)
        if error is not None and math.isfinite(error):
            self.first_quality = self.best = Level(quality, error)
            self.is_best_start = True

    def _broken_weights(self, are_finite: bool) -> list[Finding]:
        if are_finite:
            return []
        cause = "weights are NaN or infinite: everything computed from them would be, too"
        return [Finding("non_finite_weights", math.nan, 0.0, cause)]

    def _skipped(self) -> list[Finding]:
        limit = self.settings.max_skipped
        if not limit or self.num_skipped < limit:
            return []
        cause = (
            f"{self.num_skipped} steps in a row were skipped, for a gradient that is not finite or "
            "over guards.grad_norm; their batches and reasons are in the run folder"
        )
        return [Finding("skipped_steps", self.num_skipped, limit, cause)]

    def _over(
        self, name: str, values: Mapping[str, float], limit: float, cause: str
    ) -> list[Finding]:
        value = values.get(f"{self.stage}/{name}", 0.0)
        if not limit or value <= limit:
            return []
        return [Finding(name, value, limit, cause.format(value=value, limit=limit))]

    def _fall(self) -> list[Finding]:
        """The reward has clearly fallen (the loss risen), by much more than its noise."""
        now = Level.of(self.quality, self.settings.window)
        if now is None or self.best is None or self.first_quality is None or not self.settings.drop:
            return []
        # A level near 0 has no scale of its own; a part of the first level gives it one.
        scale = max(abs(self.best.mean), 0.2 * abs(self.first_quality.mean))
        # Five values that agree by chance do not make a level exact.
        least = self.noise / math.sqrt(self.settings.window)
        # The start is one step, a mean of ``window`` steps is not.
        alone = self.noise if self.is_best_start and not self.is_rewarded else least
        noise = math.hypot(max(now.error, least), max(self.best.error, alone))
        limit = max(self.settings.drop * scale, _CLEAR * noise)
        if self.best.mean - now.mean <= limit:
            return []
        best, level = abs(self.best.mean), abs(now.mean)
        told = f"loss rose from {best:.3g} to {level:.3g}"
        if self.is_rewarded:
            told = f"reward fell from {self.best.mean:.3g} to {now.mean:.3g}"
        cause = (
            f"the {told} (means of {self.settings.window} steps, limit {limit:.3g}): training "
            "destroys what was learned; the learning rate is too high, or rewards are wrong"
        )
        kind = "reward_collapse" if self.is_rewarded else "loss_rise"
        return [Finding(kind, self.best.mean - now.mean, limit, cause)]

    def _collapse(self) -> list[Finding]:
        """The policy says one thing only, and has gained nothing by it."""
        now = Level.of(self.entropy, self.settings.window)
        level = Level.of(self.quality, self.settings.window)
        first, start = self.first_entropy, self.first_quality
        if now is None or level is None or first is None or start is None:
            return []
        limit = self.settings.entropy_fraction * first.mean
        has_gained = level.mean > start.mean + _SLACK * math.hypot(level.error, start.error)
        if not now.mean < limit or has_gained:
            return []
        cause = (
            f"entropy fell to {now.mean:.3g} nats a token (limit {limit:.3g}) and the reward has "
            "not risen: the policy has collapsed onto few texts and can no longer explore"
        )
        return [Finding("policy_collapse", now.mean, limit, cause)]

    def _oscillation(self) -> list[Finding]:
        for name, series, noise in (
            ("reward", self.quality, self.noise),
            ("entropy", self.entropy, 0.0),
        ):
            swing, turning = _swing(series, 3 * self.settings.window, _SLACK * noise)
            if turning <= _TURNING and 0 < self.settings.oscillation < swing:
                cause = (
                    f"the {name} goes up and down from step to step, by {swing:.0%} of its mean: "
                    "steps overshoot; the learning rate is too high"
                )
                found = Finding(
                    "oscillation", swing, self.settings.oscillation, cause, response="back_off"
                )
                return [found]
        return []

    # What follows

    def lower_rate(self, response: Response) -> None:
        """Multiply the learning rate, and forget the steps that were taken at the old one."""
        self.rate_scale *= self.settings.back_off
        self.active = []
        self.quality, self.entropy = [], []
        if response == "rollback":
            self.num_skipped = 0
            self.is_near_best, self.last_screen = True, None
            self.candidate = ""
            self.num_rollbacks += 1
            self.has_given_up = self.num_rollbacks > self.settings.max_rollbacks

    def is_anchor_due(self, steps_done: int) -> bool:
        """Return whether a checkpoint of now may become an anchor: by steps alone, never by time,
        so that a resumed run has the same ones."""
        is_on = self.settings.action == "rollback" and not self.has_given_up
        return is_on and steps_done > 0 and steps_done % self.settings.anchor_every == 0

    def offer(self, name: str) -> None:
        """Take a checkpoint of now as the next candidate; the last one, if it held, is the anchor.

        A candidate must outlive ``anchor_every`` steps without a rollback, because a collapse is
        seen only some steps after it began, and the level must not be below the last anchor's.
        """
        level = Level.of(self.quality, self.settings.window)
        if self.candidate and level is not None and self._holds(level):
            self.anchor, self.anchor_screen = self.candidate, self.candidate_screen
            if self.anchor_level is None or level.mean > self.anchor_level.mean:
                self.anchor_level = level
        self.candidate, self.candidate_screen = name, self.last_screen

    def _holds(self, level: Level) -> bool:
        last = self.anchor_level or self.first_quality
        if last is not None and level.mean < last.mean - _SLACK * math.hypot(
            level.error, last.error
        ):
            return False
        return self.is_near_best

    @property
    def is_doubtful(self) -> bool:
        """Whether the stage went back and has not been seen as good as its anchor since.

        What made it go back may be at work still, too slowly for any look: a reward of the wrong
        sign at a tenth of the learning rate. So the burden of proof is on the later weights.
        """
        can = self.settings.action == "rollback" and self.num_rollbacks > 0
        if not can or self.has_given_up or self.anchor_screen is None:
            return False
        return self.last_screen is None or self.last_screen < self.anchor_screen

    @property
    def needs(self) -> set[str]:
        """The checkpoints that must stay."""
        return {self.anchor, self.candidate} - {""}

    # State

    def state(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k not in ("settings", "stage")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state back; a state of other fields (an older format) leaves the defaults."""
        for key, value in state.items():
            is_older = key == "best_screen" and not isinstance(value, dict | None)
            if key not in self.__slots__ or is_older:
                continue
            is_level = key in ("first_quality", "first_entropy", "best", "anchor_level")
            setattr(self, key, Level(**value) if is_level and value is not None else value)


# Mean absolute difference of two draws of one normal distribution, in its deviations.
_MEAN_DIFFERENCE = 2 / math.sqrt(math.pi)
_ADVANTAGE = (
    "advantages reach {value:.3g} (guards.advantage = {limit:g}): rewards are not of a scale of "
    "about 1. Scale or normalise them, or take an algorithm that divides by their deviation"
)
_UPDATE_KL = (
    "one update moved the policy by {value:.3g} nats a token (guards.update_kl = {limit:g}): the "
    "learning rate is too high"
)


def _swing(series: list[float], size: int, noise: float) -> tuple[float, float]:
    """Return (deviation / |mean|, correlation of neighbours) of the last ``size`` values.

    Both are 0 before there are so many, or when the deviation is within ``noise``.
    """
    if len(series) < size:
        return 0.0, 0.0
    values = series[-size:]
    mean = sum(values) / size
    squares = sum((v - mean) ** 2 for v in values)
    # Rounding has no direction, and a mean of 0 no scale.
    if squares <= size * max(noise**2, 1e-12 * mean**2) or mean == 0:
        return 0.0, 0.0
    products = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    return math.sqrt(squares / size) / abs(mean), products / squares


def batch_health(
    rewards_P_G: Sequence[Sequence[float | None]], advantages_P_G: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Return what the guards need to know of a rollout batch besides its means.

    ``reward_error`` is the standard error of the mean reward, over groups (samples of one prompt
    are not independent); it is left out for fewer than two scored groups.
    """
    sizes = [abs(a) for group in advantages_P_G for a in group]
    told = {"max_advantage": max(sizes, default=0.0)}
    scored_P_G = [[r for r in group if r is not None] for group in rewards_P_G]
    means_P = [sum(group) / len(group) for group in scored_P_G if group]
    if len(means_P) > 1:
        mean = sum(means_P) / len(means_P)
        variance = sum((m - mean) ** 2 for m in means_P) / (len(means_P) - 1)
        told["reward_error"] = math.sqrt(variance / len(means_P))
    return told
