"""Finished groups wait here until it is their turn: consumption is in the order of issue.

Arrival order, which depends on lengths, machines and chance, never decides what a batch holds:
short groups cannot overtake long ones, so no length bias, and a run is repeatable. Synchronous
training is the same buffer with staleness 0: issue one batch, wait for all of it, train.

The staleness bound holds by construction: ``Ledger.capacity`` lets at most ``(max_staleness + 1)``
batches be open, and each version consumes the oldest batch, so the k-th open order is trained at
most ``k // batch_size`` versions after it was issued. The check in ``next_batch`` is for what
arithmetic cannot know (a resume at another version); what it drops is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from educe.core.errors import CheckpointError
from educe.core.types import JSON, Group, TaskRequest
from educe.rollout.ledger import Ledger, LedgerError

STATE_FORMAT = 1


def oldest_version(group: Group) -> int | None:
    """Return the oldest policy version that sampled a token of the group; None without tokens."""
    versions = [
        version
        for trajectory in group.trajectories
        for turn in trajectory.turns
        for version in turn.policy_versions
    ]
    return min(versions, default=None)


def staleness(group: Group, version: int) -> int:
    """Return how many versions the group's oldest token lags behind ``version``."""
    oldest = oldest_version(group)
    return 0 if oldest is None else version - oldest


class GroupBuffer:
    """Holds scored groups until the optimizer has used them. Call it from one thread.

    Args:
        ledger: the owner of the order; every change of standing goes through it.
        batch_size: groups that one version consumes.
        max_staleness: versions that a group may lag behind when it is trained on.
        reject: returns why a group is not worth a place in the batch, or an empty string (e.g.
            all-equal scores, when trivial groups shall not count); rejected groups are dropped.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        batch_size: int,
        max_staleness: int = 0,
        reject: Callable[[Group], str] | None = None,
    ) -> None:
        if batch_size < 1 or max_staleness < 0:
            raise ValueError(
                f"a buffer needs batch_size >= 1 and max_staleness >= 0, got {batch_size} and "
                f"{max_staleness}"
            )
        self.ledger = ledger
        self.batch_size = batch_size
        self.max_staleness = max_staleness
        self.num_duplicates = 0
        self._reject = reject
        self._groups: dict[int, Group] = {}
        self._dropped: list[tuple[Group, str]] = []

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group) -> bool:
        """Take a finished group, in any order of arrival.

        Returns:
            False for a second copy (a worker thought dead that delivered after all): it is
            counted and forgotten.

        Raises:
            LedgerError: the group was never ordered, or is not what was ordered.
        """
        request_id = group.request.request_id
        if not self.ledger.is_open(request_id) or request_id in self._groups:
            self.ledger.standing(request_id)  # raises when it was never issued
            self.num_duplicates += 1
            return False
        _require_ordered(group)
        self.ledger.mark_scored(request_id)
        self._groups[request_id] = group
        return True

    def next_batch(self, version: int, *, is_last: bool = False) -> tuple[Group, ...] | None:
        """Return the oldest ``batch_size`` groups, None while one of them is still missing.

        They stay in the buffer (and in its state) until ``mark_trained``, so a crash in between
        loses nothing; asking again gives the same batch. Stale and rejected groups are dropped on
        the way, see ``take_dropped``.

        Args:
            version: the trainer's current policy version.
            is_last: nothing more will be issued: return what is left, None when that is nothing.
        """
        batch: list[Group] = []
        for request in self.ledger.open_requests():
            group = self._groups.get(request.request_id)
            if group is None:
                return None
            if self._is_dropped(group, version):
                continue
            batch.append(group)
            if len(batch) == self.batch_size:
                return tuple(batch)
        return tuple(batch) if is_last and batch else None

    def mark_trained(self, batch: tuple[Group, ...], *, step: int) -> None:
        """Close a batch that the optimizer has used and let go of its groups."""
        self.ledger.mark_trained([g.request.request_id for g in batch], step=step)
        for group in batch:
            del self._groups[group.request.request_id]

    def take_dropped(self) -> list[tuple[Group, str]]:
        """Return groups dropped since the last call, with the reason (for metrics)."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def capacity(self, version: int, max_running: int) -> int:
        """Return how many orders may be issued now (see ``Ledger.capacity``)."""
        return self.ledger.capacity(
            version=version,
            max_staleness=self.max_staleness,
            batch_size=self.batch_size,
            max_running=max_running,
        )

    def state(self) -> dict[str, JSON]:
        """Return the waiting groups as JSON, in order of issue (the ledger's state is its own)."""
        return {
            "format": STATE_FORMAT,
            "groups": [self._groups[i].to_json() for i in sorted(self._groups)],
            "num_duplicates": self.num_duplicates,
        }

    def load_state(self, state: Mapping[str, JSON]) -> list[TaskRequest]:
        """Take the waiting groups of a checkpoint whose ledger this buffer was given.

        Returns:
            The orders that must be run again, in order of issue: open ones without a group.

        Raises:
            CheckpointError: of another format, or the ledger does not know a group.
        """
        if state.get("format") != STATE_FORMAT:
            raise CheckpointError(
                f"the buffer's state has format {state.get('format')!r}, expected {STATE_FORMAT}"
            )
        groups = [Group.from_json(raw) for raw in state["groups"]]
        for group in groups:
            if not self.ledger.is_open(group.request.request_id):
                raise CheckpointError(
                    f"the buffer holds a group for order {group.request.request_id}, which is "
                    f"not open in the ledger; they are of different checkpoints"
                )
        self._groups = {g.request.request_id: g for g in groups}
        self.num_duplicates = state["num_duplicates"]
        return self.ledger.recover(self._groups)

    def _is_dropped(self, group: Group, version: int) -> bool:
        reason = self._reject(group) if self._reject is not None else ""
        if staleness(group, version) > self.max_staleness:
            reason = "stale"
        if not reason:
            return False
        request_id = group.request.request_id
        self.ledger.mark_dropped([request_id], reason)
        self._dropped.append((self._groups.pop(request_id), reason))
        return True


def _require_ordered(group: Group) -> None:
    indices = [t.sample_index for t in group.trajectories]
    if indices != list(range(group.request.num_samples)):
        raise LedgerError(
            f"order {group.request.request_id} wants samples 0 to {group.request.num_samples - 1} "
            f"in order, the group has {indices}"
        )
