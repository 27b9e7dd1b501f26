"""What makes forks cheap changes nothing that a program or a message could see."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from educe.sandbox import Call, Job, Limits, Sandbox
from educe.sandbox.inside import kernel, orders, waiting
from educe.sandbox.launch import command

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

# Run by an interpreter of its own, laid out as a zygote is: what is moved is its own code.
_MOVED = """
import ctypes
from educe.sandbox.inside import kernel, large_pages

large_pages.make_room()

ranges = [(low, high) for low, high in large_pages._code_ranges() if high - low >= 1 << 20]
before = [ctypes.string_at(low, high - low) for low, high in ranges]
moved = large_pages.use_for_code()
large_pages.use_for_data()
same = [ctypes.string_at(low, high - low) for low, high in ranges] == before
lines = [line.split() for line in open("/proc/self/maps")]
writable = [fields[1] for fields in lines if "x" in fields[1] and "w" in fields[1]]
anonymous = sum(fields[1] == "r-xp" and len(fields) == 5 for fields in lines)
print(same, writable, anonymous >= 1 if moved else "none moved", sum(range(10)))
"""


def test_code_in_large_pages_is_the_same_code_and_not_writable() -> None:
    *start, boot = command("start")
    boot = boot.rsplit("from educe", 1)[0] + _MOVED
    done = subprocess.run([*start, boot], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("True [] True 45", "True [] none moved 45")


def test_orders_and_reports_keep_numbers_and_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    post = orders.Post(theirs.fileno())
    with ours, theirs:
        for _ in range(2):  # the memory is used again
            orders.send_order(ours, (7, 64, 4096, 1, 52000, 2, 0, 0), [writer, reader])
            fds = post.receive()
            assert post.numbers.tolist() == [7, 64, 4096, 1, 52000, 2, 0, 0]
            assert fds is not None and len(fds) == 2
            os.write(fds[0], b"x")
            assert os.read(reader, 1) == b"x"
            post.send(orders.ARMED, 7, 99, (fds[0], fds[1]))
            data, passed, _, _ = socket.recv_fds(ours, 4096, 4)
            assert orders.MESSAGE.unpack(data)[:3] == (orders.ARMED, 7, 99)
            assert len(passed) == 2
            post.send_exit(7, -9, 1500, 2048, 1)
            data, none, _, _ = socket.recv_fds(ours, 4096, 4)
            assert orders.MESSAGE.unpack(data)[:6] == (orders.EXIT, 7, -9, 1500, 2048, 1)
            assert none == []
            post.send_failure(7, "no room")
            data = ours.recv(4096)
            assert orders.MESSAGE.unpack_from(data)[0] == orders.FAILED
            assert data[orders.MESSAGE.size :] == b"no room"
            for fd in (*fds, *passed):
                os.close(fd)
        ours.close()
        assert post.receive() is None
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("ending", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)]
)
def test_waiting_says_how_a_child_ended(ending: str, status: int) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", f"import os; {ending}"])
    ended = waiting.Waiting().wait(process.pid)
    process.returncode = status  # it was waited for behind its back
    assert ended is not None
    assert ended[0] == status
    assert 0 < ended[1] < 60_000_000
    assert ended[2] > 1000
    assert waiting.Waiting().wait(process.pid) is None


def test_a_mount_namespace_is_held_by_either_way() -> None:
    from educe.sandbox.inside.zygote import _Mounts

    mounts = _Mounts()
    pid = os.getpid()
    pidfd = os.pidfd_open(pid)
    own = Path(f"/proc/{pid}/ns/mnt").stat().st_ino
    for has_ioctl in (True, False):  # before Linux 6.11 there is only the second
        mounts._has_ioctl = has_ioctl
        fd = mounts.hold(pid, pidfd)
        assert os.fstat(fd).st_ino == own
        os.close(fd)
    os.close(pidfd)


def test_results_before_a_call_that_hangs_are_there(each_level: Sandbox) -> None:
    """They go out together, but not later than a call that takes its time."""
    source = "def f(x):\n    while x == 3: pass\n    return [x]"
    calls = tuple(Call((number,)) for number in range(5))
    limits = Limits(wall_s=1.5, cpu_s=60)
    result = each_level.run(Job(source, entry_point="f", calls=calls, limits=limits))
    assert [call.status for call in result.calls] == ["returned"] * 3 + ["missing"] * 2
    assert [call.value for call in result.calls[:3]] == [[0], [1], [2]]


@pytest.mark.parametrize(
    "text", ["0", "-1", "2**62", "2**63", "-2**63", "2**64", "10**300", "True", "None", "'é\"'"]
)
def test_values_that_take_a_short_way_arrive_as_they_are(sandbox: Sandbox, text: str) -> None:
    job = Job(f"def f(): return {text}", entry_point="f", calls=(Call(()),))
    (call,) = sandbox.run(job).calls
    assert (call.status, type(call.value), call.value) == ("returned", type(eval(text)), eval(text))


def test_a_large_value_comes_whole_and_a_larger_one_is_refused(sandbox: Sandbox) -> None:
    limits = Limits(result_bytes=1 << 20)
    calls = tuple(Call((size,)) for size in (5000, 200_000, 3 << 20, 7))
    job = Job("def f(n): return 'x' * n", entry_point="f", calls=calls, limits=limits)
    first, second, third, last = sandbox.run(job).calls
    assert (first.value, second.value, last.value) == ("x" * 5000, "x" * 200_000, "x" * 7)
    assert third.status == "unserialisable"


def test_a_fork_that_is_refused_says_so() -> None:
    fork = kernel.LaidOutFork(1 << 63)  # no such flag
    with pytest.raises(OSError, match="clone3"):
        fork()
