"""One rollout worker in its own process: ``python -m educe.rollout.remote_worker``.

Takes orders from its channel, lets a :class:`GroupServer` (an engine with its runner, named by
``module:function``) work on all of them at once, and sends groups back. A thread sends a heartbeat
with the number of steps taken, so the parent can tell a long computation from a dead one.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from educe.core.types import JSON, Group, TaskRequest
from educe.rollout.framing import FrameDecoder, encode_frame, read_frame
from educe.rollout.lifeline import WorkerArguments, become_worker
from educe.rollout.outcomes import describe

_READ_BYTES = 1 << 18


@runtime_checkable
class GroupServer(Protocol):
    """What runs inside a rollout worker; a factory ``module:function(options)`` builds it.

    The factory may also return a plain ``run_request(request) -> Group``, which then serves one
    order after the other.
    """

    def submit(self, request: TaskRequest) -> None:
        """Take an order; it is worked on by ``step``."""
        ...

    def step(self) -> list[Group]:
        """Advance all orders a little and return the groups that are complete."""
        ...

    @property
    def num_unfinished(self) -> int: ...

    def publish(self, version: int, weights: JSON) -> None:
        """Load the weights of a policy version; called between steps.

        ``weights`` says where they are (e.g. a folder); its meaning is the publisher's.
        """
        ...

    def close(self) -> None: ...


class OneByOne:
    """Serves orders with a plain function, one a step."""

    def __init__(self, run_request: Callable[[TaskRequest], Group]) -> None:
        self._run_request = run_request
        self._queue: deque[TaskRequest] = deque()

    def submit(self, request: TaskRequest) -> None:
        self._queue.append(request)

    def step(self) -> list[Group]:
        return [self._run_request(self._queue.popleft())]

    @property
    def num_unfinished(self) -> int:
        return len(self._queue)

    def publish(self, version: int, weights: JSON) -> None:
        """Nothing to load: a plain function has no weights of ours."""

    def close(self) -> None:
        self._queue.clear()


def build_server(reference: str, options: JSON) -> GroupServer:
    """Call the factory ``module:function`` with the options.

    Raises:
        DomainError: the reference does not resolve.
        TypeError: the factory returned neither a server nor a function.
    """
    from educe.domains.references import load_reference

    made = load_reference(reference, purpose="the rollout worker")(options)
    if isinstance(made, GroupServer):
        return made
    if callable(made):
        return OneByOne(made)
    raise TypeError(
        f"{reference} returned a {type(made).__name__}, expected a GroupServer or a function "
        f"run_request(request) -> Group"
    )


class _Link:
    """The channel, shared by the serving thread and the heartbeat."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._lock = threading.Lock()
        self.num_steps = 0

    def send(self, message: dict[str, JSON]) -> None:
        frame = encode_frame(message)
        with self._lock:
            self.channel.sendall(frame)

    def beat_for_ever(self, interval_s: float) -> None:
        pause = threading.Event()
        while True:
            try:
                self.send({"type": "beat", "num_steps": self.num_steps})
            except OSError:  # the parent is gone, and with it this process in a moment
                return
            pause.wait(interval_s)


def main() -> None:
    channel = become_worker(WorkerArguments.from_argv(sys.argv[1:]))
    setup = read_frame(channel)
    if setup is None:
        return
    link = _Link(channel)
    # Before the server is built: loading a model may take longer than the silence limit.
    threading.Thread(
        target=link.beat_for_ever, args=(setup["heartbeat_s"],), name="heartbeat", daemon=True
    ).start()
    try:
        server = build_server(setup["serve"], setup["options"])
        link.send({"type": "ready"})
        try:
            _serve(link, server)
        finally:
            server.close()
    except Exception as error:
        link.send({"type": "error", "reason": describe(error)})
        raise


def _serve(link: _Link, server: GroupServer) -> None:
    decoder = FrameDecoder()
    while True:
        is_busy = server.num_unfinished > 0
        readable, _, _ = select.select([link.channel], [], [], 0 if is_busy else None)
        if readable:
            data = link.channel.recv(_READ_BYTES)
            if not data:
                return
            for message in decoder.feed(data):
                _take(link, server, message)
        if server.num_unfinished > 0:
            groups = server.step()
            link.num_steps += 1
            for group in groups:
                link.send({"type": "group", "group": group.to_json()})


def _take(link: _Link, server: GroupServer, message: dict[str, JSON]) -> None:
    match message["type"]:
        case "request":
            server.submit(TaskRequest.from_json(message["request"]))
        case "publish":
            server.publish(message["version"], message["weights"])
            link.send({"type": "published", "version": message["version"]})
        case other:
            raise ValueError(f"unknown message type {other!r}")


if __name__ == "__main__":
    main()
