"""What turns a fresh fork of a zygote into a box: mounts, user, descriptors, Landlock, seccomp.

With namespaces everything is known before the fork, so it is laid out as :class:`Steps` there. The
confined level asks the system things on the way and stays ordinary code.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from educe.sandbox.inside import kernel, landlock, process_tree
from educe.sandbox.inside.root_folder import JOB, WORK
from educe.sandbox.inside.seccomp import Filter
from educe.sandbox.inside.steps import Steps

RESULT_FD, CONTROL_FD = 3, 4
FIRST_FREE_FD = 5
JOB_UID = 1000  # what an unprivileged box calls itself inside its own user namespace
ORDER_BYTES = 4096
_LAST_FD = 0x7FFFFFFF
_MAX_KNOWN = 2048
_FOLDERS = (WORK, JOB + "/tmp", JOB + "/shm")


@dataclass(slots=True)
class Order:
    """A box that the supervisor wants, with its descriptors."""

    box: int
    disk_mb: int
    num_inodes: int
    loopback: int  # 1: with a network of its own
    uid: int
    num_cgroups: int
    fds: list[int]

    @staticmethod
    def of(numbers: memoryview[int], fds: list[int]) -> Order:
        """Return what the numbers of a message say (see ``orders``)."""
        box, disk_mb, num_inodes, loopback, uid, num_cgroups = numbers[:6]
        return Order(box, disk_mb, num_inodes, loopback, uid, num_cgroups, fds)

    @property
    def cgroup_entries(self) -> list[int]:
        return self.fds[4 : 4 + self.num_cgroups]


class Prepared:
    """What boxes of one shape and user do after their fork, before and after the network."""

    def __init__(self, loopback: bool) -> None:
        self.first, self.rest, self.loopback = Steps(), Steps(), loopback
        self.takers: list[int] = []  # places in ``first`` of an order's descriptors

    def run(self) -> None:
        self.first.run()
        if self.loopback:
            _raise_loopback()
        self.rest.run()


class Preparation:
    """How the boxes of one zygote are prepared.

    Args:
        mode: ``root``, ``user`` or ``confined``.
        layers: what is switched on (see ``embedded.ALL_LAYERS``).
        system: paths of the host that a confined box may read.
        schedule: how the kernel is to schedule a box (``sched_attr``); empty: as the zygote.
    """

    def __init__(
        self,
        mode: str,
        layers: frozenset[str],
        *,
        has_cgroup: bool,
        can_change_user: bool,
        system: list[str],
        seccomp: Filter,
        schedule: bytes,
    ) -> None:
        self.mode, self.layers, self.system = mode, layers, system
        self.can_change_user = can_change_user
        self.seccomp = seccomp
        self.schedule = schedule
        self.landlock = landlock.abi_version() if "landlock" in layers else 0
        self.rulesets: dict[bool, int] = {}
        self._known: dict[bytes, Prepared] = {}
        # In a namespace of its own, or with a user of its own, a box starts from nothing.
        self.process_base = 0 if not has_cgroup or mode == "user" else -1

    def make_rulesets(self, readable: list[str], writable: list[str]) -> None:
        """Make the rule sets that all namespaced boxes enter, out of the way of other numbers."""
        import fcntl

        if not self.landlock:
            return
        for allow_tcp in (False, True):
            made = landlock.make_ruleset(self.landlock, readable, writable, allow_tcp=allow_tcp)
            self.rulesets[allow_tcp] = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 100)
            os.close(made)

    # ---- with namespaces ----

    def lay_out(self, numbers: memoryview[int], fds: list[int]) -> Prepared:
        """Return what a namespaced box has to do after its fork; the numbers are an order's."""
        key = bytes(numbers[1:6])
        prepared = self._known.get(key)
        if prepared is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            prepared = self._known[key] = self._prepare(Order.of(numbers, fds))
        for place, fd in zip(prepared.takers, fds, strict=True):
            prepared.first.change(place, fd)
        return prepared

    def _prepare(self, order: Order) -> Prepared:
        ruleset = self.rulesets.get(bool(order.loopback), -1)
        prepared = Prepared(bool(order.loopback))
        first, rest = prepared.first, prepared.rest
        self._be_ordinary(first)
        groups = [first.write(fd, b"0") for fd in order.cgroup_entries]
        prepared.takers = [*_place_descriptors(first, order.fds, ruleset), *groups]
        self._mount(first, order)
        self._drop_privileges(rest, order.uid)
        for folder in _FOLDERS:
            rest.make_folder(folder, 0o700)
        rest.add("chdir", WORK)
        if ruleset >= 0:
            rest.add("landlock_restrict_self", ruleset)
            rest.add("close", ruleset)
        if "seccomp" in self.layers:
            self.seccomp.add_to(rest)
        if "seccomp" in self.layers and self.seccomp.tells:
            # The listener has the lowest free number: everything behind the channels is closed.
            rest.send_descriptor(CONTROL_FD, b"R", FIRST_FREE_FD)
            rest.add("close", FIRST_FREE_FD)
        else:
            rest.write(CONTROL_FD, b"R")
        return prepared

    def _be_ordinary(self, steps: Steps) -> None:
        if self.schedule:
            steps.add("sched_setattr", 0, self.schedule, 0)

    def _mount(self, steps: Steps, order: Order) -> None:
        owner = 0 if self.mode == "user" else order.uid
        options = f"size={order.disk_mb}m,nr_inodes={order.num_inodes},mode=700"
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        steps.mount("tmpfs", JOB, flags, f"{options},uid={owner},gid={owner}")
        flags |= kernel.MS_NOEXEC
        steps.mount("proc", "/proc", flags, "subset=pid" if self.mode == "root" else "")

    def _drop_privileges(self, steps: Steps, uid: int) -> None:
        if self.mode == "root" and "privileges" in self.layers:
            steps.add("setgroups", 0, 0)
            steps.add("setresgid", uid, uid, uid)
            steps.add("setresuid", uid, uid, uid)
        elif self.mode == "user":
            # A user namespace of its own makes RLIMIT_NPROC count this box alone.
            steps.add("unshare", kernel.CLONE_NEWUSER)
            steps.add("prctl", kernel.PR_SET_DUMPABLE, 1)  # or /proc/self is not ours to write
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{JOB_UID} 0 1"),
                ("gid_map", f"{JOB_UID} 0 1"),
            ):
                steps.write_file(f"/proc/self/{name}", text, fd=FIRST_FREE_FD)
            steps.add("capset", *kernel.NO_CAPABILITIES)
        steps.add("prctl", kernel.PR_SET_DUMPABLE, 1)
        steps.add("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1)

    # ---- confined ----

    def confine(self, order: Order) -> None:
        """Prepare a box without namespaces; its folder's path comes over the control channel."""
        for fd in order.cgroup_entries:
            os.write(fd, b"0")
        steps = Steps()
        self._be_ordinary(steps)
        _place_descriptors(steps, order.fds, -1)
        steps.run()
        os.setsid()
        folder = os.read(CONTROL_FD, ORDER_BYTES).decode()
        os.chdir(folder)
        os.environ.update(HOME=folder, TMPDIR=folder)
        if not self.can_change_user:
            # The user's other processes count too, so the limit starts from what there is.
            self.process_base = process_tree.num_tasks(os.getuid())
        ruleset = self._confined_ruleset(folder)
        if os.getuid() == 0 and "privileges" in self.layers:
            if self.can_change_user:
                os.setgroups([])
                os.setresgid(order.uid, order.uid, order.uid)
                os.setresuid(order.uid, order.uid, order.uid)
            kernel.drop_bounding_set()
            kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if ruleset >= 0:
            landlock.restrict(ruleset)
            os.close(ruleset)
        listener = self.seccomp.install() if "seccomp" in self.layers else 0
        ready = Steps()
        if listener:
            ready.send_descriptor(CONTROL_FD, b"R", listener)
            ready.add("close", listener)
        else:
            ready.write(CONTROL_FD, b"R")
        ready.run()

    def _confined_ruleset(self, folder: str) -> int:
        if not self.landlock:
            return -1
        devices = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
        return landlock.make_ruleset(
            self.landlock, [*self.system, *devices], [folder, "/dev/null"], allow_tcp=False
        )


def _place_descriptors(steps: Steps, fds: list[int], kept: int) -> list[int]:
    """Put the box's descriptors where they belong and close everything else but ``kept``.

    The zygote keeps 0 to 4 taken, so no descriptor of an order is in the way of another.

    Returns:
        The places of ``fds`` in the steps.
    """
    control, out, err, result = fds[:4]
    places = [
        steps.add("dup3", control, CONTROL_FD, os.O_CLOEXEC),
        steps.add("dup3", out, 1),
        steps.add("dup3", err, 2),
        steps.add("dup3", result, RESULT_FD, os.O_CLOEXEC),
    ]
    if kept < 0:
        steps.add("close_range", FIRST_FREE_FD, _LAST_FD)
    else:
        steps.add("close_range", FIRST_FREE_FD, kept - 1)
        steps.add("close_range", kept + 1, _LAST_FD)
    return places


def _raise_loopback() -> None:
    """Bring ``lo`` up in the box's own network namespace."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(sock.fileno(), 0x8914, request)  # SIOCSIFFLAGS
