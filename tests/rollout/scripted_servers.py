"""Factories for rollout workers in tests; the groups say who made them with which weights."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orders import group

from educe.core.types import JSON, Group, TaskRequest


def one_by_one(options: Any) -> Callable[[TaskRequest], Group]:
    def run_request(request: TaskRequest) -> Group:
        time.sleep(options["seconds"])
        if request.request_id in options.get("poison", ()):
            raise ValueError(f"cannot run order {request.request_id}")
        return group(request)

    return run_request


class Continuous:
    """Works on all orders at once; later orders finish first, three steps each."""

    def __init__(self, options: Any) -> None:
        self._pause_s = options.get("pause_s", 0.0)
        self._is_stuck = options.get("stuck", False)
        self._version = 0
        self._steps_left: dict[TaskRequest, int] = {}

    def submit(self, request: TaskRequest) -> None:
        self._steps_left[request] = 3

    def step(self) -> list[Group]:
        time.sleep(self._pause_s)
        while self._is_stuck:
            time.sleep(0.05)
        done = []
        for request in reversed(list(self._steps_left)):
            self._steps_left[request] -= 1
            if not self._steps_left[request]:
                del self._steps_left[request]
                done.append(group(request, self._version))
        return done

    @property
    def num_unfinished(self) -> int:
        return len(self._steps_left)

    def publish(self, version: int, weights: JSON) -> None:
        assert weights == {"folder": f"weights-{version}"}
        self._version = version

    def close(self) -> None:
        self._steps_left.clear()


def continuous(options: Any) -> Continuous:
    return Continuous(options)


def foreign(options: Any) -> Callable[[TaskRequest], Group]:
    """Answers with the group of another order."""
    return lambda request: group(
        TaskRequest(**{**request.to_json(), "request_id": request.request_id + 1})
    )


def dying(options: Any) -> None:
    os._exit(3)


class Mortal(Continuous):
    """Kills its process with -9 at one named moment, the first time it comes there.

    ``options``: ``moment`` and ``marker``, a file that says that it has happened.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._moment, self._marker = options["moment"], Path(options["marker"])
        self._num_steps = 0
        self._has_sent = False
        if self._moment == "half a frame":
            self._send_half()
        self.die("building")

    def die(self, moment: str) -> None:
        if moment == self._moment and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def submit(self, request: TaskRequest) -> None:
        self.die("order read")
        super().submit(request)
        self.die("order taken")

    def step(self) -> list[Group]:
        if self._has_sent:
            self.die("group sent")
        self._num_steps += 1
        if self._num_steps == 2:
            self.die("mid generation")
        done = super().step()
        if done:
            self.die("group done")
            self._has_sent = True
        return done

    def publish(self, version: int, weights: JSON) -> None:
        self.die("weights asked for")
        super().publish(version, weights)
        self.die("weights loaded")

    def _send_half(self) -> None:
        """Let the process die with half of a group's frame written."""
        worker: Any = sys.modules["__main__"]  # educe.rollout.remote_worker, run as a program
        encode = worker.encode_frame

        def send(link: Any, message: dict[str, JSON]) -> None:
            frame = encode(message)
            if message["type"] == "group" and not self._marker.exists():
                link.channel.sendall(frame[: len(frame) // 2])
                self.die("half a frame")
            with link._lock:
                link.channel.sendall(frame)

        worker._Link.send = send


def mortal(options: Any) -> Mortal:
    return Mortal(options)
