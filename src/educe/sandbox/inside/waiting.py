"""Waiting for children into memory that is in place, which a process that forks much is spared
to copy.
"""

from __future__ import annotations

import ctypes
import os

from educe.sandbox.inside import kernel


class Waiting:
    """Waits for children, into memory that is in place."""

    def __init__(self) -> None:
        self._status = ctypes.create_string_buffer(8)
        self._usage = ctypes.create_string_buffer(144)  # struct rusage
        self._status_int = memoryview(self._status).cast("B").cast("i")
        self._numbers = memoryview(self._usage).cast("B").cast("q")
        self._call = kernel.number("wait4")
        self._places = ctypes.addressof(self._status), ctypes.addressof(self._usage)

    def wait(self, pid: int) -> tuple[int, int, int] | None:
        """Wait for a child; return (status, processor µs, peak KiB), None when it is not there.

        The status is negative for a signal.
        """
        status, usage = self._places
        if kernel.raw_call(self._call, pid, status, kernel.WALL, usage, 0, 0) != pid:
            return None
        numbers, word = self._numbers, self._status_int[0]
        cpu_us = (numbers[0] + numbers[2]) * 1_000_000 + numbers[1] + numbers[3]
        return (-(word & 0x7F) or word >> 8 & 0xFF), cpu_us, numbers[4]

    def is_buried(self, pid: int) -> bool:
        """Return whether a child was dead (and is waited for now) or is nobody's."""
        return bool(kernel.raw_call(self._call, pid, 0, kernel.WALL | os.WNOHANG, 0, 0, 0) != 0)
