"""Messages between processes: a 4-byte big-endian length, then that many bytes of JSON.

Knows nothing of what the messages mean. JSON instead of pickle, so that a worker that runs foreign
code can at worst send a wrong value, never run something in its parent.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from educe.core.types import JSON

_LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 256 * 2**20


class FrameError(ValueError):
    """A message that cannot be sent, or bytes that are no message."""


def _plain(value: Any) -> JSON:
    """Turn what json does not know into what it does: numpy scalars and foreign mappings."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return item()
    raise FrameError(f"a {type(value).__name__} is no JSON value")


def to_text(value: JSON) -> str:
    """Return compact JSON text.

    Raises:
        FrameError: when a part of the value is not JSON (named by its type).
    """
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain)
    except FrameError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"not a JSON value: {error}") from error


def encode_frame(message: Mapping[str, JSON]) -> bytes:
    """Return the bytes of one message.

    Raises:
        FrameError: not JSON, or longer than ``MAX_FRAME_BYTES``.
    """
    body = to_text(message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, JSON]]:
        """Take bytes; return the messages that are now complete.

        Raises:
            FrameError: the stream is not made of frames (someone else wrote to it).
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame claims {length} bytes, over {MAX_FRAME_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            messages.append(_decode(body))
        return messages


def _decode(body: bytes) -> dict[str, JSON]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"a frame holds no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame holds a {type(message).__name__}, expected an object")
    return message


def read_frame(channel: socket.socket) -> dict[str, JSON] | None:
    """Block until one message is read from a blocking socket; None when the peer closed."""
    header = _read_exactly(channel, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame claims {length} bytes, over {MAX_FRAME_BYTES}")
    body = _read_exactly(channel, length)
    return None if body is None else _decode(body)


def _read_exactly(channel: socket.socket, count: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < count:
        try:
            piece = channel.recv(min(count - len(chunks), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        chunks += piece
    return bytes(chunks)
