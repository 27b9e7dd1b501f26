"""A clean process that boxes are forked from.

It was exec'ed, so it holds nothing of the user's process; it never sees a program, a test or a
secret, because a box reads its job only after the fork. It stays single-threaded. In the namespace
modes it is the first process of its own pid namespace: when it dies the kernel ends all its boxes.

Orders come as marshalled tuples with descriptors on a SEQPACKET socket (descriptor 3):
``(box id, disk_mb, num_inodes, loopback, uid, num_cgroup_fds)``; answers are ``("armed", id, pid)``
with pidfds (what to kill, the box), ``("exit", id, status, cpu_s, peak_kb, orphans)`` and
``("failed", id, text)``.
"""

# ruff: noqa: PTH108, PTH110, PTH102, PTH103, PTH114, PTH115, PTH112, PTH120, PTH123, PTH211
from __future__ import annotations

import array
import contextlib
import gc
import marshal
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from educe.sandbox.inside import kernel, landlock, process_tree, rlimits, runner, seccomp

BOX = "/box"
JOB = "/box/job"
WORK = "/box/job/work"
ORDER_BYTES = 4096
JOB_UID = 1000  # what an unprivileged box calls itself inside its own user namespace
_RESULT_FD, CONTROL_FD = 3, 4
# What programs import most. Every library more is paid for by each fork (its mappings are copied
# and torn down), so what is rarer is imported by the job that wants it.
_COMMON_MODULES = """
abc bisect collections contextlib copy enum functools heapq io itertools json math operator random
re string time types typing
"""


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return one message and its descriptors; an empty message is the end."""
    room = socket.CMSG_SPACE(16 * 4)
    data, ancillary, _, _ = sock.recvmsg(ORDER_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


def send(sock: socket.socket, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
    """Send one message with descriptors."""
    data = marshal.dumps(message)
    if not fds:
        sock.send(data)
        return
    rights = array.array("i", fds).tobytes()
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def build_root(config: dict[str, Any]) -> None:
    """Replace the root folder by a read-only one that holds system programs and little else."""
    base = config["root"]
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID, "size=4m,mode=755")
    for path in config["system"]:
        _show(path, base + path)
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind_file("/dev/" + name, f"{base}/dev/{name}")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1")):
        os.symlink(target, f"{base}/dev/{name}")
    os.symlink("fd/2", f"{base}/dev/stderr")
    os.symlink(JOB + "/shm", base + "/dev/shm")
    os.symlink(JOB + "/tmp", base + "/tmp")
    os.makedirs(base + "/etc", exist_ok=True)
    for name, text in config["etc"].items():
        with open(f"{base}/etc/{name}", "w") as file:
            file.write(text)
    os.makedirs(base + JOB)
    os.makedirs(base + "/proc")
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", base + "/proc", "proc", flags)
    os.chdir(base)
    kernel.pivot_root(".", ".")
    kernel.umount(".", kernel.MNT_DETACH)
    os.chdir("/")
    remount = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID
    kernel.mount("none", "/", None, remount)


def _show(source: str, target: str) -> None:
    """Make a path of the host visible read-only at the same place."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(target)
    elif os.path.exists(source):
        _bind_file(source, target)
        kernel.make_read_only(target)


