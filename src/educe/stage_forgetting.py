"""The forgetting guard at work: looks, trials on fresh tasks, and what follows an alarm.

Rank 0 looks and judges, the others follow its orders. Screen tasks are never trained on; those of
trials are never looked at otherwise, so that a trial is not a second look at what made it suspect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.config.balance_settings import ForgettingSettings
from educe.core.errors import CheckpointError
from educe.core.protocols import MetricRow, Recorder
from educe.core.types import JSON, Group, Split, TaskRequest
from educe.scheduling.forgetting import Action, Alarm, ForgettingGuard, Tally
from educe.session import Announce, Session
from educe.trainers.guards import Finding

if TYPE_CHECKING:
    from educe.trainers.rehearsal import Rehearsal
    from educe.trainers.step import TrainerState

FORMAT_VERSION = 1
# Where trials take their tasks from, in an endless split; nothing else goes there.
_FRESH = 1_000_000
# Looks that are pooled before a domain is suspected, and that pass after a trial of it.
_POOLED = 3


@dataclass(slots=True)
class ForgettingWatch:
    """Watches one stage.

    Args:
        domains: that are watched, sorted.
        file: where what the start was and sampled is kept, RUN/forgetting/STAGE.json.
        rehearsal: holds the kept completions, and trains on them when told to.
        raise_share: multiplies a domain's weight in the mixture.
    """

    settings: ForgettingSettings
    stage: str
    domains: Sequence[str]
    session: Session
    state: TrainerState
    recorder: Recorder
    announce: Announce
    file: Path
    rehearsal: Rehearsal
    raise_share: Callable[[str, float], None]
    guard: ForgettingGuard = field(init=False)
    start: dict[str, Tally] = field(init=False, default_factory=dict)
    looked_at: int = field(init=False, default=0)
    num_looks: int = field(init=False, default=0)
    _pools: dict[str, list[tuple[float, int]]] = field(init=False, default_factory=dict)
    _quiet_until: dict[str, int] = field(init=False, default_factory=dict)
    _num_fresh: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.guard = ForgettingGuard(
            self.settings.margin,
            self.settings.kl_limit,
            self.settings.level,
            tuple(Action(a) for a in self.settings.actions),
        )

    # The start

    def begin(self, *, is_fresh: bool) -> None:
        """Measure the start and keep what it samples, once; a resumed stage reads it again.

        Args:
            is_fresh: the weights are the start's.

        Raises:
            CheckpointError: the stage has made steps, and its file is gone or of another format.
        """
        raw = None
        if self.state.collectives.rank == 0:
            if self.file.exists():
                raw = self._read()
            elif not is_fresh:
                raise CheckpointError(
                    f"{self.file} is gone: what the stage's start could do is not known any more. "
                    "Put it back, or continue with forgetting.every = 0"
                )
            else:
                raw = self._measure_start()
        raw = self.state.collectives.broadcast(raw)
        self.start = {d: Tally(float(m), int(n)) for d, (m, n) in raw["start"].items()}
        self.domains = [d for d in self.domains if d in self.start]
        self.rehearsal.load(raw["kept"])

    def _read(self) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        if raw.get("format") != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.file} has format {raw.get('format')!r}, expected {FORMAT_VERSION}: it was "
                "written by another educe; continue with that one, or with forgetting.every = 0"
            )
        unknown = sorted(set(self.domains) - set(raw["start"]))
        if unknown:
            self.announce(
                f"{self.stage}: {', '.join(unknown[:3])} joined after the stage's start, so what "
                f"it forgets is not watched ({len(unknown)} domains)"
            )
        return raw

    def _measure_start(self) -> dict[str, Any]:
        from educe.trainers.rehearsal import keep_groups

        self.announce(f"{self.stage}: measuring what the start can do, {len(self.domains)} domains")
        found = self._scores(
            {d: self._look_indices(d, 0, self.settings.start_tasks) for d in self.domains}
        )
        kept: dict[str, JSON] = {}
        if self.settings.replay:
            groups = list(self.session.run_requests(self._replay_requests()))
            groups.sort(key=lambda g: g.request.request_id)
            self.rehearsal.kept = keep_groups(self.state, groups)
            kept = self.rehearsal.to_json()
        raw = {
            "format": FORMAT_VERSION,
            "start": {d: [t.mean, t.count] for d, t in sorted(found.items())},
            "kept": kept,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        beside = self.file.with_suffix(".part")
        beside.write_text(json.dumps(raw), encoding="utf-8")
        beside.replace(self.file)
        self.recorder.record_event(
            "forgetting_start",
            {"stage": self.stage, "scores": {d: t.mean for d, t in sorted(found.items())}},
        )
        return self._read()

    def _replay_requests(self) -> list[TaskRequest]:
        """One sampled completion of each of the first training tasks."""
        requests: list[TaskRequest] = []
        for name in self.domains:
            size = self.session.domains[name].size(Split.TRAIN)
            for index in range(min(self.settings.replay, size or self.settings.replay)):
                requests.append(self._request(len(requests), name, Split.TRAIN, index, 1.0))
        return requests

    # Looks

    def is_due(self, steps_done: int) -> bool:
        """Return whether it is time for a look that was not taken yet; the same on every rank."""
        every = self.settings.every
        is_time = steps_done > 0 and steps_done % every == 0
        return is_time and self.looked_at < steps_done and bool(self.domains)

    def look(self, steps_done: int) -> Finding | None:
        """Look, try suspects, act; return what the stability guard is to go back for.

        Everything but going back has been done, on every rank, when this returns.
        """
        alarms: list[Alarm] = []
        if self.state.collectives.rank == 0:
            alarms = self._alarms(steps_done)
        orders = self.state.collectives.broadcast(
            [[a.domain, a.fall, a.p_value, str(a.action)] for a in alarms]
        )
        self.looked_at = steps_done
        back = None
        for domain, fall, p_value, action in orders:
            alarm = Alarm(domain, fall, p_value, Action(action))
            told = self._act(alarm)
            if alarm.action is Action.ROLL_BACK and back is None:
                back = self._finding(alarm)
            if self.state.collectives.rank == 0:
                self._tell(steps_done, alarm, told)
        return back

    def _alarms(self, steps_done: int) -> list[Alarm]:
        looked = self._turn()
        first = self.num_looks * self.settings.tasks
        found = self._scores({d: self._look_indices(d, first, self.settings.tasks) for d in looked})
        kl = self.rehearsal.kl_to_start(self.state, looked)
        self.num_looks += 1
        for domain, tally in found.items():
            pool = [*self._pools.get(domain, []), (tally.mean, tally.count)]
            self._pools[domain] = pool[-_POOLED:]
        is_heard = {d: self._quiet_until.get(d, 0) <= self.num_looks for d in looked}
        suspects = self.guard.suspects(
            self.start,
            {d: _pooled(self._pools[d]) for d in found if is_heard[d]},
            {d: v for d, v in kl.items() if is_heard[d]},
        )
        self._record_look(steps_done, found, kl, suspects)
        for domain in suspects:
            self._pools[domain] = []
            self._quiet_until[domain] = self.num_looks + _POOLED
        tried = [self._tried(domain, steps_done) for domain in suspects]
        return [alarm for alarm in tried if alarm is not None]

    def _turn(self) -> list[str]:
        """The domains of this look: all of them, or the next ones in turn."""
        count = len(self.domains)
        size = min(count, self.settings.at_once)
        first = self.num_looks * size
        return sorted({self.domains[(first + i) % count] for i in range(size)})

    def _tried(self, domain: str, steps_done: int) -> Alarm | None:
        """Try a suspect on fresh tasks; None too where there are none left."""
        indices = self._fresh_indices(domain)
        told = {"stage": self.stage, "step": steps_done, "domain": domain, "tasks": len(indices)}
        if not indices:
            self.recorder.record_event("forgetting_untried", told)
            return None
        self._num_fresh[domain] = self._num_fresh.get(domain, 0) + len(indices)
        fresh = self._scores({domain: indices})[domain]
        alarm = self.guard.judge(domain, self.start[domain], fresh)
        told |= {"score": fresh.mean, "start": self.start[domain].mean, "proven": alarm is not None}
        self.recorder.record_event("forgetting_trial", told)
        return alarm

    def _record_look(
        self,
        steps_done: int,
        found: Mapping[str, Tally],
        kl: Mapping[str, float],
        suspects: Sequence[str],
    ) -> None:
        values = {f"domain/{d}/watch_score": t.mean for d, t in found.items() if t.count}
        values |= {f"domain/{d}/start_kl": v for d, v in kl.items()}
        if values:
            self.recorder.record_metrics(MetricRow(self.stage, steps_done - 1, values))
        self.recorder.record_event(
            "forgetting_look",
            {
                "stage": self.stage,
                "step": steps_done,
                "looked": len(found),
                "suspects": ", ".join(suspects),
                "scores": {d: t.mean for d, t in found.items()},
                "kl": dict(kl),
            },
        )

    # What follows

    def _act(self, alarm: Alarm) -> str:
        """Do what an alarm asks for, but for going back; return it in words."""
        action, domain = alarm.action, alarm.domain
        if action is Action.RAISE_SHARE:
            self.raise_share(domain, self.settings.raise_by)
            return f"its weight is multiplied by {self.settings.raise_by:g}"
        if action in (Action.ADD_REPLAY, Action.ADD_ANCHOR):
            term = action.value.removeprefix("add_")
            if self.rehearsal.start(domain, term):
                return f"what the start sampled of it is trained on from here on ({term})"
            return f"nothing usable was kept of it, so no {term} is possible"
        if action is Action.ROLL_BACK:
            return "the stage goes back to the last good checkpoint"
        return "nothing is done about it (forgetting.actions)"

    def _finding(self, alarm: Alarm) -> Finding:
        return Finding("forgetting", alarm.fall, self.settings.margin, self._cause(alarm))

    def _cause(self, alarm: Alarm) -> str:
        start = self.start[alarm.domain].mean
        return (
            f"{alarm.domain} has forgotten: {start - alarm.fall:.3g} on fresh tasks, {start:.3g} "
            f"at the stage's start (p = {alarm.p_value:.2g} for a fall within forgetting.margin = "
            f"{self.settings.margin:g})"
        )

    def _tell(self, steps_done: int, alarm: Alarm, done: str) -> None:
        cause = f"{self._cause(alarm)}; {done}"
        self.announce(f"{self.stage} step {steps_done - 1}: {cause}")
        if alarm.action is not Action.ROLL_BACK:  # that one is the stability guard's to tell
            self.recorder.record_event(
                "alarm",
                {
                    "kind": "forgetting",
                    "stage": self.stage,
                    "step": steps_done - 1,
                    "domain": alarm.domain,
                    "value": alarm.fall,
                    "limit": self.settings.margin,
                    "action": str(alarm.action),
                    "cause": cause,
                },
            )

    # Measuring

    def _look_indices(self, domain: str, first: int, count: int) -> list[int]:
        """Screen tasks for looks: of a finite split its first half, in rotation."""
        size = self.session.domains[domain].size(Split.SCREEN)
        if size is None:
            return [(first + i) % _FRESH for i in range(count)]
        half = size - size // 2
        return [(first + i) % half for i in range(min(count, half))]

    def _fresh_indices(self, domain: str) -> list[int]:
        """Screen tasks that nothing has used yet: of a finite split its second half, once."""
        done, count = self._num_fresh.get(domain, 0), self.settings.trial_tasks
        size = self.session.domains[domain].size(Split.SCREEN)
        first = _FRESH if size is None else size - size // 2
        end = math.inf if size is None else size
        return [i for i in range(first + done, first + done + count) if i < end]

    def _scores(self, indices: Mapping[str, Sequence[int]]) -> dict[str, Tally]:
        """Return greedy scores, cut to [0, 1]; unscored answers do not count."""
        requests: list[TaskRequest] = []
        for domain, own in sorted(indices.items()):
            for index in own:
                requests.append(self._request(len(requests), domain, Split.SCREEN, index, 0.0))
        values: dict[str, list[float]] = {domain: [] for domain in indices}
        groups: list[Group] = list(self.session.run_requests(requests)) if requests else []
        for group in sorted(groups, key=lambda g: g.request.request_id):
            value = group.trajectories[0].score.value
            if value is not None:
                values[group.request.domain].append(min(1.0, max(0.0, value)))
        return {
            d: Tally(sum(own) / len(own) if own else math.nan, len(own))
            for d, own in values.items()
        }

    def _request(
        self, number: int, domain: str, split: Split, index: int, temperature: float
    ) -> TaskRequest:
        spec, own = self.session.domains[domain].spec, self.session.limits.get(domain)
        tokens = own.max_completion_tokens if own is not None else None
        turns = own.max_turns if own is not None else None
        return TaskRequest(
            number,
            domain,
            split,
            index,
            num_samples=1,
            temperature=temperature,
            max_completion_tokens=tokens or spec.max_completion_tokens,
            max_turns=turns or spec.max_turns,
        )

    # State

    def progress(self) -> dict[str, JSON]:
        """Return everything that later looks depend on, as JSON (the mixture keeps raised weights,
        the rehearsal what is trained on)."""
        return {
            "looked_at": self.looked_at,
            "num_looks": self.num_looks,
            "guard": self.guard.state(),
            "pools": {d: [list(t) for t in p] for d, p in sorted(self._pools.items())},
            "quiet_until": dict(sorted(self._quiet_until.items())),
            "num_fresh": dict(sorted(self._num_fresh.items())),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from :meth:`progress`; an empty one is a fresh start."""
        if not saved:
            return
        self.looked_at = int(saved["looked_at"])
        self.num_looks = int(saved["num_looks"])
        self.guard.restore(saved["guard"])
        self._pools = {d: [(float(m), int(n)) for m, n in p] for d, p in saved["pools"].items()}
        self._quiet_until = {d: int(n) for d, n in saved["quiet_until"].items()}
        self._num_fresh = {d: int(n) for d, n in saved["num_fresh"].items()}


def _pooled(looks: Sequence[tuple[float, int]]) -> Tally:
    count = sum(n for _, n in looks)
    total = sum(mean * n for mean, n in looks if n)
    return Tally(total / count if count else math.nan, count)
