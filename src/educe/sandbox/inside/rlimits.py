"""Resource limits of one process and of all it starts."""

# ruff: noqa: PTH123
from __future__ import annotations

import resource
import sys
from typing import Any

# The same for every job: a zygote sets them once, its boxes inherit them.
_FIXED = (
    # Not 0: a host that pipes core dumps to a handler ignores that, and skips at 1.
    ("RLIMIT_CORE", 1, 1),
    ("RLIMIT_STACK", 8 << 20, 16 << 20),
    ("RLIMIT_MEMLOCK", 65536, 65536),
    ("RLIMIT_MSGQUEUE", 0, 0),
    # Timers take one each, for as long as they are.
    ("RLIMIT_SIGPENDING", 1024, 1024),
    ("RLIMIT_NICE", 0, 0),
    ("RLIMIT_RTPRIO", 0, 0),
)


def apply_fixed() -> None:
    """Lower the limits that are the same for every job (those that this system has)."""
    for name, soft, hard in _FIXED:
        if hasattr(resource, name):
            _set(getattr(resource, name), soft, hard)


def apply_rlimits(
    limits: dict[str, Any], *, address_space: bool, process_base: int = -1, cpu_slack: int = 0
) -> None:
    """Lower this process's limits for good; what children inherit.

    ``process_base`` is the number of tasks that count against the same user already; -1 sets no
    limit of processes here. ``cpu_slack`` is added where somebody watches the job's processor time
    more closely: then this limit is the last resort.
    """
    cpu = max(1, int(limits["cpu_s"] + 0.999)) + cpu_slack
    wanted = [
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, limits["disk_mb"] << 20, limits["disk_mb"] << 20),
        (resource.RLIMIT_NOFILE, limits["num_descriptors"], limits["num_descriptors"]),
    ]
    if address_space:
        most = (limits["memory_mb"] << 20) + _address_space()
        wanted.append((resource.RLIMIT_AS, most, most))
    if process_base >= 0:
        most = process_base + limits["num_processes"]
        wanted.append((resource.RLIMIT_NPROC, most, most))
    for name, soft, hard in wanted:
        _set(name, soft, hard)


def _set(name: int, soft: int, hard: int) -> None:
    try:
        resource.setrlimit(name, (soft, hard))
    except (ValueError, OSError):
        _set_below(name, soft, hard)


def _set_below(name: int, soft: int, hard: int) -> None:
    """Set a limit no higher than it may be; a system other than Linux may know none of it."""
    ceiling = resource.getrlimit(name)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    try:
        resource.setrlimit(name, (soft, hard))
    except (ValueError, OSError):
        if sys.platform == "linux":
            raise


def _address_space() -> int:
    """Bytes of address space that the bare interpreter already uses."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 64 << 20
