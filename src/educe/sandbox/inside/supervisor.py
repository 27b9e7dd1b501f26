"""The process that owns zygotes, boxes, limits and deadlines. One event loop, no threads.

It is exec'ed by the user's process and ends with it: it watches its owner through a pidfd and a
socket. It never parses what a candidate wrote, it only counts and forwards bytes.
"""

# ruff: noqa: PTH208
from __future__ import annotations

import contextlib
import heapq
import itertools
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NoReturn

from educe.sandbox.inside import cgroups, kernel, wire
from educe.sandbox.inside.boxes import Box
from educe.sandbox.inside.nursery import Nursery, ZygoteFailed
from educe.sandbox.inside.request import Request, Shape

_LAZY_S = 0.003  # short jobs end before their pipes are worth watching
_CHECK_S = 0.05
_KEEP_RESULTS, _KEEP_BYTES = 1024, 64 << 20
_QUEUE_PER_CLIENT = 4096


class Client:
    """One connection of the user's process (or of a worker that shares the sandbox)."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = wire.Reader()
        self.waiting = bytearray()
        self.is_sending = False
        self.is_known = False
        self.box: Box | None = None  # of a session
        self.is_session = False
        self.early = b""  # what a session's client sent before its box was there


class Supervisor:
    """Takes jobs, hands each to a box that was prepared for it, watches and reports."""

    def __init__(self, config: dict[str, Any], lifeline: socket.socket) -> None:
        self.config = config
        self.lifeline = lifeline
        self.poller = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.fresh: set[int] = set()  # watched since the poller was last asked
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.num_timers = 0
        self.queue: deque[Request] = deque()
        self.running: dict[int, Box] = {}
        self.sessions: dict[int, Box] = {}
        self.session_queue: deque[Request] = deque()
        self.results: OrderedDict[str, bytes] = OrderedDict()  # by idempotency key
        self.results_bytes = 0
        self.waiting: dict[str, list[tuple[Client, int]]] = {}  # for a result that is on its way
        self.restock_at = 0.0
        self.is_checking = False  # whether a look at what jobs use is due
        self.slots = cgroups.open_slots() if config["use_cgroups"] else None
        self.nursery = Nursery(config, self.slots, self)
        self.num_finished = 0

    # ---- start ----

    def start(self) -> dict[str, Any]:
        """Find the best mode that really runs a job; return what the owner gets to know."""
        reasons: list[str] = []
        for mode in self.config["modes"]:
            try:
                self.nursery.start(mode)
                return {
                    "ok": True,
                    "mode": mode,
                    "cgroups": self.slots.version if self.slots else 0,
                    "landlock": self.nursery.landlock,
                    "reasons": reasons,
                }
            except (ZygoteFailed, OSError) as error:
                reasons.append(f"{mode}: {error}")
                self.nursery.stop()
        return {"ok": False, "reasons": reasons}

    def serve(self) -> NoReturn:
        """Run until the owner is gone."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(b"\0" + self.config["address"].encode())
        listener.listen(512)
        listener.setblocking(False)
        self.watch(listener.fileno(), lambda _: self._accept(listener))
        self.watch(self.lifeline.fileno(), lambda _: self._lifeline())
        with contextlib.suppress(OSError):
            owner = os.pidfd_open(self.config["owner"])
            self.watch(owner, lambda _: self.shut_down())
        self.lifeline.send(marshal.dumps({"listening": True}))
        while True:
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
                now = time.monotonic()
            timeout = max(0.0, self.timers[0][0] - now) if self.timers else -1
            found = self.poller.poll(timeout)
            self.fresh.clear()
            for fd, events in found:
                handler = self.handlers.get(fd)
                # A number may belong to another file by now; what that one has to say is said
                # again.
                if handler is not None and fd not in self.fresh:
                    handler(events)
            self._pump()

    def watch(self, fd: int, handler: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        self.handlers[fd] = handler
        self.fresh.add(fd)
        self.poller.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        self.poller.modify(fd, events)

    def forget(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.poller.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.num_timers += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.num_timers, action))

    def shut_down(self) -> NoReturn:
        self.nursery.stop()
        if self.slots is not None:
            self.slots.close()
        os._exit(0)

    def _lifeline(self) -> None:
        if not self.lifeline.recv(4096):
            self.shut_down()

    # ---- clients ----

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] not in (0, os.getuid()):
            sock.close()
            return
        sock.setblocking(False)
        client = Client(sock)
        self.watch(sock.fileno(), lambda events: self._client_ready(client, events))

    def _client_ready(self, client: Client, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(client)
        if not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = client.sock.recv(wire.CHUNK)
            if client.is_session and data:
                self._feed(client, data)
                return
            frames = client.reader.feed(data) if data else []
        except BlockingIOError:
            return
        except (OSError, ValueError, EOFError):
            data, frames = b"", []
        if not data:
            self._drop(client)
            return
        for head, blob in frames:
            if not client.is_known and head.get("token") != self.config["token"]:
                self._drop(client)
                return
            client.is_known = True
            if head["op"] == "run":
                self._take(client, head, blob)
            elif head["op"] == "session":
                client.is_session = True
                self.session_queue.append(Request(client, head, blob))
                self.nursery.is_short = True
            elif head["op"] == "stats":
                self.reply(client, wire.pack(self._stats(head["id"])))

    def _feed(self, client: Client, data: bytes) -> None:
        if client.box is not None:
            client.box.feed(data)
        else:
            client.early += data

    def _drop(self, client: Client) -> None:
        """Forget a client; its queued jobs are not run, its running ones are ended."""
        if client.sock.fileno() < 0:
            return
        self.forget(client.sock.fileno())
        client.sock.close()
        # A job with a key may have others waiting for it.
        self.queue = deque(r for r in self.queue if r.client is not client or r.key)
        self.session_queue = deque(r for r in self.session_queue if r.client is not client)
        if client.box is not None:
            client.box.kill()
        for box in list(self.running.values()):
            if box.request is not None and box.request.client is client and not box.request.key:
                box.is_unwanted = True  # for a box that cannot be killed yet
                box.kill()

    def reply(self, client: Client, frame: bytes) -> None:
        if client.sock.fileno() < 0:
            return
        client.waiting += frame
        self._flush(client)

    def _flush(self, client: Client) -> None:
        try:
            while client.waiting:
                del client.waiting[: client.sock.send(client.waiting)]
        except BlockingIOError:
            pass  # the client is slow: the poller calls again when it has read some
        except OSError:
            client.waiting.clear()  # it is gone; its socket's end is handled where it is read
        if bool(client.waiting) != client.is_sending:
            client.is_sending = bool(client.waiting)
            wanted = select.EPOLLIN | (select.EPOLLOUT if client.is_sending else 0)
            self.change(client.sock.fileno(), wanted)

    def _stats(self, request: int) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "id": request,
            "pid": os.getpid(),
            "zygotes": self.nursery.pids(),
            "running": sum(box.started > 0 for box in self.running.values()),
            "promised": sum(not box.started for box in self.running.values()),
            "sessions": len(self.sessions),
            "queued": len(self.queue),
            "ready": self.nursery.num_ready(),
            "arming": self.nursery.num_arming(),
            "finished": self.num_finished,
            "num_fds": len(os.listdir("/proc/self/fd")),
            "peak_rss_mb": _peak_rss_mb(),
            "cpu_s": used.ru_utime + used.ru_stime,
        }

    # ---- jobs ----

    def _take(self, client: Client, head: dict[str, Any], blob: bytes) -> None:
        request = Request(client, head, blob)
        if request.key:
            known = self.results.get(request.key)
            if known is not None:
                facts = marshal.loads(known)
                self.reply(client, wire.pack({**facts, "id": request.id}))
                return
            if request.key in self.waiting:
                self.waiting[request.key].append((client, request.id))
                return
            self.waiting[request.key] = [(client, request.id)]
        self.queue.append(request)
        self.nursery.is_short = True

    def _pump(self) -> None:
        """Give waiting jobs to ready boxes, in order, and keep boxes in stock."""
        while self.session_queue:
            box = self.nursery.take(self.session_queue[0].shape)
            if box is None:
                break
            self._open_session(box, self.session_queue.popleft())
        while self.queue and len(self.running) < self.config["num_parallel"]:
            request = self.queue[0]
            box = self.nursery.claim(request.shape)
            # Failing to make one may have emptied the queue.
            if box is None or not self.queue or self.queue[0] is not request:
                break
            self.queue.popleft()
            self._go(box, request)
        is_quiet = not self.running or self._is_time_to_restock()
        if self.nursery.is_short and (self.queue or self.session_queue or is_quiet):
            num_free = self.config["num_parallel"] - len(self.running) + len(self.session_queue)
            self.nursery.stock([*self.session_queue, *self._next_jobs()], num_free)
        if (self.queue or self.session_queue) and not self.timers:
            self.after(_CHECK_S, _wake)  # no box could be ordered: try again

    def _is_time_to_restock(self) -> bool:
        """Boxes that nobody waits for are made when the jobs are done, or last for longer."""
        return time.monotonic() >= self.restock_at

    def _next_jobs(self) -> list[Request]:
        count = self.config["num_parallel"] + self.config["num_spare"]
        return list(itertools.islice(self.queue, count))

    def _open_session(self, box: Box, request: Request) -> None:
        self.sessions[box.id] = box
        request.client.box = box
        self.reply(request.client, wire.pack({"id": request.id}))
        box.go(request)
        box.watch_pipes()
        if request.client.early:
            box.feed(request.client.early)
            request.client.early = b""

    def _go(self, box: Box, request: Request) -> None:
        self.running[box.id] = box
        try:
            box.go(request)
        except OSError as error:  # the control group refused
            box.break_off(str(error))

    def job_started(self, box: Box) -> None:
        """A box began with its job: watch over it."""
        request = box.request
        assert request is not None
        if not self.is_checking:
            self.is_checking = True
            self.after(_CHECK_S, self._check_usage)
        if request.is_session:
            return
        self.restock_at = box.started + _LAZY_S
        self.after(_LAZY_S, box.watch_pipes)
        number = box.id
        self.after(box.limit_s, lambda: self._deadline(number))

    def take_back(self, box: Box) -> None:
        """A job's box could not be prepared: the job is the next one again."""
        request = box.request
        assert request is not None
        del self.running[box.id]
        self.queue.appendleft(request)
        self.nursery.is_short = True

    def _deadline(self, number: int) -> None:
        box = self.running.get(number)
        if box is not None and box.exit_status is None:
            box.facts["late"] = True
            box.kill()

    def _check_usage(self) -> None:
        """Enforce processor time of whole jobs, and memory where no control group does."""
        now = time.monotonic()
        for box in [*self.running.values(), *self.sessions.values()]:
            if box.exit_status is None and box.started and now - box.started >= _CHECK_S:
                box.check_usage()
        self.is_checking = bool(self.running or self.sessions)
        if self.is_checking:
            self.after(_CHECK_S, self._check_usage)

    def finished(self, box: Box) -> None:
        """A box reported its end: answer its client."""
        self.nursery.is_short = True
        if self.sessions.pop(box.id, None) is not None:
            assert box.request is not None
            box.request.client.box = None
            self._drop(box.request.client)
            return
        del self.running[box.id]
        self.num_finished += 1
        request = box.request
        assert request is not None
        if self._goes_again(box, request):
            self.queue.appendleft(request)
            return
        waiting = self.waiting.pop(request.key, None) if request.key else None
        for client, number in waiting or [(request.client, request.id)]:
            self.reply(client, wire.pack({**box.facts, "id": number}))
        if waiting and not box.facts.get("broken"):
            self._keep_result(request.key, marshal.dumps(box.facts))

    def _goes_again(self, box: Box, request: Request) -> bool:
        """Return whether a job gets another attempt for what was not its doing; once for each."""
        if box.is_unwanted:
            return False
        if box.facts.get("broken"):
            request.num_broken += 1
            box.facts["broke_twice"] = request.num_broken > 1
            return request.num_broken == 1
        if box.was_starved():
            if request.stretch == 1.0:
                request.stretch = box.stretch()
                return True
            if box.is_blameless():
                box.facts["broken"] = (
                    f"the machine was too busy to judge it: in {box.limit_s:.1f} s the job waited "
                    f"{box.waited_s:.1f} s for a processor"
                )
        if request.stretch > 1.0:
            box.facts["flags"] = [*box.facts.get("flags", ()), "retried:starved"]
        return False

    def _keep_result(self, key: str, data: bytes) -> None:
        """Remember what a key's job gave, as long as there is room."""
        self.results[key] = data
        self.results_bytes += len(data)
        while len(self.results) > _KEEP_RESULTS or self.results_bytes > _KEEP_BYTES:
            _, old = self.results.popitem(last=False)
            self.results_bytes -= len(old)

    def cannot_serve(self, shape: Shape, reason: str) -> None:
        """No box of a shape can be made: its jobs fail as ours."""
        failed = [r for r in (*self.queue, *self.session_queue) if r.shape == shape]
        self.session_queue = deque(r for r in self.session_queue if r.shape != shape)
        self.queue = deque(request for request in self.queue if request.shape != shape)
        for request in failed:
            waiting = self.waiting.pop(request.key, None) if request.key else None
            for client, number in waiting or [(request.client, request.id)]:
                self.reply(client, wire.pack({"id": number, "broken": reason}))


def _wake() -> None:
    """Nothing but a reason to wake up: every turn of the loop looks at what waits."""


def main() -> NoReturn:
    """Entry: the argument is the lifeline's descriptor; the configuration comes first on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    lifeline.set_inheritable(False)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = marshal.loads(lifeline.recv(1 << 16))
    # It works little and keeps the deadlines: a busy machine must not make it late.
    kernel.be_prompt(config["niceness"])
    supervisor = Supervisor(config, lifeline)
    answer = supervisor.start()
    lifeline.send(marshal.dumps(answer))
    if not answer["ok"]:
        supervisor.shut_down()
    supervisor.serve()


def _peak_rss_mb() -> float:
    """Return this program's largest resident memory, in MiB.

    Not ``ru_maxrss``: that keeps the size of the process that started us, from before our exec.
    """
    status = os.open("/proc/self/status", os.O_RDONLY)
    try:
        lines = os.read(status, 1 << 14).splitlines()
    finally:
        os.close(status)
    peaks = [int(line.split()[1]) for line in lines if line.startswith(b"VmHWM:")]
    return peaks[0] / 1024 if peaks else 0.0
