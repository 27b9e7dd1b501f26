"""Who runs next and what is cached: pure bookkeeping, no torch.

The cache is a forest of immutable segments (a prompt, a turn) that rows refer to by a chain of
ids; a row adds its own growing suffix in a slot. Group siblings and later turns share segments
without copies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from educe.core.protocols import GenerateRequest


@dataclass(slots=True)
class CacheSegment:
    """Immutable cached tokens [start, start + length) of one or more sequences."""

    segment_id: int
    start: int
    token_ids: tuple[int, ...]
    references: int = 0


@dataclass(slots=True)
class Row:
    """A running completion: its chain of segments, its slot and what it sampled so far."""

    request: GenerateRequest
    chain: tuple[int, ...]
    prefix_length: int
    slot: int = -1
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cancelled: bool = False

    @property
    def suffix_length(self) -> int:
        """Tokens in the slot: all sampled ones but the newest, which is not computed yet."""
        return max(0, len(self.token_ids) - 1)

    @property
    def next_position(self) -> int:
        """Where the newest token, which is computed next, stands in the sequence."""
        return self.prefix_length + self.suffix_length


@dataclass(slots=True)
class PrefillJob:
    """Prompt tokens to compute on top of a chain, for all requests that wait for them."""

    chain: tuple[int, ...]
    start: int
    token_ids: tuple[int, ...]
    requests: list[GenerateRequest]


class CacheBook:
    """Which segments exist and who still needs them."""

    def __init__(self) -> None:
        self.segments: dict[int, CacheSegment] = {}
        self._next_id = 0
        self._retained: dict[str, tuple[int, ...]] = {}

    def add(self, start: int, token_ids: tuple[int, ...]) -> CacheSegment:
        segment = CacheSegment(self._next_id, start, token_ids)
        self._next_id += 1
        self.segments[segment.segment_id] = segment
        return segment

    def hold(self, chain: tuple[int, ...]) -> None:
        for segment_id in chain:
            self.segments[segment_id].references += 1

    def drop(self, chain: tuple[int, ...]) -> list[int]:
        """Let go of a chain; return the ids of segments that nobody needs any more."""
        gone = []
        for segment_id in chain:
            segment = self.segments[segment_id]
            segment.references -= 1
            if segment.references == 0:
                gone.append(segment_id)
                del self.segments[segment_id]
        return gone

    def retain(self, request_id: str, chain: tuple[int, ...]) -> None:
        """Keep a finished request's chain for the turns that follow it."""
        self.hold(chain)
        self._retained[request_id] = chain

    def release(self, request_id: str) -> list[int]:
        chain = self._retained.pop(request_id, None)
        return [] if chain is None else self.drop(chain)

    def tokens(self, chain: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(t for i in chain for t in self.segments[i].token_ids)

    def match(self, request: GenerateRequest) -> tuple[tuple[int, ...], int]:
        """Return the usable chain of the request's parent and how many tokens it covers.

        The last prompt token is never taken from the cache: its hidden state gives the first
        completion token.
        """
        chain = self._retained.get(request.parent, ())
        cached = self.tokens(chain)
        if not cached or len(cached) >= len(request.prompt_token_ids):
            return (), 0
        if request.prompt_token_ids[: len(cached)] != cached:
            return (), 0
        return chain, len(cached)

    def clear(self) -> list[int]:
        gone = list(self.segments)
        self.segments.clear()
        self._retained.clear()
        return gone


class RowScheduler:
    """Admits waiting requests in submission order while rows are free."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.waiting: deque[GenerateRequest] = deque()
        self.running: list[Row] = []

    @property
    def num_unfinished(self) -> int:
        return len(self.waiting) + len(self.running)

    def submit(self, request: GenerateRequest) -> None:
        self.waiting.append(request)

    def cancel(self, request_id: str) -> GenerateRequest | None:
        """Mark a running row as cancelled, or take a waiting request out and return it."""
        for row in self.running:
            if row.request.request_id == request_id:
                row.cancelled = True
                return None
        for request in self.waiting:
            if request.request_id == request_id:
                self.waiting.remove(request)
                return request
        return None

    def admit(self, book: CacheBook) -> list[PrefillJob]:
        """Take waiting requests for the free rows and group those that share a prompt."""
        jobs: list[PrefillJob] = []
        by_group: dict[str, PrefillJob] = {}
        free = self.max_rows - len(self.running)
        while self.waiting and free > 0:
            request = self.waiting.popleft()
            free -= 1
            job = by_group.get(request.group_key) if request.group_key else None
            if job is None:
                chain, covered = book.match(request)
                job = PrefillJob(chain, covered, request.prompt_token_ids[covered:], [])
                jobs.append(job)
                if request.group_key:
                    by_group[request.group_key] = job
            job.requests.append(request)
        return jobs

    def start(self, row: Row) -> None:
        row.slot = len(self.running)
        self.running.append(row)

    def finish(self, row: Row) -> Row | None:
        """Take a row out; return the row that must move into its slot, if any."""
        last = self.running.pop()
        if last is row:
            return None
        self.running[row.slot] = last
        return last
