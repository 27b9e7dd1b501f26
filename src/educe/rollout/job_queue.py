"""Waiting jobs, a lane a domain: whose turn it is follows ``scheduling.resources``."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from educe.scheduling.resources import FairShare, RunningJob, spared_domains


class QueuedJob(Protocol):
    """What the queue must know of a job."""

    @property
    def domain(self) -> str: ...


J = TypeVar("J", bound=QueuedJob)


@dataclass(slots=True)
class JobQueue(Generic[J]):
    """Jobs of one domain leave in their order; domains share the workers' time."""

    fair: FairShare = field(default_factory=FairShare)
    _lanes: dict[str, deque[J]] = field(default_factory=dict)  # none of them is empty

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def add(self, job: J, *, is_again: bool = False) -> None:
        """Queue a job; one that is tried again goes before those of its domain."""
        lane = self._lanes.setdefault(job.domain, deque())
        if is_again:
            lane.appendleft(job)
        else:
            lane.append(job)
        self.fair.arrive(job.domain)

    def discard(self, job: J) -> None:
        """Take a job back, if it is still waiting."""
        lane = self._lanes.get(job.domain, deque())
        if job in lane:
            lane.remove(job)
            self._close_empty(job.domain)
            self.fair.leave(job.domain)

    def take(self, running: Collection[RunningJob]) -> J:
        """Return the next job for a free worker; the queue must not be empty."""
        return self._take_of(list(self._lanes), running)

    def take_spared(self, running: Collection[RunningJob]) -> J | None:
        """Return the next job for the spare worker, None when nobody needs it."""
        spared = self.spared(running)
        return self._take_of(spared, running) if spared else None

    def spared(self, running: Collection[RunningJob]) -> list[str]:
        """Return the domains that wait behind long jobs of others."""
        return spared_domains(list(running), self._lanes)

    def done(self, domain: str, seconds: float) -> None:
        """Count a job that left ``take`` and has ended, whatever came of it."""
        self.fair.charge(domain, seconds)
        self.fair.leave(domain)

    def _take_of(self, domains: Collection[str], running: Collection[RunningJob]) -> J:
        taken: dict[str, float] = {}
        for job in running:
            seconds = max(job.seconds, self.fair.expected(job.domain))
            taken[job.domain] = taken.get(job.domain, 0.0) + seconds
        domain = self.fair.next(domains, taken)
        job = self._lanes[domain].popleft()
        self._close_empty(domain)
        return job

    def _close_empty(self, domain: str) -> None:
        if not self._lanes[domain]:
            del self._lanes[domain]
