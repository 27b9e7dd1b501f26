"""One completion on its way through the engine, and what the client's side hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from educe.core.protocols import GenerateRequest
from educe.core.types import StopReason
from educe.serving.errors import ApiError
from educe.serving.text_stream import Decode, StopScanner, TextStream

TopTokens = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token of a text.

    Attributes:
        logprob: at temperature 1, of the whole softmax, whatever the sampling; None for the first
            token of a prompt and where nobody asked.
        top: the likeliest tokens at this place with their log-probabilities, best first.
        offset: characters of the text before the token.
    """

    token_id: int
    logprob: float | None = None
    top: TopTokens = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Newly certain text of a choice, with the tokens that begin in it."""

    choice: int
    text: str
    records: tuple[TokenRecord, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a choice; follows its last piece."""

    choice: int
    reason: StopReason
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PromptRead:
    """The scores of a prompt's tokens: element 0, of the first token, is None."""

    prompt: int
    logprobs: tuple[float | None, ...]
    top: tuple[TopTokens, ...]


Event = Piece | Ending | PromptRead | ApiError


class Mailbox:
    """What one client's answer is made of, handed from the engine's thread to the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Only in the event loop's thread."""
        self._events.put_nowait(event)

    async def get(self) -> Event:
        """Return the next event; raises ApiError where the engine could not go on."""
        event = await self._events.get()
        if isinstance(event, ApiError):
            raise event
        return event


@dataclass(slots=True)
class Timing:
    """When things happened to a ticket, on the monotonic clock; 0 is not yet."""

    submitted_s: float = field(default_factory=time.monotonic)
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(slots=True, eq=False)
class ScoreTicket:
    """A prompt whose own tokens are to be scored."""

    prompt: int
    token_ids: tuple[int, ...]
    num_top: int
    mailbox: Mailbox
    timing: Timing = field(default_factory=Timing)
    is_cancelled: bool = False


@dataclass(slots=True, eq=False)
class Ticket:
    """A completion to sample. All but ``mailbox`` belongs to the engine's thread once submitted.

    Attributes:
        choice: index among the answer's choices.
        num_top: alternatives wanted for each token; None for no log-probabilities at all.
        is_streamed: whether pieces leave as they become certain, or one piece at the end.
    """

    request: GenerateRequest
    choice: int
    mailbox: Mailbox
    decode: Decode
    stops: tuple[str, ...] = ()
    num_top: int | None = None
    is_streamed: bool = False
    timing: Timing = field(default_factory=Timing)
    is_cancelled: bool = False
    num_tokens: int = 0
    _stream: TextStream | None = None
    _scanner: StopScanner | None = None
    _text: str = ""
    _sent: int = 0
    _records: list[TokenRecord] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.is_streamed or self.stops or self.num_top is not None:
            self._stream = TextStream(self.decode)
            self._scanner = StopScanner(self.stops)

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string was met: the engine need not go on."""
        return self._scanner is not None and self._scanner.has_stopped

    def take(self, token_id: int, logprob: float | None, top: TopTokens) -> Piece | None:
        """Add a sampled token; return a piece when there is something to send."""
        self.num_tokens += 1
        self._token_ids.append(token_id)
        if self._stream is None or self._scanner is None:
            return None
        if self.num_top is not None:
            self._records.append(TokenRecord(token_id, logprob, top, self._stream.length))
        self._text += self._scanner.push(self._stream.push(token_id))
        if not self.is_streamed or self._sent == len(self._text):
            return None
        return self._piece(len(self._text))

    def finish(self, reason: StopReason) -> tuple[Piece, Ending]:
        """Return the rest and the end; a stop string that was met makes it an ordinary end."""
        if self._stream is None or self._scanner is None:
            self._text = self.decode(self._token_ids)
        else:
            self._text += self._scanner.push(self._stream.finish())
            self._text += self._scanner.finish()
        if self.has_stopped:
            # Tokens that lie behind the cut are no part of the answer.
            self._records = [r for r in self._records if r.offset < len(self._text)]
            reason = StopReason.END
        last = self._piece(None)
        return last, Ending(self.choice, reason, self.num_tokens)

    def _piece(self, end: int | None) -> Piece:
        """Take what begins before ``end`` (None: all) out of what was not sent yet."""
        text = self._text[self._sent : end]
        self._sent += len(text)
        count = len(self._records)
        if end is not None:
            count = sum(record.offset < end for record in self._records)
        records, self._records = tuple(self._records[:count]), self._records[count:]
        token_ids, self._token_ids = tuple(self._token_ids), []
        return Piece(self.choice, text, records, token_ids)


AnyTicket = Ticket | ScoreTicket


def group_by_loop(
    events: Sequence[tuple[Mailbox, Event]],
) -> dict[asyncio.AbstractEventLoop, list[tuple[Mailbox, Event]]]:
    """Return the events by the loop that they go to, each in order."""
    found: dict[asyncio.AbstractEventLoop, list[tuple[Mailbox, Event]]] = {}
    for mailbox, event in events:
        found.setdefault(mailbox.loop, []).append((mailbox, event))
    return found
