"""The one thread that owns the engine: many clients' tickets in, pieces of text out.

The engine is not thread-safe and need not be: others only leave orders here. Between two steps the
thread takes new orders, gives up what was cancelled and reads prompts that are to be scored. An
engine that raises is broken: whoever waits is told, nobody waits for ever, and ``health`` says so.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from educe.core.protocols import Completion, GenerateRequest
from educe.core.types import StopReason
from educe.serving.errors import ApiError, internal, queue_full, unavailable
from educe.serving.metrics import ServeMetrics
from educe.serving.tickets import (
    AnyTicket,
    Event,
    Mailbox,
    PromptRead,
    ScoreTicket,
    Ticket,
    Timing,
    group_by_loop,
)

if TYPE_CHECKING:
    from torch import Tensor

    from educe.engines.embedded.prompt_scores import PromptScores
    from educe.engines.embedded.scheduler import Row

_SCORED_TOGETHER = 2048
_LOG = logging.getLogger(__name__)


class ServedEngine(Protocol):
    """What is needed of an engine besides sampling: see ``EmbeddedEngine``."""

    observer: Any

    @property
    def num_unfinished(self) -> int: ...

    @property
    def num_free_rows(self) -> int: ...

    def submit(self, request: GenerateRequest) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[Completion]: ...

    def score(self, prompts: Sequence[Sequence[int]], num_top: int = 0) -> list[PromptScores]: ...


class EngineThread:
    """Runs an engine for tickets.

    Args:
        engine: used by this thread alone from ``start`` on.
        max_rows: completions that run at once.
        max_waiting: tickets beyond these that may wait.
        prepare: called first in the thread (e.g. to give torch its threads).
    """

    def __init__(
        self,
        engine: ServedEngine,
        *,
        max_rows: int,
        max_waiting: int,
        metrics: ServeMetrics,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.max_rows, self.max_waiting = max_rows, max_waiting
        self._engine = engine
        self._metrics = metrics
        self._prepare = prepare
        self._condition = threading.Condition()
        self._orders: deque[AnyTicket] = deque()
        self._num_open = 0
        self._is_closing = False
        self._broken = ""
        # The thread's own.
        self._tickets: dict[str, Ticket] = {}
        self._to_score: deque[ScoreTicket] = deque()
        self._outbox: list[tuple[Mailbox, Event]] = []
        self._step_s = 0.0
        self._thread = threading.Thread(target=self._run, name="educe-engine", daemon=True)
        engine.observer = self._observe

    # Any thread

    @property
    def capacity(self) -> int:
        """Tickets that can be open at once."""
        return self.max_rows + self.max_waiting

    @property
    def num_open(self) -> int:
        """Tickets submitted and not finished."""
        return self._num_open

    @property
    def trouble(self) -> str:
        """Why nothing can be sampled; empty when all is well."""
        if self._broken:
            return f"the engine has failed: {self._broken}; restart the server"
        return "the server is shutting down" if self._is_closing else ""

    def start(self) -> None:
        self._thread.start()

    def submit(self, tickets: Sequence[AnyTicket]) -> None:
        """Queue the tickets of one answer, all or none.

        Raises:
            ApiError: 429 when too many wait already, 503 when the engine does not run.
        """
        with self._condition:
            if self.trouble:
                raise unavailable(self.trouble)
            if self._num_open + len(tickets) > self.capacity:
                raise queue_full(max(0, self._num_open - self.max_rows))
            self._num_open += len(tickets)
            self._orders.extend(tickets)
            self._condition.notify()

    def cancel(self, tickets: Sequence[AnyTicket]) -> None:
        """Give up tickets: their rows are free from the next step on. Finished ones are fine."""
        with self._condition:
            for ticket in tickets:
                ticket.is_cancelled = True
            self._condition.notify()

    def close(self, timeout_s: float = 30.0) -> None:
        """Stop after the running step; whoever still waits gets a 503."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # The engine's thread

    def _run(self) -> None:
        try:
            self._prepare()
            while self._take_orders():
                self._drop_cancelled()
                self._score_some()
                if self._engine.num_unfinished:
                    self._step_s = time.monotonic()
                    for completion in self._engine.step():
                        self._on_completion(completion)
                self._post()
        except Exception as error:
            # Whatever it was, clients must not wait for a thread that is gone.
            _LOG.exception("the engine has failed; nothing can be sampled until a restart")
            self._broken = f"{type(error).__name__}: {error}"
            self._fail_all(internal(f"the engine has failed: {self._broken}"))
            return
        self._fail_all(unavailable("the server is shutting down"))

    def _take_orders(self) -> bool:
        """Wait for something to do and take new tickets; False when it is time to end."""
        with self._condition:
            while not (self._orders or self._has_work() or self._is_closing):
                self._condition.wait()
            if self._is_closing:
                return False
            taken = list(self._orders)
            self._orders.clear()
        # All are known before the engine sees the first: should it raise, each one is told.
        self._to_score += [t for t in taken if isinstance(t, ScoreTicket)]
        to_sample = [t for t in taken if isinstance(t, Ticket)]
        self._tickets.update({t.request.request_id: t for t in to_sample})
        for ticket in to_sample:
            self._engine.submit(ticket.request)
        return True

    def _has_work(self) -> bool:
        return bool(self._engine.num_unfinished or self._to_score)

    def _drop_cancelled(self) -> None:
        for request_id, ticket in self._tickets.items():
            if ticket.is_cancelled:
                self._engine.cancel(request_id)
        for waiting in [t for t in self._to_score if t.is_cancelled]:
            self._to_score.remove(waiting)
            self._close_tickets(1)
            self._metrics.cancelled.add()

    def _score_some(self) -> None:
        """Read one forward's worth of prompts, so that rows that decode wait for one only."""
        batch: list[ScoreTicket] = []
        size = 0
        while self._to_score and (not batch or size < _SCORED_TOGETHER):
            ticket = self._to_score[0]
            if batch and size + len(ticket.token_ids) > _SCORED_TOGETHER:
                break
            size += len(ticket.token_ids)
            batch.append(self._to_score.popleft())
        if not batch:
            return
        num_top = max(ticket.num_top for ticket in batch)
        scores = self._engine.score([ticket.token_ids for ticket in batch], num_top)
        for ticket, found in zip(batch, scores, strict=True):
            top = tuple(t[: ticket.num_top] for t in found.top)
            read = PromptRead(ticket.prompt, (None, *found.logprobs), ((), *top))
            self._outbox.append((ticket.mailbox, read))
            self._metrics.scored_tokens.add(len(ticket.token_ids))
        self._close_tickets(len(batch))

    def _observe(self, rows: Sequence[Row], logits: Tensor) -> None:
        """Hand every row's newest token to its ticket; end rows that met a stop string."""
        now = time.monotonic()
        tickets = [self._tickets[row.request.request_id] for row in rows]
        scores = _scores_of(rows, tickets, logits)
        for row, ticket, (logprob, top) in zip(rows, tickets, scores, strict=True):
            self._clock(ticket.timing, now)
            piece = ticket.take(row.token_ids[-1], logprob, top)
            if piece is not None:
                self._outbox.append((ticket.mailbox, piece))
            if ticket.has_stopped:
                row.cancelled = True
        self._metrics.completion_tokens.add(len(rows))

    def _clock(self, timing: Timing, now: float) -> None:
        if timing.first_token_s:
            self._metrics.between_tokens_s.observe(now - timing.last_token_s)
        else:
            timing.started_s, timing.first_token_s = self._step_s, now
            self._metrics.queued_s.observe(max(0.0, self._step_s - timing.submitted_s))
            self._metrics.first_token_s.observe(now - timing.submitted_s)
        timing.last_token_s = now

    def _on_completion(self, completion: Completion) -> None:
        ticket = self._tickets.pop(completion.request_id)
        if ticket.is_cancelled:
            self._metrics.cancelled.add()
        piece, ending = ticket.finish(completion.stop_reason)
        if ending.reason is not StopReason.CANCELLED:
            self._metrics.finished.add(1, reason=str(ending.reason))
        self._outbox += [(ticket.mailbox, piece), (ticket.mailbox, ending)]
        self._close_tickets(1)

    def _close_tickets(self, count: int) -> None:
        with self._condition:
            self._num_open -= count

    def _post(self) -> None:
        """Deliver the outbox: one call into each event loop."""
        for loop, events in group_by_loop(self._outbox).items():
            # A loop that has closed has no client left.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, events)
        self._outbox.clear()

    def _fail_all(self, error: ApiError) -> None:
        with self._condition:
            self._is_closing = True
            left: list[AnyTicket] = [*self._orders, *self._to_score, *self._tickets.values()]
            self._orders.clear()
            self._num_open = 0
        self._outbox += [(ticket.mailbox, error) for ticket in left]
        self._post()


def _deliver(events: Sequence[tuple[Mailbox, Event]]) -> None:
    for mailbox, event in events:
        mailbox.put(event)


def _scores_of(
    rows: Sequence[Row], tickets: Sequence[Ticket], logits: Tensor
) -> list[tuple[float | None, tuple[tuple[int, float], ...]]]:
    """Return (log-probability, alternatives) of each row's newest token, where they are wanted.

    They are made from the raw logits: temperature and truncation, which the behaviour's own
    log-probabilities follow, do not enter.
    """
    from educe.engines.embedded.prompt_scores import token_scores

    out: list[tuple[float | None, tuple[tuple[int, float], ...]]] = [(None, ())] * len(rows)
    wanted = [i for i, ticket in enumerate(tickets) if ticket.num_top is not None]
    if not wanted:
        return out
    num_top = max(tickets[i].num_top or 0 for i in wanted)
    tokens = [rows[i].token_ids[-1] for i in wanted]
    values, tops = token_scores(logits[wanted], tokens, num_top)
    for i, value, top in zip(wanted, values, tops, strict=True):
        out[i] = (value, top[: tickets[i].num_top or 0])
    return out
