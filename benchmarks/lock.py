"""One benchmark at a time, on a quiet machine: a number from a loaded one is worth nothing."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

MAX_OTHER_LOAD = 0.25


def other_load(seconds: float = 3.0) -> float:
    """Return the share of all cores that other processes use."""
    psutil.cpu_percent()
    time.sleep(seconds)
    return psutil.cpu_percent() / 100.0


@contextmanager
def quiet_machine(*, is_timing: bool = True) -> Iterator[None]:
    """Hold the benchmark lock; a timing benchmark also refuses a loaded machine.

    ``EDUCE_BENCH_ANYWAY=1`` overrides the refusal; what is measured then is marked by the caller.
    """
    path = Path(tempfile.gettempdir()) / f"educe-benchmark-{os.getuid()}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("another benchmark is running; wait for it")
        load = other_load() if is_timing else 0.0
        if load > MAX_OTHER_LOAD and os.environ.get("EDUCE_BENCH_ANYWAY") != "1":
            sys.exit(f"the machine is {load:.0%} busy; benchmarks want it idle")
        yield
