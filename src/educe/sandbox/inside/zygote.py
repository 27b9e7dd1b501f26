"""A clean process that boxes are forked from.

It was exec'ed, so it holds nothing of the user's process; it never sees a program, a test or a
secret, because a box reads its job only after the fork. It stays single-threaded. In the namespace
modes it is the first process of its own pid namespace: when it dies the kernel ends all its boxes.

Orders come on a SEQPACKET socket (descriptor 3, see ``orders``). What a zygote does for each is
written so that it touches little memory: the fork before made every page of it shared again.
"""

# ruff: noqa: PTH108
from __future__ import annotations

import array
import contextlib
import errno
import gc
import marshal
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from educe.sandbox.inside import (
    kernel,
    landlock,
    large_pages,
    orders,
    process_tree,
    refusals,
    rlimits,
    runner,
    seccomp,
    warmth,
)
from educe.sandbox.inside.preparation import (
    CONTROL_FD,
    ORDER_BYTES,
    RESULT_FD,
    Order,
    Preparation,
    Prepared,
)
from educe.sandbox.inside.root_folder import BOX, build_root
from educe.sandbox.inside.steps import Steps
from educe.sandbox.inside.waiting import Waiting

# What programs import most. Every library more is paid for by each fork (its mappings are copied
# and torn down), so what is rarer is imported by the job that wants it.
_COMMON_MODULES = """
abc bisect collections contextlib copy enum functools heapq io itertools json math operator random
re string time types typing
"""

_BURY_S = 0.05  # a killed first process is waited for with the next order, or after this
_close, _kill = os.close, os.kill


def receive(sock: socket.socket, size: int = ORDER_BYTES) -> tuple[bytes, list[int]]:
    """Return one message and its descriptors; an empty message is the end."""
    room = socket.CMSG_SPACE(16 * 4)
    data, ancillary, _, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
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


class _Mounts:
    """Holds the mounts of boxes: the kernel takes a tenth of a millisecond to undo them, and with
    the last holder being us, a job's end does not wait for it.
    """

    _GET = 0xFF03  # PIDFD_GET_MNT_NAMESPACE, Linux 6.11

    def __init__(self) -> None:
        self._ioctl = kernel.number("ioctl")
        self._has_ioctl = True

    def hold(self, pid: int, pidfd: int) -> int:
        """Return a descriptor of a process's mount namespace, -1 where that is refused."""
        if self._has_ioctl:
            fd: int = kernel.raw_call(self._ioctl, pidfd, self._GET, 0, 0, 0, 0)
            if fd >= 0:
                return fd
            self._has_ioctl = kernel.errno_place().value not in (errno.ENOTTY, errno.EINVAL)
        try:
            return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1


