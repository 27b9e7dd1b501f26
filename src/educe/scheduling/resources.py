"""Who is served next where several domains share workers, planned from measured rates.

A worker cannot be taken away from a job, so two things keep a slow sandbox or judge from starving
the rest: every domain with work gets an equal part of the workers' *time* (start-time fair
queueing, Goyal, Vin and Chen 1996, with measured seconds a job as the expected length), and when
long jobs hold every worker, one spare worker serves the domains that wait behind them.

Nothing here changes what a job returns, only when: results are consumed in the order of issue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

# What a job of a domain lasts: a mean in which each job counts this part.
_RECENT = 0.2
# A job that has run for so long is long: others need not wait for its end.
LONG_S = 0.5


@dataclass(slots=True)
class FairShare:
    """Worker seconds that each domain has had, and whose turn it is.

    A domain that comes back after a pause starts level with the others: nobody saves up time.
    """

    seconds_a_job: dict[str, float] = field(default_factory=dict)
    _used: dict[str, float] = field(default_factory=dict)
    _active: dict[str, int] = field(default_factory=dict)
    _clock: float = 0.0

    def arrive(self, domain: str) -> None:
        """Count a job that waits."""
        if not self._active.get(domain):
            self._used[domain] = max(self._used.get(domain, 0.0), self._clock)
        self._active[domain] = self._active.get(domain, 0) + 1

    def leave(self, domain: str) -> None:
        """Count a job that has ended or was taken back."""
        self._active[domain] -= 1

    def next(self, waiting: Collection[str], running: Mapping[str, float]) -> str:
        """Return the domain whose job is to start: of those waiting, the one served least.

        Args:
            waiting: domains with a waiting job, at least one, in their order of arrival.
            running: seconds that running jobs of a domain have taken so far, summed.
        """
        chosen = min(waiting, key=lambda d: self._used[d] + running.get(d, 0.0))
        self._clock = max(self._clock, self._used[chosen])
        return chosen

    def charge(self, domain: str, seconds: float) -> None:
        """Count what a job took, and learn what jobs of its domain take."""
        self._used[domain] = self._used.get(domain, 0.0) + seconds
        known = self.seconds_a_job.get(domain, seconds)
        self.seconds_a_job[domain] = known + _RECENT * (seconds - known)

    def expected(self, domain: str) -> float:
        """Return the mean seconds of a domain's jobs, 0 while none has ended."""
        return self.seconds_a_job.get(domain, 0.0)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in a worker: its domain and the seconds since its start."""

    domain: str
    seconds: float


def spared_domains(running: Sequence[RunningJob], waiting: Collection[str]) -> list[str]:
    """Return the waiting domains that a spare worker should serve.

    None while a worker will soon be free: only where every running job is a long one. A domain
    that holds a worker has its part and does not get the spare one too.
    """
    if not running or any(job.seconds < LONG_S for job in running):
        return []
    holding = {job.domain for job in running}
    return [domain for domain in waiting if domain not in holding]


def planned_workers(
    jobs: Mapping[str, float], seconds_a_job: Mapping[str, float], num_workers: int
) -> dict[str, float]:
    """Return the workers that each domain keeps busy while all have work, as fair queueing shares
    them: equal parts of the time, what one does not need going to the others.

    Args:
        jobs: jobs a second that each domain asks for.
        seconds_a_job: measured; together they are the workers that a domain could keep busy.
    """
    need = {d: jobs[d] * seconds_a_job.get(d, 0.0) for d in jobs}
    given: dict[str, float] = {}
    left, open_domains = float(num_workers), sorted(need, key=lambda d: (need[d], d))
    while open_domains:
        domain = open_domains.pop(0)
        given[domain] = min(need[domain], left / (len(open_domains) + 1))
        left -= given[domain]
    return given


class Standing(Enum):
    """Where a trajectory is: not counted, at the engine, or at its environment or scorer."""

    OUT = auto()
    SAMPLING = auto()
    WAITING = auto()


@dataclass(slots=True)
class Admission:
    """How many trajectories may be open, so that those that wait for a score hold up nobody.

    What waits for a sandbox or judge keeps no engine busy: it counts against its own domain's
    limit, not against what may sample.

    Attributes:
        max_sampling: trajectories that wait for or take part in sampling.
        max_open: all trajectories, for memory.
    """

    max_sampling: int
    max_open: int
    _sampling: int = 0
    _waiting: dict[str, int] = field(default_factory=dict)

    @property
    def num_open(self) -> int:
        return self._sampling + sum(self._waiting.values())

    @property
    def is_full(self) -> bool:
        """Whether nobody at all has room."""
        if not self.num_open:
            return False
        return self._sampling >= self.max_sampling or self.num_open >= self.max_open

    def has_room(self, domain: str, count: int) -> bool:
        """Whether ``count`` trajectories of a domain may start; one group always may."""
        if not self.num_open:
            return True
        return (
            self._sampling + count <= self.max_sampling
            and self.num_open + count <= self.max_open
            and self._waiting.get(domain, 0) + count <= self.max_sampling
        )

    def move(self, domain: str, before: Standing, after: Standing) -> None:
        """Count a trajectory of a domain from one standing to another."""
        for standing, step in ((before, -1), (after, 1)):
            if standing is Standing.SAMPLING:
                self._sampling += step
            elif standing is Standing.WAITING:
                self._waiting[domain] = self._waiting.get(domain, 0) + step

    def clear(self) -> None:
        """Count everything out."""
        self._sampling = 0
        self._waiting.clear()
