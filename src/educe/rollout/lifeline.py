"""The worker's side of being a child: its channel, its limits, and dying with its parent.

A worker may be stuck in one C call that never gives Python back (a power tower in integer
arithmetic holds the interpreter lock for hours), so no thread of it can be relied on to notice that
the parent is gone. PR_SET_PDEATHSIG is no help either: it fires when the *thread* that started the
child ends. Instead the parent holds the only write end of a pipe, and the kernel itself sends
SIGKILL to the worker's process group when that end closes (O_ASYNC with F_SETSIG, Linux). Elsewhere
a thread watches the pipe.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
from dataclasses import dataclass

_PARENT_CHECK_MS = 5000


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """What the parent hands over on the command line (see ``WorkerProcess``)."""

    channel_fd: int
    lifeline_fd: int
    parent_pid: int

    def to_argv(self) -> list[str]:
        return [str(self.channel_fd), str(self.lifeline_fd), str(self.parent_pid)]

    @staticmethod
    def from_argv(argv: list[str]) -> WorkerArguments:
        return WorkerArguments(*(int(a) for a in argv))


def become_worker(arguments: WorkerArguments) -> socket.socket:
    """Tie this process to its parent's life and return the blocking channel to it."""
    os.set_inheritable(arguments.channel_fd, False)
    os.set_inheritable(arguments.lifeline_fd, False)
    die_with_parent(arguments.lifeline_fd, arguments.parent_pid)
    channel = socket.socket(fileno=arguments.channel_fd)
    channel.setblocking(True)
    return channel


def die_with_parent(lifeline_fd: int, parent_pid: int) -> None:
    """End this process and its process group as soon as the lifeline's write end closes."""
    leads_group = os.getpgrp() == os.getpid()
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp() if leads_group else os.getpid())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    # The parent may have died before the kernel was told; the thread's first look finds that. It
    # also covers a fork of the parent that holds the write end open after the parent's death.
    watcher = threading.Thread(
        target=_watch, args=(lifeline_fd, parent_pid, leads_group), name="lifeline", daemon=True
    )
    watcher.start()


def _watch(lifeline_fd: int, parent_pid: int, leads_group: bool) -> None:
    poller = select.poll()
    poller.register(lifeline_fd, select.POLLIN | select.POLLHUP)
    while not poller.poll(_PARENT_CHECK_MS):
        if os.getppid() != parent_pid:
            break
    if leads_group:
        with contextlib.suppress(OSError):
            os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def limit_memory(memory_mb: int) -> None:
    """Cap this process's address space, so that a greedy checker gets MemoryError.

    Only the soft limit is lowered: a child with its own limits (the sandbox's) may set them anew.
    0 means no cap. Core dumps are switched off.
    """
    _, hard_core = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_core))
    if not memory_mb:
        return
    wanted = memory_mb * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    # macOS knows the limit but refuses to set it; the deadline still bounds the damage there.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
