"""Connections to a running supervisor: one a thread, made anew in a forked process."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from educe.core.types import JSON
from educe.sandbox.contract import Level
from educe.sandbox.inside import wire

_WINDOW = 256  # jobs of one call that are under way at once


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """How another process of the same user reaches a running sandbox; may be pickled."""

    name: str
    token: str
    level: Level
    fingerprint: str

    def to_json(self) -> dict[str, JSON]:
        """Return plain JSON. The token is a secret of this user: keep it off disks and logs."""
        return {**dataclasses.asdict(self), "level": self.level.name.lower()}

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Address:
        return Address(**{**raw, "level": Level.parse(raw["level"])})


class Connection:
    """One stream to the supervisor, used by one thread of one process."""

    def __init__(self, address: Address) -> None:
        self._reader = wire.Reader()
        self.sock = connect(address)

    def __del__(self) -> None:
        # A thread that ends drops its connection without a word.
        if hasattr(self, "sock"):
            self.sock.close()

    def exchange(self, frames: list[bytes]) -> list[dict[str, Any]]:
        """Send frames, a window of them at a time, and return as many answers.

        Raises:
            OSError, EOFError: when the supervisor is gone.
        """
        answers: list[dict[str, Any]] = []
        sent = 0
        while len(answers) < len(frames):
            ahead = min(len(frames), len(answers) + _WINDOW)
            if sent < ahead:
                self.sock.sendall(b"".join(frames[sent:ahead]))
                sent = ahead
            answers += [head for head, _ in wire.read_frame(self.sock, self._reader)]
        return answers


class Connections(threading.local):
    """The calling thread's connection; made anew in a forked process."""

    def __init__(self) -> None:
        self._pid = -1
        self._connection: Connection | None = None

    def get(self, address: Address) -> Connection:
        if self._connection is None or self._pid != os.getpid():
            self._connection, self._pid = Connection(address), os.getpid()
        return self._connection

    def forget(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.sock.close()
        self._connection = None


def connect(address: Address) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(b"\0" + address.name.encode())
    except BaseException:
        sock.close()
        raise
    return sock
