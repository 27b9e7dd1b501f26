"""Control groups: memory and process limits of a whole job, and what it used.

Three kinds of host: version 1 controllers, the unified version 2 tree (ours or delegated), none.
Slots are made once and used again, because making and removing groups leaves dying ones behind in
the kernel.
"""

# ruff: noqa: PTH103, PTH106, PTH118, PTH123, PTH208, PTH102, PTH120
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

_PEAK_1 = "memory.max_usage_in_bytes"


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


class Slot:
    """One job's groups. ``limit`` before use, ``usage`` after. Its files are kept open."""

    def __init__(self, folders: dict[str, str], version: int) -> None:
        self.folders = folders
        self.version = version
        self._limits: tuple[int, int] | None = None
        self._cpu_ns = 0
        memory = folders["memory"]
        # Descriptors: a process that writes ``0`` to each entry is in the slot. A lone thread
        # enters version 1 as a thread: the kernel then needs no lock on all processes, for which it
        # may wait milliseconds (a grace period of RCU).
        entry = "cgroup.procs" if version == 2 else "tasks"
        self.entries = [
            os.open(f"{folder}/{entry}", os.O_WRONLY | os.O_CLOEXEC)
            for folder in dict.fromkeys(folders.values())
        ]
        events = "memory.events" if version == 2 else "memory.oom_control"
        self._events = os.open(f"{memory}/{events}", os.O_RDONLY | os.O_CLOEXEC)
        self._peak = _open_peak(memory, version)
        self._kills = self._count_kills()

    def limit(self, memory_mb: int, num_processes: int) -> None:
        """Set the limits and forget what the slot's last job used."""
        memory, pids = self.folders["memory"], self.folders["pids"]
        if self._limits != (memory_mb, num_processes):
            name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
            _write(f"{memory}/{name}", str(memory_mb << 20))
            if self.version == 2:
                with contextlib.suppress(OSError):
                    _write(f"{memory}/memory.swap.max", "0")
            _write(f"{pids}/pids.max", str(num_processes))
            self._limits = (memory_mb, num_processes)
        if self.version == 1:
            os.pwrite(self._peak, b"0", 0)
        self._kills = self._count_kills()
        self._cpu_ns = self._cpu_time_ns() if self.version == 2 else 0

    def cpu_s(self) -> float | None:
        """Return processor seconds of all processes since ``limit``; None when not counted here.

        Version 1 would need a third group (entering one costs every job a tenth of a millisecond).
        """
        return (self._cpu_time_ns() - self._cpu_ns) * 1e-9 if self.version == 2 else None

    def was_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process here for memory since ``limit``."""
        return self._count_kills() > self._kills

    def peak_mb(self) -> float:
        """Return the most memory used at once (0 where the kernel does not say)."""
        return int(os.pread(self._peak, 64, 0)) / (1 << 20) if self._peak >= 0 else 0.0

    def members(self) -> list[int]:
        """Return the processes inside."""
        return [int(pid) for pid in _read(f"{self.folders['pids']}/cgroup.procs").split()]

    def kill(self) -> bool:
        """Kill every process inside; False where the kernel cannot do it at one go."""
        if self.version != 2:
            return False
        try:
            _write(f"{self.folders['pids']}/cgroup.kill", "1")
        except OSError:
            return False  # before Linux 5.14
        return True

    def close(self) -> None:
        """Close its files."""
        for fd in (*self.entries, self._events, self._peak):
            if fd >= 0:
                os.close(fd)

    def _count_kills(self) -> int:
        # In both versions a line of its own, and never the first one.
        count = os.pread(self._events, 4096, 0).partition(b"\noom_kill ")[2].split(None, 1)
        return int(count[0]) if count else 0

    def _cpu_time_ns(self) -> int:
        found = re.search(r"usage_usec (\d+)", _read(f"{self.folders['memory']}/cpu.stat"))
        return int(found[1]) * 1000 if found else 0


def _open_peak(folder: str, version: int) -> int:
    """Return a descriptor of the highest use so far, -1 where this kernel keeps none."""
    name, flags = ("memory.peak", os.O_RDONLY) if version == 2 else (_PEAK_1, os.O_RDWR)
    try:
        return os.open(f"{folder}/{name}", flags | os.O_CLOEXEC)
    except FileNotFoundError:
        if version == 2:
            return -1
        raise


class Slots:
    """All slots of one supervisor, below groups named after it."""

    def __init__(self, parents: dict[str, str], version: int) -> None:
        self.version = version
        self._name = f"educe-{os.getpid()}"
        self._parents = {
            controller: os.path.join(parent, self._name) for controller, parent in parents.items()
        }
        self._free: list[Slot] = []
        self._count = 0
        _sweep(set(parents.values()))
        for folder in dict.fromkeys(self._parents.values()):
            os.mkdir(folder)
        if version == 2:
            _write(f"{self._parents['memory']}/cgroup.subtree_control", "+memory +pids")
        try:
            slot = self.take()
            slot.limit(64, 8)
            slot.cpu_s()
            slot.peak_mb()
            self.give_back(slot)
        except (OSError, ValueError):
            self.close()
            raise

    def take(self) -> Slot:
        """Return an empty slot."""
        if self._free:
            return self._free.pop()
        self._count += 1
        folders = {
            controller: f"{parent}/job{self._count}" for controller, parent in self._parents.items()
        }
        for folder in dict.fromkeys(folders.values()):
            os.makedirs(folder, exist_ok=True)
        return Slot(folders, self.version)

    def give_back(self, slot: Slot) -> None:
        """Take back a slot whose processes are all gone."""
        self._free.append(slot)

    def close(self) -> None:
        """Remove every group that is empty."""
        for slot in self._free:
            slot.close()
        _remove(self._parents.values())


def _remove(parents: Iterable[str]) -> None:
    for parent in dict.fromkeys(parents):
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                if name.startswith("job"):
                    with contextlib.suppress(OSError):
                        os.rmdir(f"{parent}/{name}")
            os.rmdir(parent)


def _sweep(parents: set[str]) -> None:
    """Remove groups of supervisors that died without cleaning up."""
    for parent in parents:
        for name in os.listdir(parent):
            number = name.removeprefix("educe-")
            if name.startswith("educe-") and number.isdigit() and not is_alive(int(number)):
                _remove([f"{parent}/{name}"])


def is_alive(pid: int) -> bool:
    """Return whether a process of that number exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def open_slots() -> Slots | None:
    """Return slots where this host lets us have them, None elsewhere."""
    for find, version in ((_version_1, 1), (_version_2, 2)):
        for parents in find():
            with contextlib.suppress(OSError, ValueError):
                return Slots(parents, version)
    return None


