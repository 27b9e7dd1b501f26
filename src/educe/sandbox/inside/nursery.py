"""Keeps zygotes alive and prepared boxes in stock."""

# ruff: noqa: PTH123
from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from educe.sandbox.inside import cgroups, kernel, orders, zygote
from educe.sandbox.inside.boxes import Box
from educe.sandbox.inside.cgroups import Slots
from educe.sandbox.inside.folders import remove_tree
from educe.sandbox.inside.request import Request, Shape

if TYPE_CHECKING:
    from educe.sandbox.inside.supervisor import Supervisor

_FIRST_UID = 52000
_NUM_UIDS = 8000
_START_TIMEOUT_S = 60.0
_MAX_FAILURES = 3
_SHAPES_IN_STOCK = 4
_FOLDER = "educe-job-"


class ZygoteFailed(Exception):
    """A zygote could not be started, in words."""


class Zygote:
    """A running zygote process and the boxes forked from it."""

    def __init__(self, nursery: Nursery, preload: str) -> None:
        self.nursery, self.preload = nursery, preload
        self.has_namespaces = nursery.mode in ("root", "user")
        self.boxes: dict[int, Box] = {}
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid, self.pidfd = _spawn(nursery, theirs)
        theirs.close()
        self.landlock = self._configure()
        self.control.setblocking(False)
        nursery.supervisor.watch(self.control.fileno(), lambda _: self._ready())

    def _configure(self) -> int:
        config = self.nursery.config
        runtime = config["runtimes"][self.preload]
        message = {
            "mode": self.nursery.mode,
            "root": config["root"],
            "system": config["system"] + runtime["readable"],
            "etc": config["etc"],
            "environment": config["environment"],
            "import_paths": runtime["import_paths"],
            "preload": runtime["preload"],
            "has_cgroup": self.nursery.slots is not None,
            "layers": config["layers"],
            "can_change_user": config["can_change_user"],
            "sample": config["sample"],
            "niceness": config["niceness"],
        }
        try:
            self.control.settimeout(_START_TIMEOUT_S)
            self.control.send(marshal.dumps(message))
            data, _ = zygote.receive(self.control)
            answer = marshal.loads(data) if data else ("broken", "it died while starting")
        except (OSError, EOFError, ValueError) as error:
            answer = ("broken", str(error))
        if answer[0] != "ready":
            self.end()
            raise ZygoteFailed(answer[1])
        return int(answer[1])

    def order(self, box: Box, fds: list[int], num_cgroups: int, *, has_job: bool) -> None:
        """Ask for a box.

        Raises:
            OSError: when the zygote is gone or hopelessly behind.
        """
        _, loopback, disk_mb, num_inodes = box.shape
        self.boxes[box.id] = box
        numbers = (box.id, disk_mb, num_inodes, loopback, box.uid, num_cgroups, has_job, 0)
        orders.send_order(self.control, numbers, fds)

    def _ready(self) -> None:
        """Take one message; when there are more, the poller says so again."""
        try:
            data, fds = zygote.receive(self.control)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self.nursery.zygote_died(self)
            return
        kind, number, first, cpu_us, peak_kib, orphans, _, _ = orders.MESSAGE.unpack_from(data)
        box = self.boxes.get(number)
        if box is None:
            for fd in fds:
                os.close(fd)
        elif kind == orders.ARMED:
            box.armed(first, fds[0], fds[1])
        elif kind == orders.EXIT:
            box.exited(first, cpu_us * 1e-6, peak_kib, orphans)
        elif kind == orders.FAILED:
            self.box_failed(box, data[orders.MESSAGE.size :].decode())

    def box_is_ready(self, box: Box) -> None:
        self.nursery.num_failures = 0
        if box.request is None:
            self.nursery.forget_arming(box)
            self.nursery.ready.setdefault(box.shape, deque()).append(box)

    def box_failed(self, box: Box, reason: str) -> None:
        """A box could not be prepared, or lost its process without an exit status."""
        if box.is_over:
            return
        if box.started:
            box.break_off(reason)
            return
        self.nursery.forget_arming(box)
        box.is_over = True
        box.kill()
        self.nursery.clear_away(box)
        if box.request is not None:
            self.nursery.supervisor.take_back(box)
        self.nursery.failed(box.shape, reason)

    def end(self) -> None:
        """Kill the zygote and with it all its boxes."""
        if self.pid:
            for box in self.boxes.values():
                box.kill()
            kernel.send_signal(self.pidfd, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, kernel.WALL)
            os.close(self.pidfd)
            self.pid = 0
        if self.control.fileno() >= 0:
            self.nursery.supervisor.forget(self.control.fileno())
            self.control.close()