class Zygote:
    """Forks boxes on order, waits for them and reports how they ended."""

    def __init__(self, config: dict[str, Any], control: socket.socket) -> None:
        self.control = control
        self.has_namespaces = config["mode"] in ("root", "user")
        self.has_cgroup: bool = config["has_cgroup"]
        layers = frozenset(config["layers"])
        self.landlock = landlock.abi_version() if "landlock" in layers else 0
        tells = "seccomp" in layers and refusals.can_tell()
        program = seccomp.build_filter(
            has_cgroup=self.has_cgroup,
            has_namespaces=self.has_namespaces,
            keeps_signals=self.landlock >= 6,
            tells=tells,
        )
        # It works little and reports who ended; the first processes of boxes, which end all others,
        # inherit that. What runs in a box is as ordinary as its owner.
        hurries = kernel.be_prompt(config["niceness"])
        schedule = kernel.schedule_attributes(config["niceness"]) if hurries else b""
        self.preparation = Preparation(
            config["mode"],
            layers,
            has_cgroup=self.has_cgroup,
            can_change_user=config["can_change_user"],
            system=config["system"],
            seccomp=seccomp.Filter(program, tells=tells),
            schedule=schedule,
        )
        self.warmth: Steps | None = None
        self.post = orders.Post(control.fileno())
        self.waiting = Waiting()
        self.idle = kernel.IdleProcesses()
        flags = 0
        if self.has_namespaces:
            flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
        self.forks = [kernel.LaidOutFork(flags), kernel.LaidOutFork(flags | kernel.CLONE_NEWNET)]
        # pidfd: box, pid, first process of its namespace (0: none), its stack, mounts (-1: not
        # held)
        self.children: dict[int, tuple[int, int, int, Any, int]] = {}
        self.dying: deque[tuple[int, Any]] = deque()  # first processes that were killed
        self.poller = select.epoll()
        self.poller.register(control.fileno(), select.EPOLLIN)
        self.mounts = _Mounts()
        if self.has_namespaces:
            build_root(config)
            self.own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self.preparation.make_rulesets(["/"], [BOX, "/dev"])
            self.to_new = Steps()
            self.to_new.add("unshare", kernel.CLONE_NEWPID)
            self.back = Steps()
            self.back.add("setns", self.own_namespace, kernel.CLONE_NEWPID)

    def serve(self) -> NoReturn:
        """Take orders until the supervisor is gone."""
        control = self.control.fileno()
        while True:
            for fd, _ in self.poller.poll(_BURY_S if self.dying else -1):
                if fd == control:
                    self._take_order()
                else:
                    self._reap(fd)
            while self.dying and self.waiting.is_buried(self.dying[0][0]):
                self.idle.give_back(self.dying.popleft()[1])

    def _take_order(self) -> None:
        fds = self.post.receive()
        if fds is None:
            os._exit(0)
        numbers = self.post.numbers
        box = numbers[0]
        try:
            if self.has_namespaces:
                self._arm(box, self.preparation.lay_out(numbers, fds), fds[0])
            else:
                self._arm_confined(box, Order.of(numbers, fds), fds[0])
        except OSError as error:
            self.post.send_failure(box, str(error))
        for fd in fds:
            _close(fd)

    def _arm(self, box: int, prepared: Prepared, channel: int) -> None:
        """Fork a box that prepares itself and then waits for its job."""
        has_job = self.post.numbers[6]
        self.to_new.run()
        try:
            init, init_fd, stack = self.idle.start()
            try:
                pid, pidfd = self.forks[prepared.loopback]()
            except OSError:
                os.kill(init, signal.SIGKILL)
                self.dying.append((init, stack))
                _close(init_fd)
                raise
            if pid == 0:
                self._enter(prepared.run, channel, is_awaited=has_job > 0)
        finally:
            self.back.run()
        self.post.send(orders.ARMED, box, pid, (init_fd, pidfd))
        _close(init_fd)
        self.children[pidfd] = (box, pid, init, stack, self.mounts.hold(pid, pidfd))
        self.poller.register(pidfd, select.EPOLLIN)

    def _arm_confined(self, box: int, order: Order, channel: int) -> None:
        pid, pidfd = self.forks[0]()
        if pid == 0:
            self._enter(lambda: self.preparation.confine(order), channel, is_awaited=True)
        self.post.send(orders.ARMED, box, pid, (pidfd, pidfd))
        self.children[pidfd] = (box, pid, 0, None, -1)
        self.poller.register(pidfd, select.EPOLLIN)

    def _reap(self, pidfd: int) -> None:
        """Wait for a box's program, end what it left behind, and say how it ended."""
        box, pid, init, stack, mounts = self.children.pop(pidfd)
        if not init:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # while the group's id is still taken
        ended = self.waiting.wait(pid)
        if ended is None:
            self.post.send_failure(box, "the exit status was lost")
        else:
            orphans = process_tree.num_living_children(init) if init else 0
            self.post.send_exit(box, *ended, orphans)
        if init:
            # And with it all that the job left behind. Afterwards: its dying goes before us.
            try:  # noqa: SIM105 (a context manager would touch more memory)
                _kill(init, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.dying.append((init, stack))
        self.poller.unregister(pidfd)
        _close(pidfd)
        if mounts >= 0:
            _close(mounts)

    # ---- in the box ----

    def _enter(self, prepare: Callable[[], None], channel: int, *, is_awaited: bool) -> NoReturn:
        """Prepare the box, wait for the job, run it. Never returns."""
        try:
            prepare()
            if self.warmth is not None and not is_awaited:
                self.warmth.try_all()
            job = self._await_job()
        except BaseException as error:
            text = b"E" + f"{type(error).__name__}: {error}".encode()
            for fd in (CONTROL_FD, channel):
                with contextlib.suppress(OSError):
                    os.write(fd, text)
            os._exit(1)
        try:
            runner.run_job(job, RESULT_FD, self._read_tests)
        finally:
            os._exit(1)

    def learn_warmth(self, sample: bytes) -> None:
        """Learn what boxes touch first (see ``warmth``); a kernel that refuses costs nothing."""
        if not self.has_namespaces:
            return
        try:
            self.warmth = warmth.learn(
                sample, lambda: runner.run_job(self._await_job(), RESULT_FD, self._read_tests)
            )
        except OSError:
            self.warmth = None  # boxes work without it, a little later

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
            process_base=self.preparation.process_base,
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


def main() -> NoReturn:
    """Read the configuration, build the root, preload, report and serve."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The idle processes share this memory: no Python-level handler may ever run in one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=3)
    control.set_inheritable(False)
    try:
        config = marshal.loads(receive(control, 1 << 16)[0])
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        for name in _COMMON_MODULES.split():
            __import__(name)
        sys.path.extend(config["import_paths"])
        for name in config["preload"]:
            __import__(name)
        _open_streams()
        rlimits.apply_fixed()
        runner.seed_generators(0)
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
        large_pages.use_for_code()
        large_pages.use_for_data()
        zygote.learn_warmth(config["sample"])
        send(control, ("ready", zygote.landlock, os.cpu_count()))
    except BaseException as error:
        send(control, ("broken", f"{type(error).__name__}: {error}"))
        os._exit(1)
    zygote.serve()
