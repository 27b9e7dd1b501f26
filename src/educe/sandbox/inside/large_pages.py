"""A zygote's memory in large pages, so that forks are cheaper.

A fork does not copy what maps a file: the child finds each page of the interpreter's code again,
some fifty faults a box. So a zygote puts an exact copy of the code, as anonymous memory in pages of
2 MiB, in the place of the file's mapping. A fork then copies one entry for each of them. Nothing
else changes: same addresses, same content, not writable.

Of the heap a fork copies an entry for each page, and its end goes through them again. The pages of
one large page are done together. Only whole, aligned 2 MiB can become one, so objects have to lie
side by side from the start (:func:`make_room`).

Where the kernel has no large page to give, everything stays as it was.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import contextlib
import ctypes

from educe.sandbox.inside import kernel

LARGE = 2 << 20
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE_ANONYMOUS = 0x22
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # the latter since Linux 6.1
_MAYMOVE_FIXED = 1 | 2


# Modules in C that a zygote will load: each one loaded later would cut the heap in two.
_IN_C = """
_bisect _ctypes _heapq _json _opcode _random _sha512 _socket _struct _typing array binascii fcntl
math mmap resource select
"""
_M_TOP_PAD = -2
_LEAST_USED = 0.5  # of 2 MiB, or memory is wasted


def make_room() -> None:
    """Let this process's memory grow in one piece from here on; before most imports."""
    for name in _IN_C.split():
        with contextlib.suppress(ImportError):
            __import__(name)
    ctypes.CDLL(None).mallopt(_M_TOP_PAD, LARGE)
    with contextlib.suppress(OSError):
        # The kernel puts what is new below what it placed last: let that be where 2 MiB begin.
        size = 1 << 20
        place = kernel.call("mmap", 0, size, 0, _PRIVATE_ANONYMOUS, -1, 0)
        kernel.call("munmap", place, size)
        above = (place + size) % LARGE
        if above:
            kernel.call("mmap", place + size - above, above, 0, _PRIVATE_ANONYMOUS, -1, 0)


def use_for_data() -> int:
    """Make large pages of a heap that is used by now; return how many."""
    made = 0
    for low, high, used in _heaps():
        if used < _LEAST_USED * (high - low):
            continue
        for start in range(-(-low // LARGE) * LARGE, high - LARGE + 1, LARGE):
            with contextlib.suppress(OSError):
                kernel.call("madvise", start, LARGE, _MADV_COLLAPSE)
                made += 1
    return made


def _heaps() -> list[tuple[int, int, int]]:
    """Return (from, to, bytes used) of anonymous writable memory."""
    found, place = [], (0, 0)
    with open("/proc/self/smaps") as file:
        for line in file:
            name, *rest = line.split()
            if not name.endswith(":"):
                low, high = (int(number, 16) for number in name.split("-"))
                is_heap = rest[0] == "rw-p" and rest[3] == "0" and rest[4:] in ([], ["[heap]"])
                place = (low, high) if is_heap else (0, 0)
            elif name == "Rss:" and place[1]:
                found.append((*place, int(rest[0]) << 10))
    return found


def use_for_code() -> int:
    """Move every aligned 2 MiB of code that is mapped from a file; return how many were moved.

    Only for a single-threaded process. Data that lies between pieces of code (constants, symbol
    tables) becomes executable with it.
    """
    moved = 0
    for low, high in _code_ranges():
        for start in range(-(-low // LARGE) * LARGE, high - LARGE + 1, LARGE):
            with contextlib.suppress(OSError):
                _move(start)
                moved += 1
    return moved


def _code_ranges() -> list[tuple[int, int]]:
    """Return neighbouring read-only mappings of one file with code among them, as one range."""
    found: list[tuple[int, int, str, bool]] = []
    with open("/proc/self/maps") as file:
        for line in file:
            place, access, _, _, inode, *names = line.split(None, 5)
            low, high = (int(number, 16) for number in place.split("-"))
            if inode == "0" or not names or access not in ("r--p", "r-xp"):
                continue
            name, is_code = names[0], access == "r-xp"
            if found and found[-1][1] == low and found[-1][2] == name:
                before = found.pop()
                low, is_code = before[0], is_code or before[3]
            found.append((low, high, name, is_code))
    return [(low, high) for low, high, _, is_code in found if is_code]


def _move(start: int) -> None:
    """Put a copy into the place of 2 MiB of code.

    Raises:
        OSError: when there is no large page, or the kernel refuses; nothing has changed then.
    """
    room = kernel.call("mmap", 0, 2 * LARGE, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    copy = -(-room // LARGE) * LARGE
    try:
        kernel.call("madvise", copy, LARGE, _MADV_HUGEPAGE)
        ctypes.memmove(copy, start, LARGE)
        kernel.call("madvise", copy, LARGE, _MADV_COLLAPSE)  # fails unless it is one page now
        kernel.call("mprotect", copy, LARGE, _READ | _EXECUTE)
        kernel.call("mremap", copy, LARGE, LARGE, _MAYMOVE_FIXED, start)
    finally:
        # What is left of the room, around the copy and where it was.
        kernel.call("munmap", room, 2 * LARGE)
