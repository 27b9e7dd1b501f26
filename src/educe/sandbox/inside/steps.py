"""System calls laid out before a fork and made after it, one after another.

A forked child copies every page it writes to, and in Python that is every page it looks at: what it
costs to prepare a box is how many objects are touched on the way. A list of numbers and addresses,
gone through by one loop, touches next to none.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct
from typing import Any

from educe.sandbox.inside import kernel

_CWD = -100  # AT_FDCWD


class Steps:
    """A list of system calls. Whatever they point at lives as long as the list does.

    Numbers may be changed between two runs, so a list is made once and serves many forks.
    """

    def __init__(self) -> None:
        self._numbers = array.array("q")  # of each call: its number and six arguments
        self._names: list[str] = []
        self._buffers: list[Any] = []
        self._errno = kernel.errno_place()  # found before the fork

    def add(self, name: str, *arguments: int | bytes | str) -> int:
        """Append a call; text becomes the address of a NUL-terminated copy, bytes of a copy.

        Returns:
            Where its first argument is, for :meth:`change`.
        """
        numbers = [self._number(argument) for argument in arguments]
        self._numbers.extend([kernel.number(name), *numbers, *[0] * (6 - len(numbers))])
        self._names.append(name)
        return len(self._numbers) - 6

    def change(self, place: int, value: int) -> None:
        """Replace a first argument."""
        self._numbers[place] = value

    def _number(self, argument: int | bytes | str) -> int:
        if isinstance(argument, int):
            return argument
        data = argument.encode() + b"\0" if isinstance(argument, str) else argument
        buffer = ctypes.create_string_buffer(data, len(data))
        self._buffers.append(buffer)
        return ctypes.addressof(buffer)

    def write(self, fd: int, data: bytes) -> int:
        """Append: write a few bytes to a descriptor."""
        return self.add("write", fd, data, len(data))

    def mount(self, kind: str, target: str, flags: int, options: str) -> None:
        """Append: mount a file system that needs no source."""
        self.add("mount", kind, target, kind, flags, options)

    def make_folder(self, path: str, mode: int) -> None:
        """Append: create a folder."""
        self.add("mkdirat", _CWD, path, mode)

    def write_file(self, path: str, text: str, *, fd: int) -> None:
        """Append: write an existing file, whose descriptor will be ``fd`` (the lowest free)."""
        self.add("openat", _CWD, path, os.O_WRONLY | os.O_CLOEXEC, 0)
        self.write(fd, text.encode())
        self.add("close", fd)

    def send_descriptor(self, sock: int, data: bytes, fd: int) -> None:
        """Append: send a few bytes and a descriptor over a socket."""
        part = struct.pack("<QQ", self._number(data), len(data))
        rights = struct.pack("<Qiiixxxx", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)
        message = struct.pack(
            "<QIxxxxQQQQIxxxx", 0, 0, self._number(part), 1, self._number(rights), 24, 0
        )
        self.add("sendmsg", sock, message, 0)

    def run(self) -> None:
        """Make all calls in order.

        Raises:
            OSError: at the first that fails, with its name.
        """
        numbers, call = self._numbers, kernel.raw_call
        for at in range(0, len(numbers), 7):
            if call(*numbers[at : at + 7]) < 0:
                code = self._errno.value
                raise OSError(code, f"{self._names[at // 7]}: {os.strerror(code)}")

    def try_all(self) -> None:
        """Make all calls in order, whatever they return."""
        numbers, call = self._numbers, kernel.raw_call
        for at in range(0, len(numbers), 7):
            call(*numbers[at : at + 7])
