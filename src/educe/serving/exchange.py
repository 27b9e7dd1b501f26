"""One HTTP exchange: a bounded body in, JSON or an event stream out, and a client that may leave.

Whatever happens on the way (an error, a client that goes away, a server that stops), the tickets of
the answer are given up exactly once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeVar

from educe.core.types import JSON
from educe.serving.errors import CLOSED_STATUS, ApiError, internal
from educe.serving.tickets import AnyTicket

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from educe.serving.engine_thread import EngineThread

NOTE_HEADER = "x-educe-note"
MAX_BODY_BYTES = 32 * 2**20
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class Answer(Protocol):
    """What an endpoint makes of a request."""

    @property
    def tickets(self) -> Sequence[AnyTicket]: ...

    @property
    def is_streamed(self) -> bool: ...

    @property
    def note(self) -> str: ...

    async def whole(self) -> dict[str, JSON]: ...

    def chunks(self) -> AsyncIterator[dict[str, JSON]]: ...


async def read_body(request: Request) -> bytes:
    """Return the body.

    Raises:
        ApiError: it is too long (413).
    """
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > MAX_BODY_BYTES:
            raise ApiError(
                f"the body is longer than {MAX_BODY_BYTES} bytes; send it in parts", status=413
            )
    return bytes(found)


async def respond(request: Request, thread: EngineThread, answer: Answer) -> Response:
    """Return the response of an answer whose tickets are submitted."""
    from starlette.responses import JSONResponse, Response

    if answer.is_streamed:
        return _event_stream(thread, answer)
    try:
        body = await unless_gone(answer.whole(), request.receive)
    finally:
        thread.cancel(answer.tickets)
    if body is None:
        return Response(status_code=CLOSED_STATUS)
    return JSONResponse(body, headers={NOTE_HEADER: answer.note} if answer.note else None)


async def unless_gone(work: Awaitable[_T], receive: Receive) -> _T | None:
    """Return the work's result; None when the client goes away first, and the work is cancelled."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return worker.result() if worker.done() else None
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event_stream(thread: EngineThread, answer: Answer) -> Response:
    """Return server-sent events: one ``data:`` line a chunk, ``[DONE]`` at the end."""
    from starlette.responses import Response

    class EventStream(Response):
        media_type = "text/event-stream"

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"),
                       (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]  # fmt: skip
            if answer.note:
                headers.append((NOTE_HEADER.encode(), answer.note.encode()))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await unless_gone(_pump(answer, send), receive)
            finally:
                thread.cancel(answer.tickets)

    return EventStream()


async def _pump(answer: Answer, send: Send) -> None:
    async def put(text: str, *, is_last: bool = False) -> None:
        body = f"data: {text}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})

    try:
        async with aclosing(answer.chunks()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                await put(to_json(chunk))
    except ApiError as error:
        await put(to_json(error.body()), is_last=True)
    except Exception:
        _LOG.exception("an answer broke off")
        await put(to_json(internal("the server failed; its log says why").body()), is_last=True)
    else:
        await put("[DONE]", is_last=True)


def to_json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


Endpoint = Callable[["Request"], Awaitable["Response"]]
