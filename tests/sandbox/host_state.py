"""What jobs must leave as it was: processes, descriptors, memory, mounts, control groups."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from educe.sandbox import Sandbox
from educe.sandbox.inside import cgroups

# A box in stock: its program and the first process of its namespace.
_PROCESSES_A_BOX = 2
# Its control channel, three pipes, what kills it (twice), what tells of refused calls, and its
# process and mounts in the zygote.
_FDS_A_BOX = 10
_FDS_A_GROUP = 2  # of the slots of control groups, which are kept and used again


@dataclass(frozen=True)
class HostState:
    """The supervisor's and its zygotes' share of the machine, with no job running.

    ``num_fds`` leaves out what boxes in stock and kept slots hold.
    """

    supervisor: int
    zygotes: tuple[int, ...]
    num_fds: int
    memory_mb: float
    num_mounts: int
    num_groups: int


def wait_for_rest(sandbox: Sandbox, seconds: float = 30.0) -> str:
    """Wait until no job runs and none of its processes is left; return a complaint otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        stats = sandbox.stats()
        alive = sum(_num_below(zygote) for zygote in stats["zygotes"])
        busy = stats["running"] + stats["promised"] + stats["sessions"] + stats["queued"]
        if not busy and alive <= _PROCESSES_A_BOX * (stats["ready"] + stats["arming"]):
            return ""
        if time.monotonic() >= deadline:
            return f"{alive} processes alive with {stats}"
        time.sleep(0.02)


def look(sandbox: Sandbox) -> HostState:
    """Return the state of a sandbox at rest.

    A box on order holds some of its descriptors, nobody knows how many: wait for it to be ready.
    """
    deadline = time.monotonic() + 30.0
    stats = sandbox.stats()
    while stats["arming"] and time.monotonic() < deadline:
        time.sleep(0.02)
        stats = sandbox.stats()
    pids = [stats["pid"], *stats["zygotes"]]
    num_groups = sum(
        len(list(Path(parent).glob(f"educe-{stats['pid']}/job*")))
        for parents in (*cgroups._version_1(), *cgroups._version_2())
        for parent in set(parents.values())
    )
    stock = _FDS_A_BOX * (stats["ready"] + stats["arming"]) + _FDS_A_GROUP * num_groups
    num_fds = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    return HostState(
        supervisor=stats["pid"],
        zygotes=tuple(stats["zygotes"]),
        num_fds=num_fds - stock,
        memory_mb=sum(_private_mb(pid) for pid in pids),
        num_mounts=sum(
            len(Path(f"/proc/{pid}/mounts").read_text().splitlines()) for pid in stats["zygotes"]
        ),
        num_groups=num_groups,
    )


def what_changed(
    before: HostState, after: HostState, *, fds: int = 64, memory_mb: float = 24.0
) -> list[str]:
    """Return what grew from one state to the other by more than a stock of boxes explains."""
    complaints = []
    if after.supervisor != before.supervisor or after.zygotes != before.zygotes:
        complaints.append(f"processes were replaced: {before} became {after}")
    if after.num_fds > before.num_fds + fds:
        complaints.append(f"descriptors grew from {before.num_fds} to {after.num_fds}")
    if after.memory_mb > before.memory_mb + memory_mb:
        complaints.append(f"memory grew from {before.memory_mb:.1f} to {after.memory_mb:.1f} MiB")
    if after.num_mounts > before.num_mounts:
        complaints.append(f"mounts grew from {before.num_mounts} to {after.num_mounts}")
    if after.num_groups > before.num_groups + 4 * fds:
        complaints.append(f"control groups grew from {before.num_groups} to {after.num_groups}")
    return complaints


def _num_below(pid: int) -> int:
    """Return the number of living processes below one."""
    count, waiting = 0, [pid]
    while waiting:
        tasks = Path(f"/proc/{waiting.pop()}/task")
        try:
            threads = list(tasks.iterdir())
        except OSError:  # it ended while we looked
            continue
        for thread in threads:
            try:
                text = (thread / "children").read_text()
            except OSError:
                continue
            children = [int(child) for child in text.split()]
            count += len(children)
            waiting += children
    return count


def _private_mb(pid: int) -> float:
    """Return the resident memory that belongs to one process alone, in MiB."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096 / (1 << 20)


@contextmanager
def listener() -> Iterator[None]:
    """Be what the rows on abstract sockets and on files outside look for: without it they would
    prove nothing.
    """
    with _stand_in(), socket.socket(socket.AF_UNIX) as server:
        # Of this process: another one's could end, or be full, in the middle of a row.
        server.bind(f"\0educe-test-socket-{os.getpid()}")
        server.listen(8)
        yield


@contextmanager
def _stand_in() -> Iterator[None]:
    """Keep a file of this user outside all boxes: what stands for the files that a job must leave
    alone, and that nobody else would miss.
    """
    path = Path(tempfile.gettempdir(), f"educe-test-stand-in-{os.getpid()}")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        path.chmod(0o666)
        yield
    finally:
        path.unlink()
