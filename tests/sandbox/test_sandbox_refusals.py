"""Refused system calls are named in the result, and a flood of them costs nobody anything."""

from __future__ import annotations

import pytest

from educe.sandbox import BoxVerdict, Job, Limits, Sandbox
from educe.sandbox.inside import refusals

_CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(*numbers):
    result = libc.syscall(*numbers)
    return result, ctypes.get_errno()
"""


def test_refused_calls_are_named(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("no filter at this level")
    source = _CALL + (
        "import socket\n"
        "print(call(272, 0x10000000), call(165, 0, 0, 0, 0, 0))\n"
        "try: socket.socket(17, socket.SOCK_RAW)\n"
        "except OSError as error: print(error.errno)\n"
    )
    result = sandbox.run(Job(source))
    assert result.stdout == b"(-1, 1) (-1, 1)\n97\n"
    assert result.flags == ("blocked:unshare", "blocked:mount", "blocked:socket")


def test_honest_programs_have_no_flags(sandbox: Sandbox) -> None:
    source = (
        "import subprocess, sys, threading\n"
        "t = threading.Thread(target=print, args=(1,)); t.start(); t.join()\n"
        "subprocess.run([sys.executable, '-c', 'print(2)'])\n"
    )
    assert sandbox.run(Job(source)).flags == ()
    assert sandbox.run(Job("print(1)", runtime="python-numpy")).flags == ()
    assert sandbox.run(Job("echo 1 | cat", runtime="bash")).flags == ()


def test_a_flood_of_refused_calls_is_answered_by_the_kernel(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("no filter at this level")
    count = 20 * refusals.MAX_TOLD
    source = _CALL + f"print({{call(272, 0x10000000)[0] for _ in range({count})}})"
    limits = Limits(cpu_s=20, wall_s=120)
    results = sandbox.run_batch([Job(source, limits=limits)] * 4)
    for result in results:
        assert result.verdict is BoxVerdict.OK and result.stdout == b"{-1}\n", result
        assert result.flags == ("blocked:unshare",)


def test_a_call_under_way_ends_with_its_job(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("no filter at this level")
    source = _CALL + "import os\nos.fork(); os.fork()\nwhile True: call(272, 0x10000000)"
    result = sandbox.run(Job(source, limits=Limits(cpu_s=0.3, wall_s=60)))
    assert result.verdict is BoxVerdict.TLE_CPU
    assert sandbox.run(Job("print(1)")).stdout == b"1\n"
