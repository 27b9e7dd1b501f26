"""What a job uses, read from /proc: for hosts where no control group counts it."""

# ruff: noqa: PTH116, PTH123, PTH208
from __future__ import annotations

import contextlib
import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def pid_of(pidfd: int) -> int:
    """Return the process id (in our namespace) behind a pidfd, -1 when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1


def descendants(roots: list[int]) -> list[int]:
    """Return processes and everything they started, as far as parents are still alive."""
    found: list[int] = []
    waiting = [pid for pid in roots if pid > 0]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as f:
                    waiting += [int(child) for child in f.read().split()]
    return found


def group_members(group: int) -> list[int]:
    """Return the processes of a process group."""
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[2]) == group:
                    members.append(int(name))
    return members


def num_living_children(pid: int) -> int:
    """Return how many children of a process still run (what a job left behind, for its init)."""
    return sum(
        _read(f"/proc/{int(child)}/stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])
        for child in _read(f"/proc/{pid}/task/{pid}/children").split()
    )


def _read(path: str) -> bytes:
    """Return a small file's content, nothing when it is gone (without a buffered file's cost)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)


def usage(pids: list[int]) -> tuple[float, float]:
    """Return (private resident MiB, processor seconds) of processes and their dead children."""
    pages = ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/statm") as file:
                fields = file.read().split()
            pages += int(fields[1]) - int(fields[2])
            with open(f"/proc/{pid}/stat", "rb") as stat:
                numbers = stat.read().rpartition(b")")[2].split()
            ticks += sum(int(number) for number in numbers[11:15])
    return pages * _PAGE / (1 << 20), ticks / _TICK


def num_tasks(uid: int) -> int:
    """Return the number of threads of all processes of a user."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