def _mounts() -> list[tuple[str, str, str, str]]:
    """Return (root, mount point, type, options) of every control-group mount."""
    found = []
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if kinds and kinds[0] in ("cgroup", "cgroup2"):
            found.append((fields[3], fields[4], kinds[0], kinds[-1]))
    return found


def _own_groups() -> dict[str, str]:
    """Return controller to this process's group; version 2 is the empty name."""
    groups = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _place(root: str, point: str, group: str) -> str:
    """Return the folder of a group below a mount that shows the tree from ``root`` on."""
    inside = group.removeprefix(root) if root != "/" else group
    return os.path.join(point, inside.lstrip("/")).rstrip("/")


def _version_1() -> list[dict[str, str]]:
    own, parents = _own_groups(), {}
    for root, point, kind, options in _mounts():
        if kind != "cgroup":
            continue
        for controller in options.split(","):
            if controller in ("memory", "pids") and controller in own:
                parents[controller] = _place(root, point, own[controller])
    return [parents] if len(parents) == 2 else []


def _version_2() -> list[dict[str, str]]:
    """Return the places worth trying: our own group, the one around it, the top."""
    own = _own_groups().get("")
    places: list[str] = []
    for root, point, kind, _ in _mounts():
        if kind == "cgroup2" and own is not None:
            here = _place(root, point, own)
            places += [here, os.path.dirname(here), point]
    good = []
    for place in dict.fromkeys(places):
        with contextlib.suppress(OSError):
            if {"memory", "pids"} <= set(_read(f"{place}/cgroup.controllers").split()):
                _enable(place)
                good.append({"memory": place, "pids": place})
    return good


def _enable(place: str) -> None:
    """Let groups below ``place`` have the controllers; fails where processes sit in it."""
    enabled = set(_read(f"{place}/cgroup.subtree_control").split())
    if not {"memory", "pids"} <= enabled:
        _write(f"{place}/cgroup.subtree_control", "+memory +pids")
