"""Who may ask: a token, or on a loopback address the programs of this machine only.

A page in a browser can reach loopback servers, too: by a name that resolves to 127.0.0.1, and by
cross-site requests. Without a token, requests that name another host or come from another site's
page are refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from educe.core.errors import EduceError
from educe.serving.errors import CLOSED_STATUS, ApiError
from educe.serving.metrics import ServeMetrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health"})
TOKEN_VARIABLE = "EDUCE_SERVE_TOKEN"
MIN_TOKEN_LENGTH = 16


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str) -> None:
    """Refuse to listen to the network without a token.

    Raises:
        EduceError: no token, or one that is easily guessed.
    """
    if token and len(token) < MIN_TOKEN_LENGTH:
        raise EduceError(f"the token must have at least {MIN_TOKEN_LENGTH} characters")
    if not token and not is_loopback(host):
        raise EduceError(
            f"{host} can be reached from other machines, so a token is needed: put one into "
            f"{TOKEN_VARIABLE} or into a file named by --token-file (for example "
            f"`openssl rand -hex 24`), or leave --host at 127.0.0.1"
        )


class Gatekeeper:
    """Wraps an application: checks who asks, and counts what is answered.

    Args:
        paths: labels of the request counter; other paths are counted as ``other``.
    """

    def __init__(
        self, app: ASGIApp, *, token: str, metrics: ServeMetrics, paths: frozenset[str]
    ) -> None:
        self._app, self._token, self._metrics, self._paths = app, token.encode(), metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        status = CLOSED_STATUS

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._admit(scope)
            except ApiError as error:
                await _refuse(error, scope, receive, note)
            else:
                await self._app(scope, receive, note)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.add(1, path=path, status=str(status))
            self._metrics.request_s.observe(time.monotonic() - start)

    def _admit(self, scope: Scope) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        if not self._token:
            _refuse_strangers(headers)
        elif scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", b"").partition(b" ")
            is_right = hmac.compare_digest(given.strip(), self._token)
            if kind.lower() != b"bearer" or not is_right:
                raise ApiError(
                    "a valid token is needed: Authorization: Bearer TOKEN",
                    status=401,
                    kind="authentication_error",
                    code="invalid_api_key",
                )


def _refuse_strangers(headers: Mapping[str, bytes]) -> None:
    host = urlsplit("//" + headers.get("host", b"localhost").decode("latin-1")).hostname or ""
    origin = headers.get("origin", b"").decode("latin-1")
    page = urlsplit(origin).hostname if origin else "localhost"
    if not is_loopback(host) or not is_loopback(page or ""):
        raise ApiError(
            "this server answers programs of its own machine only; start it with a token to let "
            "others in",
            status=403,
            kind="permission_error",
            code="not_local",
        )


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    from starlette.responses import JSONResponse

    await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)
