"""The parent's side of one worker process: start, talk without blocking, kill, reap.

``subprocess`` starts a fresh interpreter (never a fork of a threaded parent, never multiprocessing,
which re-imports ``__main__``), so workers start alike from scripts without a main guard, notebooks,
threads and forked data loaders. Knows nothing of what the messages mean.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path

from educe.core.types import JSON
from educe.rollout.framing import FrameDecoder, FrameError
from educe.rollout.lifeline import WorkerArguments

# One thread each: workers share the machine with the trainer, and idle pools of BLAS threads both
# slow it down and count against the address space limit.
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}
_READ_BYTES = 1 << 18
_REAP_S = 10.0


def worker_environment(single_threaded: bool = True) -> dict[str, str]:
    """Return the parent's environment with its import path, so ``module:function`` resolves."""
    environment = dict(os.environ)
    if single_threaded:
        environment.update(_WORKER_ENVIRONMENT)
    seen = dict.fromkeys(os.path.abspath(entry or os.curdir) for entry in sys.path)  # noqa: PTH100
    environment["PYTHONPATH"] = os.pathsep.join(seen)
    return environment


class WorkerProcess:
    """One child interpreter that runs ``python -m MODULE`` with a private channel.

    The child's standard input is empty and its standard output goes where its standard error goes,
    so nothing that user code prints can reach the channel. It leads its own process group: a kill
    takes what it started with it, and Ctrl-C in a terminal does not reach it.

    Args:
        module: to be run; its main must call ``become_worker(WorkerArguments.from_argv(...))``.
        log_path: file that collects the child's output; None passes it to our standard error.
        single_threaded: whether the child's numeric libraries get one thread only.
    """

    def __init__(
        self, module: str, *, log_path: Path | None = None, single_threaded: bool = True
    ) -> None:
        self.module = module
        channel, child_channel = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        arguments = WorkerArguments(child_channel.fileno(), lifeline_read, os.getpid())
        try:
            with contextlib.ExitStack() as stack:
                output: int
                if log_path is None:
                    output = _own_stderr()
                else:
                    output = stack.enter_context(log_path.open("ab")).fileno()
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, *arguments.to_argv()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(arguments.channel_fd, arguments.lifeline_fd),
                    start_new_session=True,
                    env=worker_environment(single_threaded),
                )
        except BaseException:
            channel.close()
            os.close(self._lifeline)
            raise
        finally:
            child_channel.close()
            os.close(lifeline_read)
        channel.setblocking(False)
        self.channel = channel
        self._decoder = FrameDecoder()
        self._outgoing = bytearray()
        self._is_open = True
        _OPEN.add(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    def send(self, frame: bytes) -> None:
        """Queue an encoded message and write as much as fits; ``flush`` writes the rest."""
        self._outgoing += frame
        self.flush()

    def flush(self) -> None:
        while self._outgoing:
            try:
                written = self.channel.send(self._outgoing)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the peer is gone; its death is found by reading
                self._outgoing.clear()
                return
            del self._outgoing[:written]

    def receive(self) -> tuple[list[dict[str, JSON]], bool]:
        """Return the messages that arrived, and whether the worker is still connected."""
        messages: list[dict[str, JSON]] = []
        while True:
            try:
                data = self.channel.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return messages, True
            except OSError:
                return messages, False
            if not data:
                return messages, False
            try:
                messages += self._decoder.feed(data)
            except FrameError:  # user code wrote into the channel: not a worker any more
                return messages, False

    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def hang_up(self) -> None:
        """Close our side for writing: a worker that waits for work ends by itself."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def kill(self) -> str:
        """Kill the worker's process group, reap it, close the channel; return how it ended."""
        if not self._is_open:
            return describe_exit(self.process.returncode)
        self._is_open = False
        # Before reaping, so that the id cannot have been given to anyone else. A worker that is
        # ending by itself keeps its own exit status.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # One that hangs in the kernel (a dead network disk, a driver) must not hang us as well.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_REAP_S)
        self.channel.close()
        os.close(self._lifeline)
        return describe_exit(self.process.returncode)

    def abandon(self) -> None:
        """Close a fork's copies of the handles, so that the worker stays the parent's alone."""
        if self._is_open:
            self._is_open = False
            self.channel.close()
            os.close(self._lifeline)
            self.process.returncode = -signal.SIGKILL  # not our child; nothing to reap


# A forked child (a data loader's, say) must not hold lifelines: a worker would outlive its parent.
_OPEN: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _abandon_all() -> None:
    for worker in list(_OPEN):
        worker.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _own_stderr() -> int:
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def describe_exit(returncode: int | None) -> str:
    """Return e.g. ``killed by SIGKILL (out of memory?)`` or ``exit code 1``."""
    if returncode is None:
        return "still running"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