def _bind_file(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w"):
        pass
    kernel.mount(source, target, None, kernel.MS_BIND)


class Zygote:
    """Forks boxes on order, waits for them and reports how they ended."""

    def __init__(self, config: dict[str, Any], control: socket.socket) -> None:
        self.mode: str = config["mode"]
        # In a namespace of its own, or with a user of its own, a box starts from nothing.
        self.process_base = 0 if not config["has_cgroup"] or self.mode == "user" else -1
        self.can_change_user: bool = config["can_change_user"]
        self.control = control
        self.has_namespaces = self.mode in ("root", "user")
        self.layers: frozenset[str] = frozenset(config["layers"])
        self.landlock = landlock.abi_version() if "landlock" in self.layers else 0
        program = seccomp.build_filter(
            has_cgroup=config["has_cgroup"],
            has_namespaces=self.has_namespaces,
            keeps_signals=self.landlock >= 6,
        )
        self.filter = seccomp.Filter(program)
        self.has_cgroup: bool = config["has_cgroup"]
        self.system: list[str] = config["system"]
        self.rulesets: dict[bool, int] = {}
        self.idle = kernel.IdleProcesses()
        self.children: dict[int, tuple[int, int, int]] = {}
        self.inits: dict[int, Any] = {}
        self.poller = select.epoll()
        self.poller.register(control.fileno(), select.EPOLLIN)
        if self.has_namespaces:
            build_root(config)
            self.own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            if self.landlock:
                for allow_tcp in (False, True):
                    self.rulesets[allow_tcp] = landlock.make_ruleset(
                        self.landlock, ["/"], [BOX, "/dev"], allow_tcp=allow_tcp
                    )

    def serve(self) -> NoReturn:
        """Take orders until the supervisor is gone."""
        while True:
            for fd, _ in self.poller.poll():
                if fd == self.control.fileno():
                    self._take_order()
                elif fd in self.children:
                    self._reap(fd)
                elif fd in self.inits:
                    self._bury(fd)

    def _bury(self, init_fd: int) -> None:
        """A namespace is empty: wait for its first process and use its stack again."""
        self.poller.unregister(init_fd)
        os.close(init_fd)
        init, stack = self.inits.pop(init_fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(init, kernel.WALL)
        self.idle.give_back(stack)

    def _take_order(self) -> None:
        data, fds = receive(self.control)
        if not data:
            os._exit(0)
        order = marshal.loads(data)
        try:
            self._arm(order, fds)
        except OSError as error:
            send(self.control, ("failed", order[0], str(error)))
        for fd in fds:
            os.close(fd)

    def _arm(self, order: tuple[Any, ...], fds: list[int]) -> None:
        """Fork a box that prepares itself and then waits for its job."""
        if not self.has_namespaces:
            pid, pidfd = kernel.fork(0)
            if pid == 0:
                self._enter(order, fds)
            self._keep(order[0], pid, pidfd, 0)
            send(self.control, ("armed", order[0], pid), (pidfd, pidfd))
            return
        flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
        if order[3]:
            flags |= kernel.CLONE_NEWNET
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            init, init_fd, stack = self.idle.start()
            self.inits[init_fd] = (init, stack)
            self.poller.register(init_fd, select.EPOLLIN)
            try:
                pid, pidfd = kernel.fork(flags)
            except OSError:
                os.kill(init, signal.SIGKILL)
                raise
            if pid == 0:
                self._enter(order, fds)
        finally:
            kernel.setns(self.own_namespace, kernel.CLONE_NEWPID)
        self._keep(order[0], pid, pidfd, init)
        send(self.control, ("armed", order[0], pid), (init_fd, pidfd))

    def _keep(self, box: int, pid: int, pidfd: int, init: int) -> None:
        self.children[pidfd] = (box, pid, init)
        self.poller.register(pidfd, select.EPOLLIN)

    def _reap(self, pidfd: int) -> None:
        box, pid, init = self.children.pop(pidfd)
        self.poller.unregister(pidfd)
        os.close(pidfd)
        if not init:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # before the wait, while the group's id is taken
        try:
            _, status, usage = os.wait4(pid, kernel.WALL)
        except ChildProcessError:
            send(self.control, ("failed", box, "the exit status was lost"))
            return
        orphans = 0
        if init:
            orphans = process_tree.num_living_children(init)
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)  # and with it all that the job left behind
        exit_code = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime
        send(self.control, ("exit", box, exit_code, cpu_s, usage.ru_maxrss, orphans))

    # ---- in the box ----

    def _enter(self, order: tuple[Any, ...], fds: list[int]) -> NoReturn:
        """Prepare the box, wait for the job, run it. Never returns."""
        try:
            self._prepare(order, fds)
            os.write(CONTROL_FD, b"R")
            job = self._await_job()
        except BaseException as error:
            text = b"E" + f"{type(error).__name__}: {error}".encode()
            for fd in (CONTROL_FD, fds[0]):
                with contextlib.suppress(OSError):
                    os.write(fd, text)
            os._exit(1)
        try:
            runner.run_job(job, _RESULT_FD, self._read_tests)
        finally:
            os._exit(1)

    def _prepare(self, order: tuple[Any, ...], fds: list[int]) -> None:
        _, disk_mb, num_inodes, loopback, uid, num_cgroups = order
        for fd in fds[4 : 4 + num_cgroups]:
            os.write(fd, b"0")
        ruleset = self._place_descriptors(fds, loopback)
        if self.has_namespaces:
            owner = 0 if self.mode == "user" else uid
            self._mount(disk_mb, num_inodes, owner)
            if loopback:
                _raise_loopback()
        else:
            os.setsid()
            folder = os.read(CONTROL_FD, ORDER_BYTES).decode()
            os.chdir(folder)
            os.environ.update(HOME=folder, TMPDIR=folder)
            if not self.can_change_user:
                # The user's other processes count too, so the limit starts from what there is.
                self.process_base = process_tree.num_tasks(os.getuid())
            if self.landlock:
                ruleset = landlock.make_ruleset(
                    self.landlock,
                    [
                        *self.system,
                        "/dev/null",
                        "/dev/zero",
                        "/dev/random",
                        "/dev/urandom",
                    ],
                    [folder, "/dev/null"],
                    allow_tcp=False,
                )
        self._drop_privileges(uid)
        if self.has_namespaces:
            os.mkdir(WORK, 0o700)
            os.mkdir("/box/job/tmp", 0o700)
            os.mkdir("/box/job/shm", 0o700)
            os.chdir(WORK)
        if ruleset >= 0:
            landlock.restrict(ruleset)
            os.close(ruleset)
        if "seccomp" in self.layers:
            self.filter.install()

    def _place_descriptors(self, fds: list[int], loopback: bool) -> int:
        """Put the box's five descriptors where they belong and close everything else.

        Returns the Landlock rule set's descriptor, or -1.
        """
        # The zygote keeps 0 to 4 taken, so no descriptor of an order is in the way of another.
        control, out, err, result = fds[:4]
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(result, _RESULT_FD, inheritable=False)
        os.dup2(control, CONTROL_FD, inheritable=False)
        if not self.rulesets:
            kernel.close_from(5)
            return -1
        os.dup2(self.rulesets[bool(loopback)], 5, inheritable=False)
        kernel.close_from(6)
        return 5

    def _mount(self, disk_mb: int, num_inodes: int, owner: int) -> None:
        options = f"size={disk_mb}m,nr_inodes={num_inodes},mode=700,uid={owner},gid={owner}"
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", JOB, "tmpfs", flags, options)
        flags |= kernel.MS_NOEXEC
        kernel.mount("proc", "/proc", "proc", flags, "subset=pid" if self.mode == "root" else "")

    def _drop_privileges(self, uid: int) -> None:
        if self.mode == "root" and "privileges" in self.layers:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        elif self.mode == "user":
            # A user namespace of its own makes RLIMIT_NPROC count this box alone.
            kernel.unshare(kernel.CLONE_NEWUSER)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self would not be ours to write
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{JOB_UID} 0 1"),
                ("gid_map", f"{JOB_UID} 0 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            kernel.drop_capabilities()
        elif self.mode == "confined" and os.getuid() == 0 and "privileges" in self.layers:
            if self.can_change_user:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            kernel.drop_bounding_set()
            kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)

    def _await_job(self) -> dict[str, Any]:
        """Read the whole job, hand out the work folder when outputs are wanted, set the limits."""
        length = int.from_bytes(_read_exactly(4), "little")
        job: dict[str, Any] = marshal.loads(_read_exactly(length))
        if job["outputs"]:
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            with socket.socket(fileno=os.dup(CONTROL_FD)) as control:
                send(control, ("folder",), (folder,))
            os.close(folder)
        if job["num_tests"]:
            job["close_tests"] = lambda: os.close(CONTROL_FD)
        elif not job["session"]:
            os.close(CONTROL_FD)
        if job["stdin"]:
            _place_stdin(job["stdin"])
        rlimits.apply_rlimits(
            job["limits"],
            address_space=not self.has_cgroup and job["runtime"] != "node",
            process_base=self.process_base,
            # A session lives through many turns, each of which has limits of its own.
            cpu_slack=86400 if job["session"] else 1,
        )
        gc.enable()
        return job

    def _read_tests(self) -> list[str]:
        """Read the tests, which are still in the socket: no candidate ever shared their memory."""
        length = int.from_bytes(_read_exactly(4), "little")
        tests: list[str] = marshal.loads(_read_exactly(length))
        os.close(CONTROL_FD)
        return tests


def _read_exactly(count: int) -> bytes:
    data = os.read(CONTROL_FD, count)
    while len(data) < count:
        more = os.read(CONTROL_FD, count - len(data))
        if not more:
            os._exit(0)  # never used
        data += more
    return data


def _place_stdin(content: bytes) -> None:
    """Make the content the standard input: a file without a name, within the disk limit."""
    fd = os.open(".stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(".stdin")
    while content:
        content = content[os.write(fd, content) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


def _open_streams() -> None:
    """Make the standard streams on the kinds of files that boxes will have there."""
    pipe = os.pipe()
    os.dup2(pipe[1], 1)
    os.dup2(pipe[1], 2)
    os.dup2(0, 4)  # a box's control channel goes there: nothing else may
    kernel.close_from(5)
    runner.open_standard_streams()


def _raise_loopback() -> None:
    """Bring ``lo`` up in the box's own network namespace."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(sock.fileno(), 0x8914, request)  # SIOCSIFFLAGS


def main() -> NoReturn:
    """Read the configuration, build the root, preload, report and serve."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The idle processes share this memory: no Python-level handler may ever run in one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=3)
    control.set_inheritable(False)
    try:
        config = marshal.loads(receive(control)[0])
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        for name in _COMMON_MODULES.split():
            __import__(name)
        sys.path.extend(config["import_paths"])
        for name in config["preload"]:
            __import__(name)
        _open_streams()
        zygote = Zygote(config, control)
        if zygote.has_namespaces:
            kernel.drop_bounding_set()
        os.environ.clear()
        os.environ.update(config["environment"])
        for name in [name for name in sys.modules if name.startswith("educe")]:
            del sys.modules[name]  # nothing of ours is importable in a box
        gc.collect()
        gc.disable()
        gc.freeze()
        send(control, ("ready", zygote.landlock, os.cpu_count()))
    except BaseException as error:
        send(control, ("broken", f"{type(error).__name__}: {error}"))
        os._exit(1)
    zygote.serve()
