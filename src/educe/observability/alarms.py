"""Alarms: signs in the metrics that a run goes wrong, each with its cause and what to do.

Every check is a pure function of the history; :class:`AlarmWatch` runs them as rows come in and
raises each alarm once until its cause has gone. Nothing here stops a run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from educe.core.protocols import MetricRow
from educe.core.stages import stage_kind
from educe.core.types import JSON
from educe.observability.history import History, Series, finite_values
from educe.observability.metric_names import without_domains_but


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """Thresholds. A limit of None switches its alarm off.

    Attributes:
        window: steps that are averaged before a judgement.
        entropy_fraction: collapse when the recent mean falls under this part of the first window's.
        entropy_nats: collapse when the recent mean falls under this many nats a token.
        kl: nats a token to the reference, recent mean of k3 (k1 where k3 is not recorded).
        hacking_looks: screen looks that are averaged; one look at a few tasks is mostly noise.
        hacking_gain: reward rise since the best screen score that counts as rising.
        hacking_loss: fall of the screen score from its best, over all domains.
        hacking_loss_domain: the same for one domain, whose screen score is much noisier.
        trivial: share of groups without signal, recent mean.
        unscored: share of samples without a score, recent mean; per domain and overall.
        mismatch: mean absolute difference of probabilities between engine and trainer. Above 0.01
            a run is usually broken, below 0.005 numerical noise of low precision; the embedded
            engine in fp32 stays far under both.
        skipped: steps skipped for non-finite gradients within the window.
    """

    window: int = 5
    entropy_fraction: float | None = 0.2
    entropy_nats: float | None = 0.01
    kl: float | None = 0.5
    hacking_looks: int = 3
    hacking_gain: float | None = 0.05
    hacking_loss: float | None = 0.05
    hacking_loss_domain: float | None = 0.15
    trivial: float | None = 0.95
    unscored: float | None = 0.05
    mismatch: float | None = 0.01
    skipped: int | None = 1


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm. ``value`` broke ``limit``; ``cause`` says what it means and what to try."""

    kind: str
    stage: str
    step: int
    value: float
    limit: float
    cause: str
    domain: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.kind, self.stage, self.domain)

    def to_json(self) -> dict[str, JSON]:
        return dataclasses.asdict(self)


# Learning to say one thing is what these stages are for.
_CONVERGING = ("sft", "rejection", "preference", "distillation")


def _recent(series: Series, window: int) -> float | None:
    """Mean of the last ``window`` finite values; None before there are that many."""
    values = finite_values(series)
    return sum(values[-window:]) / window if len(values) >= window else None


