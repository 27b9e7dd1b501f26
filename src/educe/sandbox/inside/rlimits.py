"""Resource limits of one process and of all it starts."""

# ruff: noqa: PTH123
from __future__ import annotations

import resource
import sys
from typing import Any

# Asked once: what the hard limits are does not change from box to box.
_CEILINGS = {
    getattr(resource, name): resource.getrlimit(getattr(resource, name))[1]
    for name in dir(resource)
    if name.startswith("RLIMIT_")
}


def apply_rlimits(
    limits: dict[str, Any], *, address_space: bool, process_base: int = -1, cpu_slack: int = 0
) -> None:
    """Lower this process's limits for good; what children inherit.

    ``process_base`` is the number of tasks that count against the same user already; -1 sets no
    limit of processes here. ``cpu_slack`` is added where somebody watches the job's processor time
    more closely: then this limit is the last resort.
    """
    cpu = max(1, int(limits["cpu_s"] + 0.999)) + cpu_slack
    mib = 1 << 20
    wanted = [
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, limits["disk_mb"] * mib, None),
        (resource.RLIMIT_NOFILE, limits["num_descriptors"], None),
        # Not 0: a host that pipes core dumps to a handler ignores that, and skips at 1.
        (resource.RLIMIT_CORE, 1, None),
        (resource.RLIMIT_STACK, 8 * mib, 16 * mib),
    ]
    if sys.platform == "linux":
        wanted += [(resource.RLIMIT_MEMLOCK, 65536, None), (resource.RLIMIT_MSGQUEUE, 0, None)]
        wanted += [(resource.RLIMIT_NICE, 0, None), (resource.RLIMIT_RTPRIO, 0, None)]
    if address_space:
        wanted.append((resource.RLIMIT_AS, limits["memory_mb"] * mib + _address_space(), None))
    if process_base >= 0:
        wanted.append((resource.RLIMIT_NPROC, process_base + limits["num_processes"], None))
    for name, soft, hard in wanted:
        ceiling = _CEILINGS.get(name, resource.RLIM_INFINITY)
        hard = soft if hard is None else hard
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
