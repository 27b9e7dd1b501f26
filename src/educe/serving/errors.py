"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from educe.core.errors import EduceError
from educe.core.types import JSON

CLOSED_STATUS = 499
"""For our own counters: the client went away before there was an answer."""


class ApiError(EduceError):
    """What a client gets instead of an answer.

    Args:
        message: what was expected, what was given and what to do.
        status: of HTTP.
        kind: OpenAI's ``type``.
        param: the field of the request at fault, e.g. ``messages.0.content``.
        code: short and stable, for programs.
        retry_after_s: for answers that another try may change.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, JSON]:
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def queue_full(num_waiting: int) -> ApiError:
    return ApiError(
        f"{num_waiting} completions are waiting already; try again in a moment, or start the "
        "server with a larger --queue",
        status=429,
        kind="rate_limit_error",
        code="queue_full",
        retry_after_s=1,
    )


def unavailable(reason: str) -> ApiError:
    return ApiError(reason, status=503, kind="server_error", code="unavailable", retry_after_s=5)


def internal(reason: str) -> ApiError:
    return ApiError(reason, status=500, kind="server_error", code="internal_error")
