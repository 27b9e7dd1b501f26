"""Frames on the result channel: ``<BIfI`` (kind, case index, cpu seconds, body length), a body."""

from __future__ import annotations

import os
import struct

START, CASE, CASE_TIMEOUT, CASE_DIED, END, COMPILE, IMPORT, IMPORT_EXIT, MEMORY, TEST = range(1, 11)
HEADER = struct.Struct("<BIfI")
CASE_HEADER = struct.Struct("<I")
MAX_ERROR = 4000
_write, _exit = os.write, os._exit  # before any candidate could patch them


def send(fd: int, kind: int, index: int = 0, cpu_s: float = 0.0, body: bytes = b"") -> None:
    """Write one whole frame; ends the process when nobody listens any more."""
    write_all(fd, HEADER.pack(kind, index, cpu_s, len(body)) + body)


def write_all(fd: int, data: bytes) -> None:
    """Write whole frames; ends the process when nobody listens any more."""
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError:
        _exit(1)


def clip(text: str) -> bytes:
    raw = text.encode("utf-8", "backslashreplace")
    return raw if len(raw) <= MAX_ERROR else raw[:MAX_ERROR] + b"..."
