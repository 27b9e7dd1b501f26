"""A domain whose scorer does whatever the task's metadata says; loaded by reward workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.types import JSON, Message, Reply, Score, Split, Task, user


def task_that(do: str, index: int = 0, **metadata: JSON) -> Task:
    return Task("hostile", Split.TRAIN, index, (user("question"),), "gold", {"do": do, **metadata})


class Hostile(DomainBase):
    spec = DomainSpec("hostile", "hostile", "text", "does what it is told")

    def task(self, split: Split, index: int) -> Task:
        return task_that("judge", index)

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        done = _act(task.metadata, transcript)
        return Reply((Message("tool", f"turn {len(transcript)}"),), done is True, {"n": state})

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        result: Any = _act(task.metadata, transcript)
        return result


def _act(metadata: Any, transcript: Sequence[Message]) -> Any:
    match metadata["do"]:
        case "judge":
            return Score.graded(float(transcript[-1].content == "gold"))
        case "value":
            return Score(metadata["value"])
        case "loop":
            while True:
                pass
        case "hold the interpreter":  # one C call of hours, which releases no lock
            return 7 ** (7**9)
        case "sleep":
            time.sleep(metadata["seconds"])
            return Score.right()
        case "raise":
            raise ValueError("the checker is broken")
        case "unscored":
            raise UnscoredError("no gold to compare with")
        case "infrastructure":
            raise InfrastructureError("the judge is away")
        case "exit":
            sys.exit(0)
        case "hard exit":
            os._exit(0)
        case "kill itself":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            marker = Path(metadata["marker"])
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return Score.right()
        case "fill memory":
            return Score.graded(len(bytearray(64 * 2**30)) * 0)
        case "fill memory once":
            return _fill_once(metadata)
        case "async":
            return _later()
        case "print":
            print("\x00\x00\x00\x02{}" * 1000, flush=True)
            os.write(1, b"raw noise" * 1000)
            subprocess.run(["echo", "from a child"], check=True)
            return Score.right(reason=repr(sys.stdin.read()))
        case "float":
            return 0.5
        case "set":
            return Score(1.0, proof={"cases": {1, 2}})
        case "numpy":
            import numpy

            return Score(1.0, proof={"value": numpy.float32(0.5), "count": numpy.int64(3)})
        case "alarm":  # what math-verify does; works in a main thread only
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            return Score.right(reason=threading.current_thread().name)
        case "orphan":
            subprocess.Popen(["sleep", "1000"])
            while True:
                pass
        case "torch":
            return Score.right(reason=str("torch" in sys.modules))
        case "pid":
            return Score.right(reason=str(os.getpid()))
        case "write to all descriptors":
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b"\x00\x00\x00\x02{}")
                except OSError:
                    continue
            return Score.right()
        case other:
            raise AssertionError(other)


async def _later() -> Score:
    await asyncio.sleep(0.001)
    return Score.right(reason="awaited")


_USED: list[bytearray] = []


def _fill_once(metadata: Any) -> Score:
    """Leak in the first worker until its limit; a fresh worker has room again."""
    marker = Path(metadata["marker"])
    if not marker.exists():
        marker.touch()
        while True:
            _USED.append(bytearray(2**28))
    return Score.right()


def make() -> Hostile:
    return Hostile()


def make_slowly() -> Hostile:
    time.sleep(1000)
    return Hostile()


def make_nothing() -> Hostile:
    raise ValueError("no data")


class Executing(Hostile):
    """Says that it executes code, and tells which sandbox it was handed."""

    spec = DomainSpec("hostile", "hostile", "code", "runs programs", executes_code=True)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        supervisor = services.sandbox.stats()["pid"]
        return Score.right(reason=f"level {services.sandbox.level} of {supervisor}")


def make_executing() -> Executing:
    return Executing()
