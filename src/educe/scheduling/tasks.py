"""Which task of a finite domain comes next: tasks predicted to teach nothing are passed over.

Each task that was tried has a Beta posterior of its success. A group of G whose samples are all
right or all wrong has no group-relative advantage, so before rollouts are paid for, the probability
of a mixed group is computed from the posterior: 1 - E[p^G] - E[(1 - p)^G]. Tasks below the
threshold are skipped and revisited every few rounds, since the policy moves on. Unbounded domains
never repeat a task: for them the mixture's estimate of the domain's signal does the same job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.types import JSON

# About 100 bytes each in a checkpoint.
MAX_TRACKED = 60_000
# What was seen of a task counts half at its next visit: the policy has moved.
_FADE = 0.5
_PRIOR = 0.5


def mixed_probability(right: float, wrong: float, group_size: int) -> float:
    """Return the probability that a group is neither all right nor all wrong.

    Args:
        right, wrong: parameters of the task's Beta posterior, > 0.
    """
    base = math.lgamma(right) + math.lgamma(wrong) - math.lgamma(right + wrong)

    def log_moment(a: float, b: float) -> float:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b) - base

    same = math.exp(log_moment(right + group_size, wrong))
    same += math.exp(log_moment(right, wrong + group_size))
    return max(0.0, 1.0 - same)


@dataclass(slots=True)
class TaskChooser:
    """Chooses task positions of finite domains.

    Args:
        sizes: training tasks by domain; None is unbounded.
        group_size: completions a task.
        threshold: least predicted probability of a mixed group; 0 skips nothing.
        revisit: rounds over the domain after which a skipped task is tried again.
        max_tracked: tasks whose posterior is kept, over all domains; the longest unvisited leave.
        skipped: tasks passed over, by domain: how far the cursor is ahead of the orders.
        saved: of those, the ones on the way to a task with signal.
    """

    sizes: Mapping[str, int | None]
    group_size: int
    threshold: float = 0.2
    revisit: int = 4
    max_tracked: int = MAX_TRACKED
    skipped: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    # (domain, index): successes, failures, round of the last visit; the longest unvisited first.
    _seen: dict[tuple[str, int], tuple[float, float, int]] = field(default_factory=dict)

    def next_index(self, domain: str, issued: int) -> int:
        """Return the task to order next.

        Args:
            issued: orders that the domain has had (the ledger's cursor).
        """
        size = self.sizes.get(domain)
        if size is None:
            return issued
        for passed in range(size):
            place, index = divmod(issued + self.skipped.get(domain, 0), size)
            if self._is_worth(domain, index, place):
                self.saved[domain] = self.saved.get(domain, 0) + passed
                return index
            self.skipped[domain] = self.skipped.get(domain, 0) + 1
        return (issued + self.skipped.get(domain, 0)) % size

    def observe(self, domain: str, index: int, scores: Sequence[float], issued: int) -> None:
        """Take in a group's scores in [0, 1] (unscored ones left out).

        Args:
            issued: the domain's orders so far; they date the visit.
        """
        size = self.sizes.get(domain)
        if size is None or not scores:
            return
        right, wrong, _ = self._seen.pop((domain, index), (0.0, 0.0, 0))
        gained = math.fsum(min(1.0, max(0.0, s)) for s in scores)
        visit = (issued + self.skipped.get(domain, 0)) // size
        self._seen[domain, index] = (
            right * _FADE + gained,
            wrong * _FADE + len(scores) - gained,
            visit,
        )
        while len(self._seen) > self.max_tracked:
            del self._seen[next(iter(self._seen))]

    def predicted_signal(self, domain: str, index: int) -> float:
        """Return the probability that a group of this task is mixed; 1 where nothing is known."""
        seen = self._seen.get((domain, index))
        if seen is None:
            return 1.0
        return mixed_probability(seen[0] + _PRIOR, seen[1] + _PRIOR, self.group_size)

    def _is_worth(self, domain: str, index: int, place: int) -> bool:
        seen = self._seen.get((domain, index))
        if seen is None or place - seen[2] >= self.revisit:
            return True
        return self.predicted_signal(domain, index) >= self.threshold

    @property
    def num_saved(self) -> int:
        """Groups without signal that tasks in turn would have paid for, to come to those that were
        ordered instead. Where no task of a domain is worth a group, nothing is saved: one is paid
        for all the same."""
        return sum(self.saved.values())

    def state(self) -> JSON:
        return {
            "skipped": dict(self.skipped),
            "saved": dict(self.saved),
            "seen": [[d, i, *values] for (d, i), values in self._seen.items()],
        }

    def restore(self, state: Mapping[str, JSON]) -> None:
        """Continue from a saved state; domains that are gone are forgotten."""
        self.skipped = {d: int(n) for d, n in state["skipped"].items() if d in self.sizes}
        self.saved = {d: int(n) for d, n in state.get("saved", {}).items() if d in self.sizes}
        self._seen = {
            (d, int(i)): (float(right), float(wrong), int(visit))
            for d, i, right, wrong, visit in state["seen"]
            if d in self.sizes
        }
