"""Length-prefixed frames between the user's process and its supervisor.

A frame is ``<II`` (length of a marshalled head, length of a blob), the head and the blob. Both ends
are ours and run the same interpreter; a box never speaks this.
"""

from __future__ import annotations

import marshal
import socket
import struct
from typing import Any

PREFIX = struct.Struct("<II")
MAX_FRAME = 1 << 30
# What is read at once: below what the C library maps anew for each buffer.
CHUNK = 1 << 16


def pack(head: dict[str, Any], blob: bytes = b"") -> bytes:
    raw = marshal.dumps(head)
    return PREFIX.pack(len(raw), len(blob)) + raw + blob


class Reader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Add bytes; return the frames that are now complete.

        Raises:
            ValueError: for a frame longer than any we send.
        """
        self._data += data
        frames = []
        while len(self._data) >= PREFIX.size:
            head_length, blob_length = PREFIX.unpack_from(self._data)
            if head_length + blob_length > MAX_FRAME:
                raise ValueError("a frame is too long")
            end = PREFIX.size + head_length + blob_length
            if len(self._data) < end:
                break
            middle = PREFIX.size + head_length
            head = marshal.loads(self._data[PREFIX.size : middle])
            frames.append((head, bytes(self._data[middle:end])))
            del self._data[:end]
        return frames


def read_frame(sock: socket.socket, reader: Reader) -> list[tuple[dict[str, Any], bytes]]:
    """Block until at least one frame is there.

    Raises:
        EOFError: when the other end is gone.
    """
    while True:
        data = sock.recv(CHUNK)
        if not data:
            raise EOFError("the sandbox's supervisor is gone")
        frames = reader.feed(data)
        if frames:
            return frames