def entropy_collapse(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """The policy repeats itself: no more exploration, groups without differences."""
    if stage_kind(stage) in _CONVERGING:
        return
    series = history.overall(stage, "entropy")
    recent = _recent(series, limits.window)
    if recent is None:
        return
    floors = [limits.entropy_nats] if limits.entropy_nats is not None else []
    values = finite_values(series)
    if limits.entropy_fraction is not None and len(values) >= 2 * limits.window:
        first = sum(values[: limits.window]) / limits.window
        floors.append(limits.entropy_fraction * first)
    limit = max(floors, default=-math.inf)
    if recent < limit:
        yield Alarm(
            "entropy_collapse",
            stage,
            series[-1][0],
            recent,
            limit,
            f"entropy fell to {recent:.3g} nats a token (limit {limit:.3g}): samples of a group "
            "become equal and carry no signal. Lower the learning rate, raise clip_high, or add a "
            "KL to the reference",
        )


def kl_blow_up(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """The policy has left the reference far behind."""
    for name in ("kl_k3", "kl_k1"):
        series = history.overall(stage, name)
        recent = _recent(series, limits.window)
        if recent is None:
            continue
        if limits.kl is not None and recent > limits.kl:
            yield Alarm(
                "kl_blow_up",
                stage,
                series[-1][0],
                recent,
                limits.kl,
                f"KL to the reference is {recent:.3g} nats a token ({name}, limit {limits.kl:g}): "
                "the policy forgets what it knew, or exploits the reward. Raise kl_coefficient, "
                "lower the learning rate, look at samples",
            )
        return


def reward_hacking(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """The trained reward rises while the score on screen tasks falls."""
    screen, reward = history.overall(stage, "screen_score"), history.overall(stage, "reward")
    yield from _hacking(screen, reward, limits.hacking_loss, limits, stage, "")
    for domain in history.domains(stage):
        screen = history.domain(stage, domain, "screen_score")
        reward = history.domain(stage, domain, "reward")
        reward = reward or history.domain(stage, domain, "score")
        yield from _hacking(screen, reward, limits.hacking_loss_domain, limits, stage, domain)


def _hacking(
    screen: Series,
    reward: Series,
    max_loss: float | None,
    limits: AlarmLimits,
    stage: str,
    domain: str,
) -> Iterator[Alarm]:
    if limits.hacking_gain is None or max_loss is None:
        return
    looks = _trailing_means(screen, limits.hacking_looks)
    if len(looks) < 2:
        return
    # The last of equal bests: a plateau is not yet a fall.
    best_step, best = max(looks, key=lambda look: (look[1], look[0]))
    step, now = looks[-1]
    earlier = finite_values([p for p in reward if p[0] <= best_step])[-limits.window :]
    later = _recent([p for p in reward if p[0] > best_step], limits.window)
    if not earlier or later is None or best - now <= max_loss:
        return
    gain = later - sum(earlier) / len(earlier)
    if gain > limits.hacking_gain:
        yield Alarm(
            "reward_hacking",
            stage,
            step,
            best - now,
            max_loss,
            f"since step {best_step} the reward{' of ' + domain if domain else ''} rose by "
            f"{gain:.3g} while the screen score fell by {best - now:.3g}: the policy learns the "
            "grader or the training tasks, not the skill. Read samples with high reward; stop at "
            "the best checkpoint",
            domain,
        )


def _trailing_means(series: Series, size: int) -> Series:
    """Return the mean of each ``size`` successive finite values, at the step of the last one."""
    points = [(step, value) for step, value in series if math.isfinite(value)]
    return [
        (points[i][0], sum(value for _, value in points[i + 1 - size : i + 1]) / size)
        for i in range(size - 1, len(points))
    ]


def trivial_groups(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Nearly all groups are all right or all wrong: steps train on nothing."""
    right = dict(history.overall(stage, "trivial_right"))
    wrong = dict(history.overall(stage, "trivial_wrong"))
    steps = sorted(set(right) | set(wrong))
    series = [(s, right.get(s, 0.0) + wrong.get(s, 0.0)) for s in steps]
    recent = _recent(series, limits.window)
    if recent is None or limits.trivial is None or recent < limits.trivial:
        return
    share_right = _recent([(s, right.get(s, 0.0)) for s in steps], limits.window) or 0.0
    side = "too easy" if share_right > recent / 2 else "too hard"
    yield Alarm(
        "trivial_groups",
        stage,
        steps[-1],
        recent,
        limits.trivial,
        f"{recent:.0%} of the groups have equal scores ({share_right:.0%} all right): no "
        f"advantage, no learning. The tasks are {side} for this policy; change levels or domain "
        "weights (educe probe measures them), or raise the group size",
    )


def unscored_share(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Too many samples could not be judged."""
    if limits.unscored is None:
        return
    for domain in ("", *history.domains(stage)):
        if domain:
            series = history.domain(stage, domain, "unscored")
        else:
            series = history.overall(stage, "unscored")
        recent = _recent(series, limits.window)
        if recent is not None and recent > limits.unscored:
            yield Alarm(
                "unscored",
                stage,
                series[-1][0],
                recent,
                limits.unscored,
                f"{recent:.0%} of the samples{' of ' + domain if domain else ''} have no score "
                f"(limit {limits.unscored:.0%}): the grader, judge or sandbox fails. They are left "
                "out of the loss; their reasons: educe runs samples RUN --verdict unscored",
                domain,
            )


def non_finite(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Steps were skipped, or metrics are not numbers."""
    series = history.overall(stage, "skipped")
    num_skipped = sum(value > 0 for _, value in series[-limits.window :])
    if limits.skipped is not None and num_skipped >= limits.skipped:
        yield Alarm(
            "non_finite",
            stage,
            series[-1][0],
            num_skipped,
            limits.skipped,
            f"{num_skipped} of the last {min(len(series), limits.window)} steps had a non-finite "
            "gradient and were skipped; their batches are kept in the run folder. Lower the "
            "learning rate, or check rewards and log-probabilities of the kept batch",
        )
    last = history.last(stage)
    bad = [] if last is None else [n for n, v in last.values.items() if not math.isfinite(v)]
    bad = [n for n in bad if n.startswith(f"{stage}/")]
    if last is not None and bad:
        yield Alarm(
            "non_finite_metric",
            stage,
            last.step,
            float(len(bad)),
            0.0,
            f"not a finite number: {', '.join(sorted(bad)[:5])}. Look at the step's samples and at "
            "the kept batch, if the step was skipped",
        )


def engine_mismatch(history: History, stage: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Engine and trainer disagree about the probability of the very same tokens."""
    series = history.overall(stage, "mismatch")
    values = finite_values(series)
    if limits.mismatch is None or not values or values[-1] <= limits.mismatch:
        return
    yield Alarm(
        "engine_mismatch",
        stage,
        series[-1][0],
        values[-1],
        limits.mismatch,
        f"engine and trainer differ by {values[-1]:.3g} in the probability of sampled tokens "
        f"(limit {limits.mismatch:g}): old weights in the engine, another precision, or tokens "
        "changed by a template. Check that weights were published after the last step",
    )


Check = Callable[[History, str, AlarmLimits], Iterator[Alarm]]

CHECKS: tuple[Check, ...] = (
    entropy_collapse,
    kl_blow_up,
    reward_hacking,
    trivial_groups,
    unscored_share,
    non_finite,
    engine_mismatch,
)


def check_alarms(history: History, stage: str, limits: AlarmLimits | None = None) -> list[Alarm]:
    """Return every alarm that the history of a stage raises at its last step."""
    limits = limits or AlarmLimits()
    return [alarm for check in CHECKS for alarm in check(history, stage, limits)]


_WATCHED_OF_DOMAINS = ("screen_score", "reward", "score", "unscored")


class AlarmWatch:
    """Runs the checks at each row; an alarm is raised again only after it had gone away.

    Args:
        capacity: steps of history that are kept (memory stays flat over a long run).
    """

    def __init__(self, limits: AlarmLimits | None = None, *, capacity: int = 200) -> None:
        self._limits = limits or AlarmLimits()
        self._history = History(capacity=capacity)
        self._active: set[tuple[str, str, str]] = set()

    def observe(self, row: MetricRow) -> list[Alarm]:
        """Take a row in; return the alarms that are new with it."""
        values = without_domains_but(row.values, _WATCHED_OF_DOMAINS)
        self._history.add(dataclasses.replace(row, values=values))
        alarms = check_alarms(self._history, row.stage, self._limits)
        new = [alarm for alarm in alarms if alarm.key not in self._active]
        others = {key for key in self._active if key[1] != row.stage}
        self._active = others | {alarm.key for alarm in alarms}
        return new
