"""One box as the supervisor sees it: its channels, its job, its deadline and its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import time
from typing import TYPE_CHECKING, Any

from educe.sandbox.inside import kernel, process_tree, refusals, wire
from educe.sandbox.inside.cgroups import Slot
from educe.sandbox.inside.folders import remove_tree
from educe.sandbox.inside.request import Request, Shape

if TYPE_CHECKING:
    from educe.sandbox.inside.nursery import Zygote
    from educe.sandbox.inside.supervisor import Supervisor

_MAX_UNREAD = 96 << 20
# A job was starved when it waited for a processor for more than a tenth of its wall limit and used
# less than three quarters of a processor: waiting beside others of its own is its own doing.
_WAITED_SHARE, _USED_SHARE = 0.1, 0.75
_MAX_STRETCH, _STRETCH_MARGIN = 8.0, 1.5
_KILL_NICENESS = -10
_MAX_READS = 64  # of one pipe before others are looked at
_STREAMS = ("stdout", "stderr", "result")


class Box:
    """A forked, prepared child of a zygote. Used for one job, then gone."""

    def __init__(
        self,
        number: int,
        shape: Shape,
        zygote: Zygote,
        supervisor: Supervisor,
        control: socket.socket,
        pipes: list[int],
        slot: Slot | None,
        uid: int,
        folder: str,
    ) -> None:
        self.id, self.shape, self.zygote = number, shape, zygote
        self.supervisor, self.control, self.pipes = supervisor, control, pipes
        self.slot, self.uid, self.folder = slot, uid, folder
        self.request: Request | None = None
        self.kill_fd = self.pid_fd = -1
        self.pid = 0
        self.exit_status: int | None = None
        self.facts: dict[str, Any] = {}
        self.kept = [bytearray(), bytearray(), bytearray()]
        self.caps = [0, 0, 0]
        self.open_streams = {0, 1, 2}
        self.is_prepared = self.is_ready = self.is_watched = self.is_over = False
        self.is_unwanted = False  # whoever asked for the job is gone
        self.work_fd = self.listener = -1
        self.refused: list[str] = []  # names of calls that its filter refused
        self.begun = time.monotonic()
        self.setup_s = 0.0
        self.started = 0.0
        self.cpu_s = self.waited_s = 0.0  # of its processes, when last looked at
        self.looked_at = 0.0
        self.seen: set[int] = set()  # its processes, at any look
        self.schedules: dict[int, process_tree.Schedule] = {}  # of its processes, at the last look
        self._unsent: memoryview | None = None
        self._is_sending = False
        supervisor.watch(control.fileno(), self._control_ready)

    # ---- before and at the start ----

    def _control_ready(self, events: int) -> None:
        if events & select.EPOLLOUT and self._unsent is not None:
            self._send_more()
        if not events & (select.EPOLLIN | select.EPOLLHUP):
            return
        if self.request is not None and self.request.is_session:
            self._pass_on()
            return
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if fds and data.startswith(b"R") and not self.is_prepared:
            self.listener = fds[0]
            self.supervisor.watch(self.listener, self._refused)
        elif fds:
            self.work_fd = fds[0]
        if data.startswith(b"R") and not self.is_prepared:
            self.is_prepared = True
            self._check_ready()
            return
        self._close_control()
        if data.startswith(b"E"):
            self.zygote.box_failed(self, data[1:].decode("utf-8", "replace"))

    def _refused(self, _: int) -> None:
        """The filter refused a call, or nobody is left who could make one."""
        events = refusals.look(self.listener)
        if events & select.POLLIN and len(self.refused) < refusals.MAX_TOLD:
            with contextlib.suppress(OSError):
                self.refused.append(refusals.answer(self.listener))
        elif events:
            self._close_listener()

    def _close_listener(self) -> None:
        if self.listener >= 0:
            self.supervisor.forget(self.listener)
            os.close(self.listener)
            self.listener = -1

    def armed(self, pid: int, kill_fd: int, pid_fd: int) -> None:
        """The zygote forked the box: from now on it can be killed."""
        self.pid, self.kill_fd, self.pid_fd = pid, kill_fd, pid_fd
        if self.is_over or self.is_unwanted:
            self.kill()
        self._check_ready()

    def _check_ready(self) -> None:
        """Be ready once the box has said so and we hold what kills it, in whichever order."""
        if not self.is_prepared or self.kill_fd < 0 or self.is_ready or self.is_over:
            return
        self.is_ready = True
        self.setup_s = time.monotonic() - self.begun
        self.zygote.box_is_ready(self)
        if self.request is not None:
            self._start()

    def _pass_on(self) -> None:
        """Hand a session's answers to its client."""
        assert self.request is not None
        try:
            data = self.control.recv(wire.CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.supervisor.reply(self.request.client, data)
            if len(self.request.client.waiting) > _MAX_UNREAD:
                self.kill()
        else:
            self._close_control()
            self.kill()

    def feed(self, data: bytes) -> None:
        """Send more of a session's requests into the box."""
        rest = bytes(self._unsent) if self._unsent is not None else b""
        if self.control.fileno() < 0:
            return
        if len(rest) > _MAX_UNREAD:
            self.kill()
            return
        self._unsent = memoryview(rest + data)
        self._send_more()

    def _close_control(self) -> None:
        if self.control.fileno() >= 0:
            self.supervisor.forget(self.control.fileno())
            self.control.close()

    def go(self, request: Request) -> None:
        """Promise the box to a job, which starts now, or as soon as the box is prepared.

        Raises:
            OSError: when the control group refuses the limits.
        """
        limits = request.limits
        self.request = request
        self.caps = [limits["stdout_bytes"], limits["stderr_bytes"], limits["result_bytes"] * 2]
        self.caps[2] += 1 << 16
        if self.slot is not None:
            self.slot.limit(limits["memory_mb"], limits["num_processes"])
        self._unsent = memoryview(request.payload)
        if self.is_ready:
            self._start()
        elif self.zygote.has_namespaces:
            self._send_more()  # it lies in the socket until the box looks for it

    def _start(self) -> None:
        """The job's time starts."""
        assert self.request is not None
        self.started = time.monotonic()
        if self._unsent is not None:
            self._send_more()
        if self._unsent is None and not self.request.outputs and not self.request.is_session:
            self._close_control()
        self.supervisor.job_started(self)

    def _send_more(self) -> None:
        assert self._unsent is not None
        try:
            self._unsent = self._unsent[self.control.send(self._unsent) :]
            if not self._unsent:
                self._unsent = None
        except BlockingIOError:
            pass  # the socket is full: the poller calls again when there is room
        except OSError:
            self._unsent = None  # the box is dead, which its zygote reports with how it ended
        is_waiting = self._unsent is not None
        if is_waiting != self._is_sending and self.control.fileno() >= 0:
            self._is_sending = is_waiting
            wanted = select.EPOLLIN | (select.EPOLLOUT if is_waiting else 0)
            self.supervisor.change(self.control.fileno(), wanted)

    # ---- while it runs ----

    def watch_pipes(self) -> None:
        """Drain the pipes as they fill (only jobs that last are worth it)."""
        if self.is_over or self.is_watched or self.request is None:
            return
        self.is_watched = True
        program = process_tree.pid_of(self.pid_fd)
        self.schedules = {program: process_tree.schedule_of(program)}  # while it was prepared
        for index in sorted(self.open_streams):
            self.supervisor.watch(self.pipes[index], self._reader_of(index))

    def _reader_of(self, index: int) -> Any:
        return lambda _: self._pipe_ready(index)

    def _pipe_ready(self, index: int) -> None:
        self._drain(index)
        if self.exit_status is not None:
            self._finish_if_over()

    def _drain(self, index: int) -> None:
        """Read what is there; keep up to the cap, and end a job that writes more."""
        fd = self.pipes[index]
        # A job that writes single bytes in packets is never done: others want their turn.
        for _ in range(_MAX_READS):
            if index not in self.open_streams:
                return
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._close_stream(index)
                return
            kept = self.kept[index]
            room = self.caps[index] - len(kept)
            kept += chunk[: max(0, room)]
            if len(chunk) > room:
                self.facts.setdefault("overflow", _STREAMS[index])
                self.kill()
                self._close_stream(index)

    def _close_stream(self, index: int) -> None:
        self.open_streams.discard(index)
        self.supervisor.forget(self.pipes[index])
        os.close(self.pipes[index])

    def kill(self) -> None:
        """End every process of the box, at once."""
        if self.kill_fd < 0:
            return
        # A process that ended may have left its number to a stranger.
        if not self.zygote.has_namespaces and not self._is_empty():
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
                os.setpriority(os.PRIO_PGRP, self.pid, _KILL_NICENESS)
        kernel.send_signal(self.kill_fd, signal.SIGKILL)
        if self.started and self.zygote.has_namespaces:
            self._hurry_the_dying()

    def _hurry_the_dying(self) -> None:
        """Signal the processes of a box that is being killed one by one, and let them go first.

        The first process of their namespace ends them anyway. On a busy machine that takes until it
        has a processor, and dying takes each of them until it has one: the kernel puts them behind
        whoever keeps the machine busy. Numbers are read and used at once, and a box has too few
        processes to have them all handed out anew in between.
        """
        if self.slot is not None and self.slot.kill():
            return
        for pid in self._members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.setpriority(os.PRIO_PROCESS, pid, _KILL_NICENESS)

    def check_usage(self) -> None:
        """End a job whose processes together used too much."""
        assert self.request is not None
        limits = self.request.limits
        members = self._members()
        self.seen.update(members)
        used = process_tree.usage(
            members,
            with_memory=self.slot is None,
            niceness=self.supervisor.config["niceness"],
        )
        counted = self.slot.cpu_s() if self.slot is not None else None
        cpu_s = used.cpu_s if counted is None else counted
        if self.slot is None:  # else the kernel sees to it
            self.facts["peak_mb"] = max(used.memory_mb, self.facts.get("peak_mb", 0.0))
        now = time.monotonic()
        between_s = now - (self.looked_at or self.started)
        waited_s = process_tree.waited_since(self.schedules, used.schedules)
        # The kernel counts a wait when it is over: until then it is seen between two looks.
        ran_s = process_tree.ran_since(self.schedules, used.schedules)
        if used.is_ready and ran_s <= 0 and self.looked_at:
            waited_s = between_s
        self.waited_s += min(waited_s, between_s)
        self.looked_at, self.schedules = now, used.schedules
        self.cpu_s = max(self.cpu_s, cpu_s)
        if used.memory_mb > limits["memory_mb"]:
            self.facts["oom"] = True
            self.kill()
        elif self.cpu_s > limits["cpu_s"] and not self.request.is_session:
            self.facts["cpu_late"] = True
            self.kill()

    def _members(self) -> list[int]:
        if not self.zygote.has_namespaces:
            return process_tree.group_members(self.pid)
        if self.slot is not None:
            return self.slot.members()
        roots = [process_tree.pid_of(self.kill_fd), process_tree.pid_of(self.pid_fd)]
        return process_tree.descendants(roots)

    @property
    def limit_s(self) -> float:
        """Wall seconds that this attempt is given."""
        assert self.request is not None
        return float(self.request.limits["wall_s"] * self.request.stretch)

    def was_starved(self) -> bool:
        """Return whether a late job is late because the machine gave its processors to others."""
        assert self.request is not None
        if not self.facts.get("late") or self.cpu_s >= _USED_SHARE * self.limit_s:
            return False
        had_s = self.limit_s - self.waited_s
        wall_s: float = self.request.limits["wall_s"]
        return had_s < (1.0 - _WAITED_SHARE) * wall_s

    def is_blameless(self) -> bool:
        """Return whether the job cannot have kept itself waiting: children that end between two
        looks run unseen.
        """
        assert self.request is not None
        return len(self.seen) <= self.request.num_expected

    def stretch(self) -> float:
        """Return by how much the wall limit is to be longer, for the job to have what it says."""
        share = max(1e-3, 1.0 - self.waited_s / self.limit_s)
        return min(_MAX_STRETCH, _STRETCH_MARGIN / share)

    # ---- the end ----

    def exited(self, status: int, cpu_s: float, peak_kb: int, orphans: int) -> None:
        """The zygote waited for the box's program, and ended what it had left behind."""
        if self.is_over:
            return
        if self.request is not None and not self.has_seen_job():
            self.zygote.box_failed(self, "it died while it was prepared")
            return
        flags = [f"blocked:{name}" for name in dict.fromkeys(self.refused)]
        if orphans and status >= 0:
            flags.append("killed_descendants")
        if flags:
            self.facts["flags"] = flags
        self._close_listener()  # what is left of the job is being ended: nobody waits for an answer
        self.exit_status = status
        self.facts["wall_s"] = time.monotonic() - self.started
        self.facts["cpu_s"] = self.cpu_s = max(cpu_s, self.cpu_s)
        self.facts["peak_mb"] = max(peak_kb / 1024, self.facts.get("peak_mb", 0.0))
        if self.request is None:
            self.supervisor.nursery.lost(self)
            return
        for index in sorted(self.open_streams):
            self._drain(index)
        self._finish_if_over()
        if not self.is_over:
            self.watch_pipes()
            self.supervisor.after(1.0, self._give_up_waiting)

    def has_seen_job(self) -> bool:
        """Return whether a promised box got as far as reading its job, which we may hear late."""
        if not self.is_prepared and self.control.fileno() >= 0:
            self._control_ready(select.EPOLLIN)
        return self.is_prepared

    def _give_up_waiting(self) -> None:
        if not self.is_over:
            for index in sorted(self.open_streams):
                self._close_stream(index)
            self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self.open_streams or self.is_over:
            return
        request = self.request
        if request is not None and request.outputs and not self._is_empty():
            # Files are read when nobody is left to swap them.
            self.supervisor.after(0.001, self._finish_if_over)
            return
        self.is_over = True
        self._write_down()
        self._close_control()
        self.supervisor.finished(self)
        self.supervisor.nursery.clear_away(self)
        # Timers may hold on to the box for long.
        self.facts, self.kept, self.seen, self.schedules = {}, [], set(), {}

    def _is_empty(self) -> bool:
        """Return whether every process of the box is gone."""
        poller = select.poll()
        poller.register(self.kill_fd, select.POLLIN)
        return bool(poller.poll(0))

    def _write_down(self) -> None:
        facts, request = self.facts, self.request
        assert request is not None
        facts["status"] = self.exit_status
        facts["stdout"], facts["stderr"], facts["channel"] = (bytes(kept) for kept in self.kept)
        facts["queue_s"] = self.started - request.received
        facts["setup_s"] = self.setup_s
        facts["waited_s"], facts["limit_s"] = self.waited_s, self.limit_s
        if self.slot is not None:
            with contextlib.suppress(OSError, ValueError):
                facts["cpu_s"] = max(self.slot.cpu_s() or 0.0, facts.get("cpu_s", 0.0))
                facts["peak_mb"] = self.slot.peak_mb()
                facts["oom"] = self.slot.was_out_of_memory()
        facts["outputs"], facts["truncated"] = {}, []
        if self.folder and request.outputs and self.work_fd < 0:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            with contextlib.suppress(OSError):  # the job may have removed it
                self.work_fd = os.open(self.folder, flags)
        if self.work_fd >= 0:
            room = request.limits["disk_mb"] << 20
            for path in request.outputs:
                content = _read_output(self.work_fd, path, room)
                if content is None:
                    continue
                if len(content) > room:
                    facts["truncated"].append(path)
                facts["outputs"][path] = content[:room]
                room = max(0, room - len(content))

    def break_off(self, reason: str) -> None:
        """The zygote died: the job's end is ours to explain."""
        self.is_over = True
        self.facts = {"broken": reason}
        self._close_control()
        self.kill()
        self.supervisor.nursery.clear_away(self)
        if self.request is not None:
            self.supervisor.finished(self)

    def close(self) -> None:
        """Release every descriptor and the folder."""
        self._close_control()
        self._close_listener()
        for index in sorted(self.open_streams):
            self._close_stream(index)
        for fd in (self.kill_fd, self.pid_fd, self.work_fd):
            if fd >= 0:
                os.close(fd)
        self.kill_fd = self.pid_fd = self.work_fd = -1
        if self.folder:
            remove_tree(self.folder)


def _read_output(folder_fd: int, path: str, cap: int) -> bytes | None:
    """Return a regular file's content, or None; follows nothing and waits for nothing.

    More than ``cap`` bytes say that the file has more.
    """
    try:
        fd = kernel.open_beneath(folder_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return None
        parts, size = [], 0
        while size <= cap and (part := os.read(fd, min(1 << 20, cap + 1 - size))):
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)
