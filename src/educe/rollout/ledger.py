"""The ledger: which orders were issued, are running, are scored, were trained or dropped.

It proves that nothing is lost or trained twice and that training consumes in the order of issue,
never in the order of arrival. Its state is small: a few counters, one cursor per domain and split,
and the orders that are open. Knows nothing of engines, files or threads; call it from one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from educe.core.errors import CheckpointError, EduceError
from educe.core.types import JSON, Split, TaskRequest

STATE_FORMAT = 1


class LedgerError(EduceError):
    """A change that would lose an order, train it twice or train it out of turn."""


class Standing(StrEnum):
    """Where an order stands."""

    ISSUED = "issued"
    RUNNING = "running"
    SCORED = "scored"
    TRAINED = "trained"
    DROPPED = "dropped"


_CLOSED = (Standing.TRAINED, Standing.DROPPED)
_MAY_FOLLOW = {
    Standing.RUNNING: (Standing.ISSUED,),
    Standing.ISSUED: (Standing.RUNNING, Standing.SCORED),  # lost with its worker or buffer
    Standing.SCORED: (Standing.ISSUED, Standing.RUNNING),
    Standing.TRAINED: (Standing.SCORED,),
    Standing.DROPPED: (Standing.ISSUED, Standing.RUNNING, Standing.SCORED),
}


@dataclass(slots=True)
class _Order:
    request: TaskRequest
    standing: Standing


def staleness_capacity(
    *,
    version: int,
    max_staleness: int,
    batch_size: int,
    max_running: int,
    num_running: int,
    num_accepted: int,
) -> int:
    """Return how many more orders may be started without breaking the staleness bound.

    AReaL (Fu et al. 2025, arXiv 2505.24298): what was accepted or is running may not
    exceed what the trainer will have consumed when it reaches ``version + max_staleness`` and
    takes one more batch. Units are orders (prompts); may be negative.

    Args:
        version: batches consumed so far, which is the current policy version.
        max_staleness: versions that an order may lag behind when it is trained on.
        batch_size: orders that one version consumes.
        max_running: orders that may run at once.
        num_running: orders issued and not yet scored.
        num_accepted: orders scored since the start and not dropped, trained ones included.
    """
    by_staleness = (max_staleness + version + 1) * batch_size - (num_accepted + num_running)
    return min(max_running - num_running, by_staleness)


def place_in_epoch(position: int, size: int | None) -> tuple[int, int]:
    """Return (epoch, place in it) of a cursor position; an endless taskset has one epoch.

    A cursor that stands at the end of an epoch is the start of the next one, never an empty rest.
    """
    if size is None:
        return 0, position
    if size < 1:
        raise ValueError(f"a taskset needs at least one task, got {size}")
    return divmod(position, size)


class Ledger:
    """Owns order and count of all orders of one training stage.

    Order ids run from 0 without gaps: ``issue`` takes ``next_request_id`` only.
    """

    def __init__(self) -> None:
        self._next_request_id = 0
        self._open: dict[int, _Order] = {}  # in order of issue; closed ones leave in that order
        self._cursors: dict[tuple[str, Split], int] = {}
        self._num_trained = 0
        self._dropped: Counter[str] = Counter()
        self._trained_by_domain: Counter[str] = Counter()
        self._dropped_by_domain: Counter[str] = Counter()
        self._num_reissued = 0
        self._last_step = -1

    # Changes

    def issue(self, request: TaskRequest) -> None:
        """Enter a new order and advance its domain's cursor by one.

        Raises:
            LedgerError: the id is not the next one.
        """
        if request.request_id != self._next_request_id:
            raise LedgerError(
                f"order {request.request_id} was issued, expected id {self._next_request_id}: ids "
                f"run without gaps"
            )
        self._next_request_id += 1
        self._open[request.request_id] = _Order(request, Standing.ISSUED)
        cursor = (request.domain, request.split)
        self._cursors[cursor] = self._cursors.get(cursor, 0) + 1

    def mark_running(self, request_id: int) -> None:
        """An engine took the order."""
        self._move(request_id, Standing.RUNNING)

    def mark_scored(self, request_id: int) -> None:
        """The order's group is complete and in the buffer."""
        self._move(request_id, Standing.SCORED)

    def mark_lost(self, request_id: int) -> None:
        """The order's worker (or its group, with a buffer) is gone: it is to be run again."""
        if self.standing(request_id) is not Standing.ISSUED:
            self._move(request_id, Standing.ISSUED)
            self._num_reissued += 1

    def mark_dropped(self, request_ids: Iterable[int], reason: str) -> None:
        """Close orders without training on them (stale, trivial, unscored ...), counted.

        Nothing is changed when it raises.
        """
        for request_id in self._checked(request_ids, Standing.DROPPED):
            order = self._move(request_id, Standing.DROPPED)
            self._dropped[reason] += 1
            self._dropped_by_domain[order.request.domain] += 1
        self._forget_closed()

    def mark_trained(self, request_ids: Iterable[int], *, step: int) -> None:
        """Close a batch of orders that the optimizer has used.

        Nothing is changed when it raises.

        Raises:
            LedgerError: one is not scored, comes twice, or an earlier order is still open; or the
                step is before the last one.
        """
        batch = self._checked(request_ids, Standing.TRAINED)
        self._check_turn(batch, step)
        for request_id in batch:
            order = self._move(request_id, Standing.TRAINED)
            self._num_trained += 1
            self._trained_by_domain[order.request.domain] += 1
        self._last_step = step
        self._forget_closed()

    def recover(self, kept: Iterable[int] = ()) -> list[TaskRequest]:
        """After a restart: mark as lost what is open and not in ``kept`` (the buffer's groups).

        Returns:
            All orders that must be run again, in order of issue.
        """
        survivors = set(kept)
        for request_id, order in self._open.items():
            if request_id not in survivors and order.standing in (
                Standing.RUNNING,
                Standing.SCORED,
            ):
                self.mark_lost(request_id)
        return self.requests(Standing.ISSUED)

    # Questions

    @property
    def next_request_id(self) -> int:
        return self._next_request_id

    def next_index(self, domain: str, split: Split = Split.TRAIN) -> int:
        """Return how many orders the domain's split has had: the position of its next task.

        Dropped orders count; a finite taskset maps the position with ``place_in_epoch``.
        """
        return self._cursors.get((domain, split), 0)

    def standing(self, request_id: int) -> Standing | None:
        """Return where an order stands; None for one that is closed and no longer kept.

        Raises:
            LedgerError: it was never issued.
        """
        if not 0 <= request_id < self._next_request_id:
            raise LedgerError(f"order {request_id} was never issued")
        order = self._open.get(request_id)
        return None if order is None else order.standing

    def is_open(self, request_id: int) -> bool:
        """Return whether the order was issued and is neither trained nor dropped."""
        return 0 <= request_id < self._next_request_id and (
            request_id in self._open and self._open[request_id].standing not in _CLOSED
        )

    def open_requests(self) -> list[TaskRequest]:
        """Return all open orders in order of issue."""
        return [o.request for o in self._open.values() if o.standing not in _CLOSED]

    def requests(self, standing: Standing) -> list[TaskRequest]:
        """Return the open orders that stand so, in order of issue."""
        return [o.request for o in self._open.values() if o.standing is standing]

    def count(self, standing: Standing) -> int:
        """Return the number of orders that stand so, since the start of the stage."""
        if standing is Standing.TRAINED:
            return self._num_trained
        if standing is Standing.DROPPED:
            return self._dropped.total()
        return sum(o.standing is standing for o in self._open.values())

    @property
    def dropped(self) -> Mapping[str, int]:
        """Number of dropped orders by reason."""
        return dict(self._dropped)

    @property
    def num_reissued(self) -> int:
        return self._num_reissued

    def counters(self) -> dict[str, int]:
        """Return flat counts for the run's metrics."""
        counts = {f"ledger/{s}": self.count(s) for s in Standing}
        counts["ledger/total"] = self._next_request_id
        counts["ledger/reissued"] = self._num_reissued
        counts |= {f"ledger/dropped_{r}": n for r, n in sorted(self._dropped.items())}
        for domain, number in sorted(self._trained_by_domain.items()):
            counts[f"domain/{domain}/trained"] = number
        for domain, number in sorted(self._dropped_by_domain.items()):
            counts[f"domain/{domain}/dropped"] = number
        return counts

    def capacity(
        self, *, version: int, max_staleness: int, batch_size: int, max_running: int
    ) -> int:
        """Return how many orders may be issued now (never negative).

        Of the trained orders, ``version * batch_size`` count as accepted, however many there really
        were: AReaL's rule for a resumed run, which also holds when batches were smaller. So what
        is open never exceeds ``(max_staleness + 1) * batch_size``, before and after a resume.
        """
        num_running = self.count(Standing.ISSUED) + self.count(Standing.RUNNING)
        capacity = staleness_capacity(
            version=version,
            max_staleness=max_staleness,
            batch_size=batch_size,
            max_running=max_running,
            num_running=num_running,
            num_accepted=version * batch_size + self.count(Standing.SCORED),
        )
        return max(0, capacity)

    # State

    def state(self) -> dict[str, JSON]:
        """Return everything as JSON; its size follows the number of open orders and domains."""
        return {
            "format": STATE_FORMAT,
            "next_request_id": self._next_request_id,
            "open": [[o.request.to_json(), str(o.standing)] for o in self._open.values()],
            "cursors": [[d, str(s), n] for (d, s), n in sorted(self._cursors.items())],
            "num_trained": self._num_trained,
            "dropped": dict(self._dropped),
            "trained_by_domain": dict(self._trained_by_domain),
            "dropped_by_domain": dict(self._dropped_by_domain),
            "num_reissued": self._num_reissued,
            "last_step": self._last_step,
        }

    @staticmethod
    def from_state(state: Mapping[str, JSON]) -> Ledger:
        """Return the ledger that ``state`` was taken from.

        Raises:
            CheckpointError: of another format, or its counts do not add up.
        """
        if state.get("format") != STATE_FORMAT:
            raise CheckpointError(
                f"the ledger's state has format {state.get('format')!r}, expected {STATE_FORMAT}"
            )
        ledger = Ledger()
        ledger._next_request_id = state["next_request_id"]
        for raw, standing in state["open"]:
            request = TaskRequest.from_json(raw)
            ledger._open[request.request_id] = _Order(request, Standing(standing))
        ledger._cursors = {(d, Split(s)): n for d, s, n in state["cursors"]}
        ledger._num_trained = state["num_trained"]
        ledger._dropped = Counter(state["dropped"])
        ledger._trained_by_domain = Counter(state["trained_by_domain"])
        ledger._dropped_by_domain = Counter(state["dropped_by_domain"])
        ledger._num_reissued = state["num_reissued"]
        ledger._last_step = state["last_step"]
        try:
            ledger.check()
        except LedgerError as error:
            raise CheckpointError(f"the ledger's state contradicts itself: {error}") from error
        return ledger

    def check(self) -> None:
        """Raise LedgerError unless every issued order is open, trained or dropped, just once."""
        num_open = sum(o.standing not in _CLOSED for o in self._open.values())
        total = num_open + self._num_trained + self._dropped.total()
        if total != self._next_request_id:
            raise LedgerError(
                f"{self._next_request_id} orders were issued, but {num_open} are open, "
                f"{self._num_trained} trained and {self._dropped.total()} dropped"
            )
        if sum(self._cursors.values()) != self._next_request_id:
            raise LedgerError(
                f"{self._next_request_id} orders were issued, but the cursors add up to "
                f"{sum(self._cursors.values())}"
            )
        if any(i >= self._next_request_id for i in self._open) or list(self._open) != sorted(
            self._open
        ):
            raise LedgerError("the open orders are out of order, or newer than the newest")

    # Inside

    def _check_move(self, request_id: int, to: Standing) -> None:
        standing = self.standing(request_id)
        if standing not in _MAY_FOLLOW[to]:
            raise LedgerError(
                f"order {request_id} is {standing or 'closed'} and cannot become {to}; only "
                f"{' or '.join(_MAY_FOLLOW[to])} ones can"
            )

    def _move(self, request_id: int, to: Standing) -> _Order:
        self._check_move(request_id, to)
        order = self._open[request_id]
        order.standing = to
        return order

    def _checked(self, request_ids: Iterable[int], to: Standing) -> list[int]:
        """Return the ids in order of issue, after checking that all of them can make the move."""
        batch = sorted(request_ids)
        if len(set(batch)) != len(batch):
            raise LedgerError(f"an order comes twice among {batch}")
        for request_id in batch:
            self._check_move(request_id, to)
        return batch

    def _check_turn(self, batch: list[int], step: int) -> None:
        if step < self._last_step:
            raise LedgerError(f"step {step} was trained after step {self._last_step}")
        due = (i for i, o in self._open.items() if o.standing not in _CLOSED)
        for request_id, expected in zip(batch, due, strict=False):
            if expected != request_id:
                raise LedgerError(
                    f"order {request_id} was to be trained while order {expected} is still open: "
                    f"consumption follows the order of issue"
                )

    def _forget_closed(self) -> None:
        """Closed orders leave as soon as no open one is before them: the state stays small."""
        for request_id in list(self._open):
            if self._open[request_id].standing not in _CLOSED:
                return
            del self._open[request_id]
