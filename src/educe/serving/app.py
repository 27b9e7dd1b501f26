"""The ASGI application: routes to endpoints, errors to OpenAI's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from educe.core.types import JSON
from educe.serving.chat_endpoint import ask_chat
from educe.serving.completion_endpoint import ask_completion
from educe.serving.errors import ApiError
from educe.serving.exchange import Answer, Endpoint, read_body, respond
from educe.serving.gatekeeper import Gatekeeper
from educe.serving.metrics import CONTENT_TYPE
from educe.serving.replies import Desk

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

Ask = Callable[[Desk, bytes], Answer]


def build_app(desk: Desk, *, token: str = "") -> ASGIApp:
    """Return the application; it starts the engine's thread and stops it at the end.

    Args:
        token: what clients must show; empty lets in the programs of this machine.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    routes = [
        Route("/v1/chat/completions", _endpoint(desk, ask_chat), methods=["POST"]),
        Route("/v1/completions", _endpoint(desk, ask_completion), methods=["POST"]),
        Route("/v1/models", _models(desk), methods=["GET"]),
        Route("/v1/models/{model:path}", _one_model(desk), methods=["GET"]),
        Route("/health", _health(desk), methods=["GET"]),
        Route("/metrics", _metrics(desk), methods=["GET"]),
    ]
    desk.metrics.add_gauge(
        "educe_running", "Completions and prompts in the engine.",
        lambda: min(desk.thread.num_open, desk.thread.max_rows),
    )  # fmt: skip
    desk.metrics.add_gauge(
        "educe_waiting", "Completions that wait for a row.",
        lambda: max(0, desk.thread.num_open - desk.thread.max_rows),
    )  # fmt: skip
    handlers: dict[Any, Any] = {
        ApiError: _api_error,
        HTTPException: _http_error,
        Exception: _failure,
    }

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        desk.thread.start()
        yield
        desk.thread.close()

    inner = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    paths = frozenset(route.path for route in routes)
    return Gatekeeper(inner, token=token, metrics=desk.metrics, paths=paths)


def _endpoint(desk: Desk, ask: Ask) -> Endpoint:
    async def answer(request: Request) -> Response:
        body = await read_body(request)
        return await respond(request, desk.thread, ask(desk, body))

    return answer


def _models(desk: Desk) -> Endpoint:
    async def answer(_: Request) -> Response:
        return _json({"object": "list", "data": [_model_json(desk)]})

    return answer


def _one_model(desk: Desk) -> Endpoint:
    async def answer(request: Request) -> Response:
        desk.check_model(request.path_params["model"])
        return _json(_model_json(desk))

    return answer


def _model_json(desk: Desk) -> dict[str, JSON]:
    model = desk.model
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "educe",
        "max_model_len": model.context_length,
        "fingerprint": model.fingerprint,
    }


def _health(desk: Desk) -> Endpoint:
    async def answer(_: Request) -> Response:
        trouble = desk.thread.trouble
        return _json({"status": trouble or "ok"}, 503 if trouble else 200)

    return answer


def _metrics(desk: Desk) -> Endpoint:
    async def answer(_: Request) -> Response:
        from starlette.responses import Response

        return Response(desk.metrics.text(), headers={"content-type": CONTENT_TYPE})

    return answer


def _json(body: JSON, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(body, status_code=status, headers=headers)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    wait = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    return _json(error.body(), error.status, wait)


_SERVED = (
    "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /health, GET /metrics"
)


async def _http_error(request: Request, error: Any) -> Response:
    told = f"{request.method} {request.url.path}: {error.detail}"
    if error.status_code in (404, 405):  # most often a base URL without its /v1
        told += f"; this server answers {_SERVED}"
    return _json(ApiError(told, status=error.status_code).body(), error.status_code)


async def _failure(_: Request, __: Exception) -> Response:
    """Say nothing of the cause to the client; the log has it."""
    error = ApiError(
        "the server failed; its log says why", status=500, kind="server_error",
        code="internal_error",
    )  # fmt: skip
    return _json(error.body(), 500)
