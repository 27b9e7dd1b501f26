"""The forgetting guard's decisions: who is suspected, who has really forgotten, what is done.

Looking often at a few tasks makes false alarms certain, so there are two stages. A cheap look (the
score on a rotating screen, the KL to the start on a replay set) only makes a domain *suspect*. A
suspect is tried on fresh tasks, once, against its score there at the start; only that can be an
alarm, at a level that is shared among all trials of the run (trial n has 6 / (pi n)^2 of it, which
adds up to 1), so the chance of any false alarm in the whole run stays below the level.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from educe.core.types import JSON


class Action(StrEnum):
    """What a recipe may ask for when a domain has forgotten."""

    TELL = "tell"
    RAISE_SHARE = "raise_share"
    ADD_REPLAY = "add_replay"
    ADD_ANCHOR = "add_anchor"
    ROLL_BACK = "roll_back"


def watched(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the sorted names that a pattern matches; all of them where there is no pattern."""
    return sorted(
        n for n in names if not patterns or any(fnmatch.fnmatchcase(n, p) for p in patterns)
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """Outcomes of tasks: mean score in [0, 1] and how many."""

    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A domain that has forgotten, by how much, how sure, and what is done."""

    domain: str
    fall: float
    p_value: float
    action: Action


@dataclass(slots=True)
class ForgettingGuard:
    """Decides over looks and trials; does no scoring itself.

    Args:
        margin: fall of the score that is tolerated.
        kl_limit: KL to the start on the replay set, nats a token, that is suspect; 0 looks at
            scores only.
        level: chance of any false alarm in the whole run.
        actions: what is done at a domain's first, second ... alarm; the last one repeats.
    """

    margin: float = 0.05
    kl_limit: float = 0.0
    level: float = 0.05
    actions: tuple[Action, ...] = (Action.RAISE_SHARE, Action.ADD_REPLAY)
    num_trials: int = 0
    _alarms: dict[str, int] = field(default_factory=dict)

    def suspects(
        self,
        start: Mapping[str, Tally],
        now: Mapping[str, Tally],
        kl: Mapping[str, float] | None = None,
    ) -> list[str]:
        """Return domains whose look is bad enough to pay for a trial, the worst first.

        A fall counts once it is more likely than not beyond the margin, with one standard error to
        spare; nothing is concluded from it.
        """
        found = {}
        for domain in sorted(set(start) & set(now)):
            before, after = start[domain], now[domain]
            fall = before.mean - after.mean - self.margin
            error = _standard_error(before, after)
            if before.count and after.count and fall > error:
                found[domain] = fall / error
        for domain, nats in sorted((kl or {}).items()):
            if self.kl_limit and nats > self.kl_limit:
                found[domain] = max(found.get(domain, 0.0), nats / self.kl_limit)
        return sorted(found, key=lambda d: (-found[d], d))

    def judge(self, domain: str, start: Tally, fresh: Tally) -> Alarm | None:
        """Return the alarm of one trial on fresh tasks, or None when it is not proven.

        Args:
            start: the starting model on tasks of the same kind.
            fresh: the model now, on tasks that no look has used.
        """
        self.num_trials += 1
        fall = start.mean - fresh.mean
        error = _standard_error(start, fresh)
        p_value = 0.5 * math.erfc((fall - self.margin) / error / math.sqrt(2.0))
        if not (start.count and fresh.count) or p_value > self._level_of(self.num_trials):
            return None
        number = self._alarms.get(domain, 0)
        self._alarms[domain] = number + 1
        action = self.actions[min(number, len(self.actions) - 1)]
        return Alarm(domain, fall, p_value, action)

    def trial_size(self, fall: float, power: float = 0.8) -> int:
        """Return the tasks a side with which a true ``fall`` is seen in the next trial.

        From the normal approximation at the most variable score (a half).
        """
        if fall <= self.margin:
            raise ValueError(f"a fall of {fall} is within the margin of {self.margin}")
        needed = _quantile(1.0 - self._level_of(self.num_trials + 1)) + _quantile(power)
        return math.ceil(0.5 * (needed / (fall - self.margin)) ** 2)

    def _level_of(self, trial: int) -> float:
        return self.level * 6.0 / (math.pi * trial) ** 2

    def state(self) -> JSON:
        return {"num_trials": self.num_trials, "alarms": dict(sorted(self._alarms.items()))}

    def restore(self, state: Mapping[str, JSON]) -> None:
        self.num_trials = int(state["num_trials"])
        self._alarms = {d: int(n) for d, n in state["alarms"].items()}


def _standard_error(one: Tally, two: Tally) -> float:
    """Of the difference of two means; one success and one failure are added to each (Agresti)."""
    total = 0.0
    for tally in (one, two):
        count = tally.count + 2
        mean = (tally.mean * tally.count + 1.0) / count
        total += mean * (1.0 - mean) / count
    return math.sqrt(total)


def _quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)