def _sweep() -> None:
    """Remove folders of supervisors that died without a chance to."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        owner = path.name.removeprefix(_FOLDER).split("-")[0]
        if owner.isdigit() and not cgroups.is_alive(int(owner)):
            remove_tree(str(path))


def _spawn(nursery: Nursery, control: socket.socket) -> tuple[int, int]:
    """Fork into the mode's namespaces and exec a clean interpreter there."""
    flags = 0
    if nursery.mode in ("root", "user"):
        flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET
        flags |= kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if nursery.mode == "user":
        flags |= kernel.CLONE_NEWUSER
    uid, gid = os.getuid(), os.getgid()
    pid, pidfd = kernel.fork(flags)
    if pid:
        return pid, pidfd
    try:
        _become_zygote(nursery, control, uid, gid)
    except BaseException as error:
        with contextlib.suppress(OSError):
            zygote.send(control, ("broken", f"{type(error).__name__}: {error}"))
    finally:
        os._exit(1)


def _become_zygote(nursery: Nursery, control: socket.socket, uid: int, gid: int) -> NoReturn:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if nursery.mode == "user":
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    if nursery.mode in ("root", "user"):
        socket.sethostname("box")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(control.fileno(), 3)
    kernel.close_from(4)
    os.setpriority(os.PRIO_PROCESS, 0, nursery.config["niceness"])
    kernel.fix_addresses()
    command = nursery.config["zygote_command"]
    # All symbols are found now: a box would find each anew, and copy what that is written to.
    os.execve(command[0], command, {**nursery.config["environment"], "LD_BIND_NOW": "1"})


