"""Who runs next and what is cached: pure bookkeeping, no torch.

The cache is a forest of immutable segments (a prompt, a turn) that rows refer to by a chain of
ids; a row adds its own growing suffix in a slot. Group siblings and later turns share segments
without copies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from educe.core.protocols import GenerateRequest
from educe.engines.embedded.drafts import Lookup


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
    lookup: Lookup | None = None

    @property
    def suffix_length(self) -> int:
        """Tokens in the slot: all sampled ones but the newest, which is not computed yet."""
        return max(0, len(self.token_ids) - 1)

    def draft(self, count: int) -> tuple[int, ...]:
        """Return at most ``count`` tokens that may come next, by what the row has read and said."""
        if self.lookup is None:
            self.lookup = Lookup(self.request.prompt_token_ids)
        room = self.request.parameters.max_tokens - len(self.token_ids) - 1
        return self.lookup.propose(self.token_ids, min(count, room)) if room > 0 else ()

    @property
    def next_position(self) -> int:
        """Where the newest token, which is computed next, stands in the sequence."""
        return self.prefix_length + self.suffix_length


@dataclass(slots=True)
class PrefillJob:
    """Prompt tokens to compute on top of a chain, for all requests that wait for them.

    ``segment_id`` is what they become when others already refer to it, else -1. A job comes after
    those whose segments are in its chain.
    """

    chain: tuple[int, ...]
    start: int
    token_ids: tuple[int, ...]
    requests: list[GenerateRequest]
    segment_id: int = -1


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

    def own_tail(self, request_id: str, longest: int) -> tuple[int, ...]:
        """Return the last segments of a retained chain that nobody else refers to.

        At most ``longest`` tokens together; empty when nothing is retained.
        """
        chain = self._retained.get(request_id, ())
        total, first = 0, len(chain)
        for place in range(len(chain) - 1, -1, -1):
            segment = self.segments[chain[place]]
            total += len(segment.token_ids)
            if segment.references > 1 or total > longest:
                break
            first = place
        return chain[first:]

    def join(self, request_id: str, tail: tuple[int, ...]) -> CacheSegment:
        """Put one segment in the place of ``tail``, from ``own_tail``; returns it."""
        kept = self._retained[request_id][: -len(tail)]
        joined = self.add(self.segments[tail[0]].start, self.tokens(tail))
        joined.references = 1
        for segment_id in tail:
            del self.segments[segment_id]
        self._retained[request_id] = (*kept, joined.segment_id)
        return joined

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


class PrefixCache:
    """Beginnings that several prompts share (a system prompt, worked examples), computed once.

    A prompt's longest common beginning with any other is with a neighbour in sorted order, so the
    prompts seen lately are kept sorted. Cached beginnings are dropped least recently used first;
    ``max_tokens`` 0 caches nothing.
    """

    def __init__(self, max_tokens: int, longest: int) -> None:
        self.max_tokens = max_tokens
        self.longest = longest
        self._cached: OrderedDict[tuple[int, ...], tuple[int, ...]] = OrderedDict()
        self._seen: list[tuple[int, ...]] = []
        self._order: deque[tuple[int, ...]] = deque()

    def note(self, prompt: tuple[int, ...]) -> None:
        """Remember a prompt that will be computed."""
        if not self.max_tokens:
            return
        place = bisect_left(self._seen, prompt)
        if place < len(self._seen) and self._seen[place] == prompt:
            return
        self._seen.insert(place, prompt)
        self._order.append(prompt)
        if len(self._order) > _PROMPTS_SEEN:
            old = self._order.popleft()
            del self._seen[bisect_left(self._seen, old)]

    def find(self, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the chain and length of the longest cached beginning of a prompt."""
        best: tuple[int, ...] = ()
        for beginning in self._cached:
            longer = len(best) < len(beginning) < len(prompt)
            if longer and prompt[: len(beginning)] == beginning:
                best = beginning
        if not best:
            return (), 0
        self._cached.move_to_end(best)
        return self._cached[best], len(best)

    def shared(self, prompt: tuple[int, ...]) -> int:
        """Return how many leading tokens another prompt seen lately has in common with this one."""
        if not self.max_tokens:
            return 0
        place = bisect_left(self._seen, prompt)
        neighbours = [
            self._seen[p] for p in (place - 1, place, place + 1) if 0 <= p < len(self._seen)
        ]
        count = max((common_length(prompt, n) for n in neighbours if n != prompt), default=0)
        # The last prompt token is never cached: its state gives the first completion token.
        return min(count, len(prompt) - 1, self.longest)

    def keep(self, beginning: tuple[int, ...], chain: tuple[int, ...], book: CacheBook) -> None:
        """Cache a beginning that is about to be computed."""
        book.hold(chain)
        self._cached[beginning] = chain

    def trim(self, book: CacheBook) -> list[int]:
        """Drop the least recently used beyond the limit; return the segments nobody needs.

        Only between admissions: what was just admitted may refer to a beginning before a row
        holds it.
        """
        gone: list[int] = []
        while len(self._cached) > 1 and sum(map(len, self._cached)) > self.max_tokens:
            _, chain = self._cached.popitem(last=False)
            gone += book.drop(chain)
        return gone

    def clear(self) -> None:
        """Forget what is cached (the book forgets the segments)."""
        self._cached.clear()


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading items two sequences have in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_PROMPTS_SEEN = 512
_WORTH_SHARING = 48  # tokens; below, the extra attention call costs more than it saves


class RowScheduler:
    """Admits waiting requests in submission order while rows are free."""

    def __init__(self, max_rows: int, prefixes: PrefixCache) -> None:
        self.max_rows = max_rows
        self.prefixes = prefixes
        self.waiting: deque[GenerateRequest] = deque()
        self.running: list[Row] = []

    @property
    def num_unfinished(self) -> int:
        return len(self.waiting) + len(self.running)

    def submit(self, request: GenerateRequest) -> None:
        self.waiting.append(request)
        if not request.parent:
            self.prefixes.note(request.prompt_token_ids)

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
                if not chain:
                    chain, covered = self._beginning(request.prompt_token_ids, book, jobs)
                job = PrefillJob(chain, covered, request.prompt_token_ids[covered:], [])
                jobs.append(job)
                if request.group_key:
                    by_group[request.group_key] = job
            job.requests.append(request)
        return jobs

    def _beginning(
        self, prompt: tuple[int, ...], book: CacheBook, jobs: list[PrefillJob]
    ) -> tuple[tuple[int, ...], int]:
        """Return a cached beginning; put a job for a longer one first when others share it."""
        chain, covered = self.prefixes.find(prompt)
        shared = self.prefixes.shared(prompt)
        if shared - covered < _WORTH_SHARING:
            return chain, covered
        segment = book.add(covered, prompt[covered:shared])
        jobs.append(PrefillJob(chain, covered, segment.token_ids, [], segment.segment_id))
        chain = (*chain, segment.segment_id)
        self.prefixes.keep(prompt[:shared], chain, book)
        return chain, shared

    def parents(self) -> list[str]:
        """Return the turns that the requests admitted next continue."""
        free = self.max_rows - len(self.running)
        return [r.parent for r in islice(self.waiting, free) if r.parent]

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
