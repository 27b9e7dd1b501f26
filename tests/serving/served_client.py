"""A plain HTTP client and engines with a known text, for the tests of the server."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import torch

from educe.core.protocols import Completion, GenerateRequest
from educe.core.types import StopReason
from educe.engines.embedded.scheduler import Row
from educe.models.chat import ChatFormat
from educe.models.tiny import byte_tokenizer
from educe.serving.app import build_app
from educe.serving.engine_thread import EngineThread
from educe.serving.metrics import ServeMetrics
from educe.serving.replies import Desk, ServedModel
from educe.serving.review_gate import ReviewGate
from educe.serving.server import background_server
from educe.serving.token_text import TokenTexts

TIMEOUT_S = 300  # against hanging, generous for a busy machine


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def error(self) -> dict[str, Any]:
        return self.body["error"]


@dataclass(frozen=True)
class Client:
    """Talks to a server at its base URL, a connection for every request."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT_S)

    def post(self, path: str, fields: Any = None, **more: Any) -> Answer:
        return self._ask("POST", "/v1" + path, fields if fields is not None else more)

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def open_stream(
        self, path: str, **fields: Any
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self.connect()
        body = json.dumps({"stream": True, **fields})
        connection.request("POST", "/v1" + path, body, self.headers)
        return connection, connection.getresponse()

    def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """Return all chunks; checks that the stream ended as it should."""
        connection, response = self.open_stream(path, **fields)
        try:
            assert response.status == 200, response.read()
            lines = [x for x in response.read().decode().split("\n\n") if x]
        finally:
            connection.close()
        assert all(line.startswith("data: ") for line in lines)
        if lines[-1] != "data: [DONE]":
            return [json.loads(line[6:]) for line in lines]
        return [*(json.loads(line[6:]) for line in lines[:-1]), {"done": True}]

    def _ask(self, method: str, path: str, fields: Any) -> Answer:
        connection = self.connect()
        body = fields if isinstance(fields, str | bytes) else json.dumps(fields)
        try:
            connection.request(method, path, None if fields is None else body, self.headers)
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        found = {k.lower(): v for k, v in response.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return Answer(response.status, json.loads(raw) if is_json else raw.decode(), found)


class ScriptedEngine:
    """Samples what a script says, a token a step, through the engine's own rows and observer.

    ``go`` is cleared to hold it still; ``fail`` makes the next step raise.
    """

    def __init__(
        self, script: Callable[[GenerateRequest], Sequence[int]], *, max_rows: int = 4
    ) -> None:
        self.script, self.max_rows = script, max_rows
        self.go = threading.Event()
        self.go.set()
        self.fail = False
        self.observer: Any = None
        self.waiting: list[GenerateRequest] = []
        self.rows: list[Row] = []

    @property
    def num_unfinished(self) -> int:
        return len(self.waiting) + len(self.rows)

    def submit(self, request: GenerateRequest) -> None:
        self.waiting.append(request)

    def cancel(self, request_id: str) -> None:
        for row in self.rows:
            row.cancelled |= row.request.request_id == request_id
        for request in [r for r in self.waiting if r.request_id == request_id]:
            self.waiting.remove(request)
            row = Row(request, (), 0, cancelled=True)
            self.rows.append(row)

    def score(self, prompts: Sequence[Sequence[int]], num_top: int = 0) -> list[Any]:
        raise RuntimeError("a script has no likelihoods")

    def step(self) -> list[Completion]:
        self.go.wait(TIMEOUT_S)
        if self.fail:
            raise RuntimeError("out of luck")
        while self.waiting and len(self.rows) < self.max_rows:
            self.rows.append(Row(self.waiting.pop(0), (), 0))
        alive = [row for row in self.rows if not row.cancelled]
        for row in alive:
            row.token_ids.append(self.script(row.request)[len(row.token_ids)])
        if alive:
            logits = torch.zeros(len(alive), 260)
            for i, row in enumerate(alive):
                logits[i, row.token_ids[-1]] = 5.0
            self.observer(alive, logits)
        ended = [(row, self._reason(row)) for row in self.rows]
        self.rows = [row for row, reason in ended if reason is None]
        return [
            Completion(row.request.request_id, tuple(row.token_ids), (), 0, reason, "")
            for row, reason in ended
            if reason is not None
        ]

    def _reason(self, row: Row) -> StopReason | None:
        if row.cancelled:
            return StopReason.CANCELLED
        if len(row.token_ids) == len(self.script(row.request)):
            return StopReason.END
        if len(row.token_ids) >= row.request.parameters.max_tokens:
            return StopReason.LENGTH
        return None


def says(text: str) -> Callable[[GenerateRequest], Sequence[int]]:
    """Return a script that says the same to everybody, and then its end token."""
    tokens = [*byte_tokenizer().encode(text), 2]
    return lambda _: tokens


@dataclass(frozen=True)
class Scripted:
    """A running server with a scripted engine."""

    client: Client
    engine: ScriptedEngine
    thread: EngineThread
    metrics: ServeMetrics


@contextmanager
def scripted_server(
    script: Callable[[GenerateRequest], Sequence[int]],
    *,
    max_rows: int = 4,
    max_waiting: int = 8,
    gate: ReviewGate | None = None,
    token: str = "",
    context_length: int = 1024,
) -> Iterator[Scripted]:
    engine = ScriptedEngine(script, max_rows=max_rows)
    chat = ChatFormat(byte_tokenizer())
    metrics = ServeMetrics()
    thread = EngineThread(engine, max_rows=max_rows, max_waiting=max_waiting, metrics=metrics)
    desk = Desk(
        ServedModel("scripted", chat, context_length, "educe-script"),
        thread,
        TokenTexts(chat.tokenizer),
        metrics,
        gate,
    )
    app = build_app(desk, token=token)
    with background_server(app, token=token) as url:
        try:
            yield Scripted(Client(url), engine, thread, metrics)
        finally:
            engine.go.set()
