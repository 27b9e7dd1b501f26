"""Which memory a job touches first: learned once, so that a parked box has its own copy in time.

A forked box shares its zygote's pages and copies each when it first writes to it, which in Python
is when it first looks at an object there. Nearly the same two hundred pages are copied for every
job, and half of a prepared box's answer is spent on that. So a zygote lets one child run a small
job, notes the pages that became the child's own, and every box that is parked asks the kernel for
copies of its own while nobody waits. Nothing that a program can see changes: no object is made or
moved.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import array
import atexit
import marshal
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from educe.sandbox.inside import kernel
from educe.sandbox.inside.preparation import CONTROL_FD
from educe.sandbox.inside.root_folder import JOB, WORK
from educe.sandbox.inside.steps import Steps

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_PAGE = os.sysconf("SC_PAGE_SIZE")
# In /proc/PID/pagemap: present, and mapped by nobody else.
_OWN = (1 << 63) | (1 << 56)
_MAX_PAGES = 1024
_PATIENCE_S = 20


def learn(sample: bytes, run: Callable[[], NoReturn]) -> Steps | None:
    """Let a child run a job and return what gives a box the pages that became the child's own.

    Args:
        sample: the job, as it comes over a box's control channel.
        run: reads it there, runs it and exits.

    Returns:
        Calls that may all fail; None when nothing was learned.
    """
    ranges = _writable_ranges()
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    ours.sendall(sample)
    # Suspended until the child is gone, we touch nothing that would look like the child's doing.
    pid, pidfd = kernel.fork(kernel.CLONE_NEWNS | kernel.CLONE_VFORK, signal.SIGCHLD)
    if pid == 0:
        _be_the_child(theirs.fileno(), writer, ranges, run)
    os.close(writer)
    os.close(pidfd)
    ours.close()
    theirs.close()
    with os.fdopen(reader, "rb") as file:
        told = file.read()
    os.waitpid(pid, 0)
    return _steps(marshal.loads(told)) if told else None


def _be_the_child(
    control: int, writer: int, ranges: list[tuple[int, int]], run: Callable[[], NoReturn]
) -> NoReturn:
    signal.alarm(_PATIENCE_S)  # the zygote waits for us
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self is not an ordinary user's to read
        kernel.mount("tmpfs", JOB, "tmpfs", kernel.MS_NOSUID, "size=1m")
        os.mkdir(WORK)  # noqa: PTH102
        os.chdir(WORK)
        os.dup2(0, 1)
        os.dup2(control, CONTROL_FD)
        atexit.register(_tell, writer, ranges)
        run()
    finally:
        os._exit(1)


def _writable_ranges() -> list[tuple[int, int]]:
    """Return the private, writable memory of this process."""
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            place, access = line.split()[:2]
            if access == "rw-p":
                low, high = place.split("-")
                found.append((int(low, 16), int(high, 16)))
    return found


def _tell(writer: int, ranges: list[tuple[int, int]]) -> None:
    """Write the runs of pages that are this process's own: pairs of address and length."""
    fd = os.open("/proc/self/pagemap", os.O_RDONLY)
    tables = [os.pread(fd, (high - low) // _PAGE * 8, low // _PAGE * 8) for low, high in ranges]
    runs: list[list[int]] = []
    for (low, _), table in zip(ranges, tables, strict=True):
        for number, entry in enumerate(array.array("Q", table)):
            address = low + number * _PAGE
            if entry & _OWN != _OWN:
                continue
            if runs and sum(runs[-1]) == address:
                runs[-1][1] += _PAGE
            else:
                runs.append([address, _PAGE])
    os.write(writer, marshal.dumps(runs))


def _steps(runs: list[list[int]]) -> Steps | None:
    if not runs or sum(length for _, length in runs) > _MAX_PAGES * _PAGE:
        return None  # more than a job touches: something else was going on
    steps = Steps()
    for address, length in runs:
        steps.add("madvise", address, length, _POPULATE_WRITE)
    return steps
