"""What offload frees goes back to the system at once (glibc), unless its user says otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import numpy as np
import psutil
from educe.models.activations import return_freed_memory

if sys.argv[1] == "returned":
    return_freed_memory()
own = psutil.Process()

def megabytes():
    return own.memory_info().rss / 2**20

np.ones(1 << 20)  # a freed block: from here on glibc keeps blocks of its size
before = megabytes()
small, large = [], []
for _ in range(20):
    large.append(np.ones(1 << 20))  # 8 MiB
    small.append(np.ones(1 << 13))  # 64 KiB, kept: what lies below cannot be trimmed
large.clear()
print(megabytes() - before)
"""


def kept(how: str, **environment: str) -> float:
    """Return the MiB that a process still holds of 160 that it freed."""
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    return float(told.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_freed_blocks_go_back_to_the_system():
    assert kept("as it is") > 100
    assert kept("returned") < 20
    # Set outside, it decides alone.
    assert kept("returned", MALLOC_MMAP_THRESHOLD_="33554432") > 100
