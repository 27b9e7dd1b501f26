"""What supervisor and zygote tell each other: eight numbers a message, descriptors beside them.

Both ends keep the memory for a message in place. A zygote is forked all the time, so each page that
it touches between two forks is copied, and it would touch many for general containers.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct

from educe.sandbox.inside import kernel

# Order: box, disk_mb, num_inodes, loopback, uid, num_cgroups, has_job, 0.
# Report: kind, box, and of ``ARMED`` the pid; of ``EXIT`` status, processor µs, peak KiB, orphans.
# A text follows ``FAILED``.
MESSAGE = struct.Struct("<8q")
ARMED, EXIT, FAILED = 1, 2, 3
_MAX_FDS = 16
_HEADER = struct.Struct("<QIxxxxQQQQIxxxx")  # struct msghdr
_CMSG_BYTES = 16
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC


class Post:
    """A zygote's end of the socket to its supervisor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = ctypes.create_string_buffer(MESSAGE.size)
        self._rights = ctypes.create_string_buffer(_CMSG_BYTES + 4 * _MAX_FDS)
        part = struct.pack("<QQ", ctypes.addressof(self._data), MESSAGE.size)
        self._part = ctypes.create_string_buffer(part, len(part))
        header = _HEADER.pack(
            0, 0, ctypes.addressof(self._part), 1, ctypes.addressof(self._rights), 0, 0
        )
        self._header = ctypes.create_string_buffer(header, len(header))
        self.numbers = memoryview(self._data).cast("B").cast("q")
        self._cmsg_int = memoryview(self._rights).cast("B").cast("i")
        self._cmsg_long = memoryview(self._rights).cast("B").cast("q")
        self._header_long = memoryview(self._header).cast("B").cast("q")
        self._receive, self._send = kernel.number("recvmsg"), kernel.number("sendmsg")
        self._header_place = ctypes.addressof(self._header)

    def receive(self) -> list[int] | None:
        """Fill ``numbers``; return the descriptors that came along, None at the end."""
        self._header_long[5] = _CMSG_BYTES + 4 * _MAX_FDS
        call = kernel.raw_call
        if call(self._receive, self._fd, self._header_place, _CLOSE_ON_EXEC, 0, 0, 0) <= 0:
            return None
        if not self._header_long[5]:
            return []
        return self._cmsg_int[4 : self._cmsg_long[0] // 4].tolist()

    def send(self, kind: int, box: int, first: int, fds: tuple[int, int]) -> None:
        """Report with two descriptors."""
        numbers, rights = self.numbers, self._cmsg_int
        numbers[0], numbers[1], numbers[2] = kind, box, first
        self._cmsg_long[0], rights[2], rights[3] = 24, socket.SOL_SOCKET, socket.SCM_RIGHTS
        rights[4], rights[5] = fds
        self._header_long[5] = 24
        kernel.raw_call(self._send, self._fd, self._header_place, 0, 0, 0, 0)

    def send_exit(self, box: int, status: int, cpu_us: int, peak_kib: int, orphans: int) -> None:
        """Report how a box's program ended."""
        numbers = self.numbers
        numbers[0], numbers[1], numbers[2] = EXIT, box, status
        numbers[3], numbers[4], numbers[5] = cpu_us, peak_kib, orphans
        self._header_long[5] = 0
        kernel.raw_call(self._send, self._fd, self._header_place, 0, 0, 0, 0)

    def send_failure(self, box: int, text: str) -> None:
        """Report why a box is not there."""
        os.write(self._fd, MESSAGE.pack(FAILED, box, 0, 0, 0, 0, 0, 0) + text.encode()[:2000])


def send_order(sock: socket.socket, numbers: tuple[int, ...], fds: list[int]) -> None:
    """Send an order with a box's descriptors."""
    rights = array.array("i", fds).tobytes()
    sock.sendmsg([MESSAGE.pack(*numbers)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
