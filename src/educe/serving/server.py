"""Listening: a socket, uvicorn's HTTP, and a server in the background for tests and notebooks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from educe.core.errors import EduceError, MissingExtraError
from educe.serving.gatekeeper import check_token

if TYPE_CHECKING:
    from starlette.types import ASGIApp

DRAIN_S = 30


def check_extra() -> None:
    """Raise MissingExtraError unless the HTTP packages are there (they load in a blink)."""
    for package in ("starlette", "uvicorn"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, "serve", "educe serve") from error


def listen(host: str, port: int, token: str) -> socket.socket:
    """Return a bound socket; port 0 takes a free one.

    Raises:
        EduceError: an address that others reach without a token, or one that cannot be had.
    """
    check_token(host, token)
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    if not 0 <= port <= 65535:  # Python would raise with the socket left open
        raise EduceError(f"--port must be 0 to 65535, got {port}; choose another --port")
    try:
        return socket.create_server((bare, port), family=family, backlog=512)
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        raise EduceError(
            f"cannot listen on {host}:{port}: {why}; choose another --port (0 takes a free one)"
        ) from error


def url_of(bound: socket.socket) -> str:
    """Return the base URL that clients are given."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def run_server(app: ASGIApp, bound: socket.socket) -> None:
    """Serve until the process is told to stop; running answers get some time to end."""
    _server(app).run(sockets=[bound])


@contextmanager
def background_server(app: ASGIApp, host: str = "127.0.0.1", *, token: str = "") -> Iterator[str]:
    """Serve in a thread of this process; yields the base URL.

    >>> with background_server(app) as url: ...                            # doctest: +SKIP
    """
    bound = listen(host, 0, token)
    server = _server(app)
    ready = threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            server.run(sockets=[bound])
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    class Announcing:
        """Tells when the application has started: requests are answered from then on."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def told(message: Any) -> None:
                await send(message)
                if message["type"].startswith("lifespan.startup"):
                    ready.set()

            await app(scope, receive, told if scope["type"] == "lifespan" else send)

    server.config.app = Announcing()
    thread = threading.Thread(target=serve, name="educe-server", daemon=True)
    thread.start()
    ready.wait()
    try:
        if failures:
            raise failures[0]
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


def _server(app: ASGIApp) -> Any:
    check_extra()
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    return uvicorn.Server(config)