class Nursery:
    """Zygotes by what they preload, and boxes by shape: being prepared, and ready."""

    def __init__(self, config: dict[str, Any], slots: Slots | None, supervisor: Supervisor) -> None:
        self.config, self.slots, self.supervisor = config, slots, supervisor
        self.mode = ""
        self.landlock = 0
        self.zygotes: dict[str, Zygote] = {}
        self.ready: dict[Shape, deque[Box]] = {}
        self.arming: dict[Shape, deque[Box]] = {}  # on order, and not promised to a job
        self.recent: OrderedDict[Shape, None] = OrderedDict()
        self.num_failures = 0
        self.is_short = True  # something changed since it was last found that no box is missing
        self._next = 0
        self._uids = deque(range(_FIRST_UID, _FIRST_UID + _NUM_UIDS))
        self._uids.rotate(os.getpid() * 97)  # two supervisors rarely use the same one

    def start(self, mode: str) -> None:
        """Start the first zygote of a mode and prove that it can prepare a box.

        Raises:
            ZygoteFailed: when it cannot.
        """
        if mode not in ("root", "user", "confined"):
            raise ZygoteFailed("no such mode")
        self.mode = mode
        if mode == "confined":
            _sweep()
        first = Zygote(self, "")
        self.zygotes[""] = first
        self.landlock = first.landlock
        shape = tuple(self.config["default_shape"])
        self._arm(shape)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.ready.get(shape):
            if not self.zygotes or time.monotonic() > deadline:
                raise ZygoteFailed(self._last_reason or "it prepared no box in time")
            for fd, events in self.supervisor.poller.poll(0.5):
                handler = self.supervisor.handlers.get(fd)
                if handler is not None:
                    handler(events)
            if self.num_failures:
                raise ZygoteFailed(self._last_reason)
        self.recent[shape] = None

    _last_reason = ""

    def stop(self) -> None:
        """End everything."""
        for running in list(self.zygotes.values()):
            running.end()
            for box in list(running.boxes.values()):
                box.is_over = True
                self._recycle(box)  # nobody will be here to wait for the last of its processes
        self.zygotes.clear()
        self.ready.clear()
        self.arming.clear()
        self.num_failures = 0

    def pids(self) -> list[int]:
        return [running.pid for running in self.zygotes.values()]

    def num_ready(self) -> int:
        return sum(len(boxes) for boxes in self.ready.values())

    def num_arming(self) -> int:
        return sum(len(boxes) for boxes in self.arming.values())

    def take(self, shape: Shape) -> Box | None:
        """Return a ready box of a shape, or None."""
        self.is_short = True
        self.recent[shape] = None
        self.recent.move_to_end(shape)
        while len(self.recent) > _SHAPES_IN_STOCK:
            old, _ = self.recent.popitem(last=False)
            for box in self.ready.pop(old, ()):
                self.lost(box)
        boxes = self.ready.get(shape)
        return boxes.popleft() if boxes else None

    def claim(self, shape: Shape) -> Box | None:
        """Return a box of a shape: a ready one, else the next that will be; None when none can be.

        A box that is still being prepared may be sent its job: it reads it when it is ready, and
        saves the way here and back.
        """
        box = self.take(shape)
        if box is None and (self.arming.get(shape) or self._arm(shape, has_job=True)):
            box = self.arming[shape].popleft()
        return box

    def forget_arming(self, box: Box) -> None:
        """A box is no longer one of those on order that are free to take."""
        self.is_short = True
        with contextlib.suppress(KeyError, ValueError):
            self.arming[box.shape].remove(box)

    def stock(self, queue: Sequence[Request], num_free: int) -> None:
        """Order boxes: enough for the next jobs in the queue, and a few for what may come."""
        if not self.is_short:
            return
        wanted: dict[Shape, int] = {}
        for count, request in enumerate(queue):
            if count >= num_free + self.config["num_spare"]:
                break
            wanted[request.shape] = wanted.get(request.shape, 0) + 1
        queued = dict(wanted)
        if self.recent:
            newest = next(reversed(self.recent))
            wanted[newest] = max(wanted.get(newest, 0), self.config["num_spare"])
        for shape, count in wanted.items():
            have = len(self.ready.get(shape, ())) + len(self.arming.get(shape, ()))
            for number in range(have, count):
                # A box that a job waits for has no time to get its pages in advance.
                if not self._arm(shape, has_job=number < queued.get(shape, 0)):
                    return
        self.is_short = False

    def _arm(self, shape: Shape, *, has_job: bool = False) -> bool:
        """Order one box; False when that is not possible now."""
        if not self._uids:
            return False
        try:
            parent = self.zygotes.get(shape[0]) or self._start_another(shape[0])
            self._order(parent, shape, has_job)
        except BlockingIOError:
            return False
        except (OSError, ZygoteFailed) as error:
            self.failed(shape, str(error))
            return False
        return True

    def _start_another(self, preload: str) -> Zygote:
        running = Zygote(self, preload)
        self.zygotes[preload] = running
        return running

    def _order(self, parent: Zygote, shape: Shape, has_job: bool) -> None:
        self._next += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        for reader, _ in pipes:
            os.set_blocking(reader, False)
        slot = self.slots.take() if self.slots is not None else None
        entries = slot.entries if slot is not None else []
        folder = ""
        uid = self._uids.pop()  # the one given back last: a zygote knows what its boxes do
        if not parent.has_namespaces:
            folder = tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")
            if os.getuid() == 0 and self.config["can_change_user"]:
                os.chown(folder, uid, uid)
            ours.send(folder.encode())
        readers = [reader for reader, _ in pipes]
        box = Box(self._next, shape, parent, self.supervisor, ours, readers, slot, uid, folder)
        fds = [theirs.fileno(), *(writer for _, writer in pipes), *entries]
        try:
            parent.order(box, fds, len(entries), has_job=has_job)
            self.arming.setdefault(shape, deque()).append(box)
        except OSError:
            box.is_over = True
            self.clear_away(box)
            raise
        finally:
            theirs.close()
            for _, writer in pipes:
                os.close(writer)

    def failed(self, shape: Shape, reason: str) -> None:
        """Count failures in a row; after a few, the jobs that wait for the shape fail as ours."""
        self._last_reason = reason
        self.num_failures += 1
        if self.num_failures >= _MAX_FAILURES:
            self.num_failures = 0
            self.recent.pop(shape, None)
            self.supervisor.cannot_serve(shape, f"no box can be prepared: {reason}")

    def lost(self, box: Box) -> None:
        """A prepared box is not needed, or died before it got a job."""
        with contextlib.suppress(KeyError, ValueError):
            self.ready[box.shape].remove(box)
        self.forget_arming(box)
        box.is_over = True
        box.kill()
        self.clear_away(box)

    def clear_away(self, box: Box) -> None:
        """Take an ended box's things back, once all of its processes are gone."""
        if box.kill_fd >= 0:
            self.supervisor.watch(box.kill_fd, lambda _: self._recycle(box))
        else:
            self._recycle(box)

    def _recycle(self, box: Box) -> None:
        if box.zygote.boxes.pop(box.id, None) is None:
            return
        self.supervisor.forget(box.kill_fd)
        box.close()
        if self.slots is not None and box.slot is not None:
            self.slots.give_back(box.slot)
        self._uids.append(box.uid)

    def zygote_died(self, dead: Zygote) -> None:
        """Everything in it is gone; its jobs are tried once more elsewhere."""
        self.is_short = True
        if self.zygotes.get(dead.preload) is dead:
            del self.zygotes[dead.preload]
        dead.end()
        for box in list(dead.boxes.values()):
            if box.is_over:
                self._recycle(box)
                continue
            self.forget_arming(box)
            with contextlib.suppress(KeyError, ValueError):
                self.ready[box.shape].remove(box)
            if box.request is not None and not box.has_seen_job():
                box.is_over = True
                self.clear_away(box)
                self.supervisor.take_back(box)
                continue
            box.break_off("the process that held the box died")
        self._last_reason = "the zygote died"
