"""One job of one client, as it waits for a box."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from educe.sandbox.inside.supervisor import Client

# (preload, loopback, disk_mb, num_inodes): what a box is prepared with
Shape = tuple[str, bool, int, int]


class Request:
    """One job of one client. ``payload`` is passed on to the box unread."""

    def __init__(self, client: Client, head: dict[str, Any], payload: bytes) -> None:
        self.client = client
        self.id: int = head["id"]
        self.key: str = head["key"]
        self.is_session: bool = head["op"] == "session"
        self.limits: dict[str, Any] = head["limits"]
        self.outputs: list[str] = head["outputs"]
        self.num_expected: int = head["num_expected"]  # processes that the job needs by itself
        self.shape: Shape = (
            head["preload"],
            head["loopback"],
            self.limits["disk_mb"],
            self.limits["num_inodes"],
        )
        self.payload = payload
        self.received = time.monotonic()
        self.num_broken = 0  # attempts that lost their box or its zygote
        self.stretch = 1.0  # of the wall limit, on a machine that let the job wait
