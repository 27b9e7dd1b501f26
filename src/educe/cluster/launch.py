"""Starts processes that belong together and notices the one that dies."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from educe.core.errors import InfrastructureError

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Ranks:
    """Trainer ranks 1 … size - 1 as local processes of ``python -m MODULE ARGUMENTS…``."""

    def __init__(self, module: str, arguments: Sequence[Sequence[str]], logs: Path) -> None:
        self._processes = [
            start(module, own, logs / f"rank-{number}.log")
            for number, own in enumerate(arguments, start=1)
        ]

    def raise_dead(self, wait_s: float = 0.0) -> None:
        """Raise InfrastructureError when a rank has died; give it ``wait_s`` to be seen dead."""
        deadline = time.monotonic() + wait_s
        while True:
            for number, process in enumerate(self._processes, start=1):
                if process.poll() not in (None, 0):
                    raise InfrastructureError(
                        f"trainer rank {number} died with status {process.returncode}; continue "
                        "with --resume"
                    )
            if time.monotonic() >= deadline:
                return
            time.sleep(0.1)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait for all ranks to end by themselves."""
        for process in self._processes:
            process.wait(timeout=timeout_s)

    def end(self) -> None:
        """End whatever is still there."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=30)


def start(module: str, arguments: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdout=log, stderr=subprocess.STDOUT
        )


@contextmanager
def watched(ranks: Ranks) -> Iterator[None]:
    """Tell a collective's failure from its cause: a closed connection only says that one closed."""
    try:
        yield
    except RuntimeError:
        ranks.raise_dead(wait_s=5.0)
        raise
    finally:
        ranks.end()
