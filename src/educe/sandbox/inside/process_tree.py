"""What a job uses, read from /proc: for hosts where no control group counts it."""

# ruff: noqa: PTH116, PTH123, PTH208
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

_MUCH_SHARED_KIB = 1024
_TICK = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.05
# Times that children are listed while each list holds only new ones, all dead.
_LOOKS = 8


def pid_of(pidfd: int) -> int:
    """Return the process id (in our namespace) behind a pidfd, -1 when it is gone."""
    found = _read(f"/proc/self/fdinfo/{pidfd}").partition(b"\nPid:")[2].split(None, 1)
    return int(found[0]) if found else -1


def descendants(roots: list[int]) -> list[int]:
    """Return processes and everything they started, as far as parents are still alive."""
    found: list[int] = []
    waiting = [pid for pid in roots if pid > 0]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = _read(f"/proc/{pid}/task/{task}/children")
                waiting += [int(child) for child in children.split()]
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
    """Return how many children of a process still run (what a job left behind, for its init).

    One that ended between the two looks may have left a child of its own, which is adopted only
    then: as long as nobody is found alive and there are new ones, look again.
    """
    seen: set[bytes] = set()
    for _ in range(_LOOKS):
        children = _read(f"/proc/{pid}/task/{pid}/children").split()
        living = sum(_is_running(child) for child in children)
        if living or seen.issuperset(children):
            return living
        seen.update(children)
    return 1  # a chain that forks faster than we look


def _is_running(pid: bytes) -> bool:
    state = _read(f"/proc/{int(pid)}/stat").rpartition(b")")[2].split()[:1]
    return state not in ([], [b"Z"])


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


class Schedule(NamedTuple):
    """Seconds that a process ran, and was ready to run and did not.

    Not ordinary is one that stepped back by itself, in niceness or policy: it waits because it
    wants to.
    """

    ran_s: float
    waited_s: float
    is_ordinary: bool


_NEW = Schedule(0.0, 0.0, True)


class Usage(NamedTuple):
    """What processes use together.

    Attributes:
        memory_mb: resident, files aside; what they share is counted once.
        cpu_s: dead children's included.
        is_ready: whether an ordinary one is ready to run, or runs.
        schedules: of each process by itself.
    """

    memory_mb: float
    cpu_s: float
    is_ready: bool
    schedules: dict[int, Schedule]


def usage(pids: list[int], *, with_memory: bool = True, niceness: int = 0) -> Usage:
    """Return what processes use together. ``niceness``: of those that did not step back."""
    memory_kib = ticks = 0
    is_ready, schedules = False, {}
    for pid in pids:
        with contextlib.suppress(ValueError, IndexError):
            if with_memory:
                memory_kib += _memory_kib(pid)
            about = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            ticks += sum(int(number) for number in about[11:15])
            is_ordinary = int(about[16]) <= niceness and about[38] == b"0"
            schedules[pid] = Schedule(*_schedule(pid), is_ordinary)
            is_ready = is_ready or (is_ordinary and about[0] == b"R")
    return Usage(memory_kib / 1024, ticks / _TICK, is_ready, schedules)


def ran_since(before: dict[int, Schedule], now: dict[int, Schedule]) -> float:
    """Return how long processes ran between two looks, all together."""
    return sum(max(0.0, s.ran_s - before.get(pid, _NEW).ran_s) for pid, s in now.items())


def waited_since(before: dict[int, Schedule], now: dict[int, Schedule]) -> float:
    """Return how long a process waited between two looks while no other of them ran."""
    longest_s = 0.0
    for pid, schedule in now.items():
        if schedule.is_ordinary:
            last = before.get(pid, _NEW)
            waited_s = schedule.waited_s - last.waited_s
            longest_s = max(longest_s, waited_s + schedule.ran_s - last.ran_s)
    return max(0.0, longest_s - ran_since(before, now))


def _memory_kib(pid: int) -> int:
    """Return a process's anonymous memory and its part of the memory that it shares."""
    place = f"/proc/{pid}"
    about = _read(f"{place}/status")
    if b"\nRssAnon:" not in about:  # it is dead, or only its first thread is
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                place = f"/proc/{pid}/task/{task}"
                about = _read(f"{place}/status")
                if b"\nRssAnon:" in about:
                    break
    shared = _kib(about, b"\nRssShmem:")
    if shared > _MUCH_SHARED_KIB:  # the kernel divides it by those who share it, which takes longer
        shared = _kib(_read(f"{place}/smaps_rollup"), b"\nPss_Shmem:") or shared
    return _kib(about, b"\nRssAnon:") + shared


def _kib(text: bytes, name: bytes) -> int:
    fields = text.partition(name)[2].split(None, 1)
    return int(fields[0]) if fields else 0


def longest_wait_s(pids: list[int]) -> float:
    """Return how long the process that waited longest was ready to run and did not.

    0 where the kernel does not say (it needs ``CONFIG_SCHED_INFO``), or ``/proc`` is closed.
    """
    return max((waited for _, waited in map(_schedule, pids)), default=0.0)


def is_kept_waiting(pids: list[int], pause: Callable[[float], object]) -> bool:
    """Return whether a process is ready to run right now, and none gets on.

    The kernel counts a wait when it is over; one that lasts is seen by looking twice.
    """
    before = sum(ran for ran, _ in map(_schedule, pids))
    if not any(map(_is_ready, pids)):
        return False
    pause(_LOOK_S)
    return sum(ran for ran, _ in map(_schedule, pids)) <= before and any(map(_is_ready, pids))


def schedule_of(pid: int) -> Schedule:
    """Return the schedule of one process so far."""
    return Schedule(*_schedule(pid), True)


def _schedule(pid: int) -> tuple[float, float]:
    """Return the seconds that a process ran, and waited to run."""
    fields = _read(f"/proc/{pid}/schedstat").split()
    return (int(fields[0]) * 1e-9, int(fields[1]) * 1e-9) if len(fields) > 1 else (0.0, 0.0)


def _is_ready(pid: int) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2][:2] == b" R"


def num_tasks(uid: int) -> int:
    """Return the number of threads of all processes of a user."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
