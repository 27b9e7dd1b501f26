# ruff: noqa: E501
"""A positive control for each check: take the defence away, and the check must turn red.

A check that cannot fail proves nothing. Three ways: *layers* are switched off and the very same
program then does its harm; *limits* are made generous and the same (finite) program then runs
through; and where neither can be done without harming this machine, a program is run that shows the
*detector* what the defence would have let happen.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import soak
from host_state import listener, look, wait_for_rest, what_changed
from hostile import CALM, ESCAPE, FAST, LEGITIMATE, OUTPUT, RESOURCE, ROWS, Row
from tamper import GOLDEN, TAMPERS, TASK_INPUTS

from educe.sandbox import (
    BoxVerdict,
    Case,
    Job,
    Level,
    Limits,
    Sandbox,
    SandboxError,
    grade_function,
)
from educe.sandbox.embedded import ALL_LAYERS, EmbeddedBackend
from educe.sandbox.inside import kernel

BY_NAME = {row.name: row for row in ROWS}
CASES = [Case((x,), x * x + 1) for x in TASK_INPUTS]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to keep")
_SPIN = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.9: pass"


# ---- layers switched off ----


@contextmanager
def without(*layers: str, modes: tuple[str, ...] = ()) -> Iterator[Sandbox]:
    kept = tuple(layer for layer in ALL_LAYERS if layer not in layers)
    try:
        backend = EmbeddedBackend(minimum=Level.PLAIN, num_parallel=2, layers=kept, modes=modes)
    except SandboxError as error:
        pytest.skip(str(error))
    with Sandbox(backend) as sandbox:
        yield sandbox


def complaint(sandbox: Sandbox, row: Row) -> str:
    return row.complaint(sandbox.run(row.job()))


# (layers, modes): {row: what the complaint must show}
LAYERS: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, str]] = {
    (("seccomp",), ()): {
        "kernel doors": "ALLOWED",
        "the i386 table": "RETURNED",
        "memfd, shared memory, message queues": "shmget ALLOWED",
    },
    (("privileges",), ()): {"becomes root": "uid 0"},
    # Both refuse a better place in the scheduler.
    (("privileges", "seccomp"), ()): {"raises its limits": "RAISED"},
    (("seccomp",), ("confined",)): {"attributes of a file outside": "TOUCHED"},
    (("landlock", "seccomp"), ("confined",)): {
        "files of the host": "SAW",
        "network": "SENT",
        "other processes": "few",
        "inode fill": "errno 28",
        "disk fill in the work folder": "errno 28",
        "abstract sockets of the host": "CONNECTED",
    },
}


@pytest.mark.parametrize("switched_off", LAYERS, ids=lambda key: "-".join((*key[0], *key[1])))
def test_without_a_layer_its_rows_turn_red(
    switched_off: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    layers, modes = switched_off
    if "privileges" in layers and os.geteuid() != 0:
        pytest.skip("only root has privileges to keep")
    with listener(), without(*layers, modes=modes) as sandbox:
        assert sandbox.level is Level.PLAIN  # never claims more than it does
        for name, shows in LAYERS[switched_off].items():
            told = complaint(sandbox, BY_NAME[name])
            assert shows in told, f"{name} stayed green: {told!r}"


def test_the_host_listens_where_boxes_must_not_reach(sandbox: Sandbox) -> None:
    """Without a listener that row would pass in a box without any wall."""
    with listener():
        assert not complaint(sandbox, BY_NAME["abstract sockets of the host"])


@pytest.mark.parametrize("kept", [True, False])
def test_landlock_keeps_writes_inside(kept: bool) -> None:
    """A file that everybody may write, outside the box's folder."""
    with tempfile.NamedTemporaryFile() as target:
        Path(target.name).chmod(0o666)
        source = f"""
try: open({target.name!r}, "ab").write(b"x"); print("WROTE")
except OSError as error: print("errno", error.errno)
"""
        row = replace(BY_NAME["writes to programs"], source=source)
        layers = () if kept else ("landlock",)
        with without(*layers, modes=("confined",)) as sandbox:
            assert ("WROTE" in complaint(sandbox, row)) is not kept


@pytest.mark.parametrize("kept", [True, False])
def test_signals_stay_inside(kept: bool) -> None:
    """A process of the same user outside: Landlock and the filter keep signals from it."""
    victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    try:
        source = f"import os\ntry: os.kill({victim.pid}, 9)\nexcept OSError: print('refused')"
        layers = () if kept else ("landlock", "seccomp", "privileges")
        with without(*layers, modes=("confined",)) as sandbox:
            printed = sandbox.run(Job(source)).stdout
        assert (printed == b"refused\n") is kept
        if not kept:
            assert victim.wait(30) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()


# ---- generous limits ----

_WIDE = Limits(
    cpu_s=30, wall_s=120, memory_mb=512, disk_mb=256, num_inodes=20_000, num_processes=512,
    num_descriptors=4096, stdout_bytes=8 << 20, stderr_bytes=8 << 20,
)  # fmt: skip
_FILL = "kept = [bytearray(b'x' * 10**7) for _ in range(12)]"
# row: a finite program of its kind ("": its own)
LIMITS = {
    "endless memory": _FILL,
    "one huge array": "bytearray(b'x') * (200 << 20)",
    "memory of many children": "import os, time\nfor _ in range(12):\n if os.fork() == 0:\n  kept = bytearray(b'x' * 2**23); time.sleep(1); os._exit(0)\nfor _ in range(12): os.wait()",
    "memory in files": "",
    "stdout flood": "import os\nfor _ in range(400): os.write(1, b'y\\n' * 4096)",
    "stderr flood": "import os\nfor _ in range(400): os.write(2, b'y\\n' * 4096)",
    "disk fill in the work folder": "",
    "disk fill in /tmp and /dev/shm": "",
    "inode fill": "",
    "descriptors until EMFILE": "",
    "thread bomb": "",
    "zombies": BY_NAME["zombies"].source.replace("10000", "100"),
    "busy loop": _SPIN,
    "ignores signals and loops": _SPIN,
    "huge number to text": _SPIN,
    "catastrophic regular expression": _SPIN,
    "rename storm": _SPIN,
    "fsync loop": _SPIN,
    "hash collisions": _SPIN,
    "fork bomb": "import os\nfor _ in range(40):\n if os.fork() == 0: os._exit(0)\nfor _ in range(40): os.wait()\n"
    + _SPIN,
    "sleep": "import time\ntime.sleep(1)",
    "select for ever": "import select\nselect.select([], [], [], 1)",
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_what_stops_a_row(sandbox: Sandbox, name: str) -> None:
    row = BY_NAME[name]
    if sandbox.level not in row.levels:
        pytest.skip("nothing is promised at this level")
    tight = row.limits
    if name in ("endless memory", "one huge array"):
        tight = replace(row.limits, memory_mb=64)
    row = replace(row, source=LIMITS[name] or row.source, limits=tight)
    assert not complaint(sandbox, row)
    assert complaint(sandbox, replace(row, limits=_WIDE))


def test_a_file_may_be_as_large_as_the_limit_says(sandbox: Sandbox) -> None:
    row = BY_NAME["one file over the limit"]
    assert "WROTE" in complaint(sandbox, replace(row, limits=replace(CALM, disk_mb=2048)))
    few = replace(BY_NAME["deep folders and odd names"], limits=replace(CALM, num_inodes=32))
    assert sandbox.level < 3 or complaint(sandbox, few)
    short = replace(BY_NAME["200 kB of output"], limits=replace(CALM, stdout_bytes=1000))
    assert "OLE" in complaint(sandbox, short)


# ---- detectors ----

_NEEDLE = "NEEDLE-IN-AN-EARLIER-JOB"
DETECTORS = {
    "environment": replace(BY_NAME["environment"], source="print('EDUCE_TEST_SECRET')"),
    "kills its own group": "print('alive')",
    "raw and odd sockets": "print('OPENED')",
    "no loopback by default": replace(BY_NAME["no loopback by default"], network="loopback"),
    "loopback in one job": "print('nothing')",
    "writes to programs": "print('WROTE', '/usr/bin/x')",
    "set-user-id programs": "print('uid=0')",
    "writes to the kernel": "print('WROTE')",
    "devices": "print('MADE end')",
    "daemon": "print('left')",
    "a child that holds the pipe": "import time\ntime.sleep(1)",
    "the zygote's memory": replace(
        BY_NAME["the zygote's memory"],
        source=f"kept = ['{_NEEDLE}' + str(i) for i in range(9)]" + BY_NAME["the zygote's memory"].source,
    ),
    "traces of educe": replace(BY_NAME["traces of educe"], files={"educe.py": b""}),
    "terminal tricks": "print('TTY')",
    "recursion": "print('ended')",
    "recursion without a limit": "print('ended')",
    "recursion in C": "print('ended')",
    "null pointer": "print('ended')",
    "abort": "print('ended')",
    "broken heap": "print('ended')",
    "tiny writes": "print('ended')",
    "read an empty stdin": replace(BY_NAME["read an empty stdin"], stdin=b"something"),
    "names with newlines and 255 bytes": "print(5)",
}  # fmt: skip
# Their promise is the state of the host, which has controls of its own below.
HOST_ONLY = {"a pool of 64 workers", "kills everything it can see"}
ELSEWHERE = {
    "one file over the limit", "deep folders and odd names", "200 kB of output",
}  # fmt: skip


@pytest.mark.parametrize("name", DETECTORS)
def test_a_row_sees_what_it_looks_for(sandbox: Sandbox, name: str) -> None:
    changed = DETECTORS[name]
    row = replace(BY_NAME[name], source=changed) if isinstance(changed, str) else changed
    if sandbox.level not in row.levels:
        pytest.skip("nothing is promised at this level")
    assert complaint(sandbox, row)


@pytest.mark.parametrize("row", [*OUTPUT, *LEGITIMATE], ids=lambda row: row.name)
def test_rows_of_good_programs_fail_for_broken_ones(sandbox: Sandbox, row: Row) -> None:
    """A box in which nothing works must not look like a safe one."""
    if row.name in ("lone surrogates", "forged result frames"):
        pytest.skip("it may end in any way but ours")
    broken = "raise SystemExit(3)" if "RE" not in row.verdicts.split("|") else "print('nothing')"
    assert complaint(sandbox, replace(row, source=broken))


def test_every_attacking_row_has_a_control() -> None:
    covered = {name for rows in LAYERS.values() for name in rows}
    covered |= set(LIMITS) | set(DETECTORS) | HOST_ONLY | ELSEWHERE
    assert {row.name for row in (*RESOURCE, *ESCAPE)} - covered == set()


# ---- what must be left of the host ----


@pytest.fixture
def own() -> Iterator[Sandbox]:
    with without(modes=()) as opened:
        yield opened


def test_the_host_check_sees_processes_and_descriptors(own: Sandbox) -> None:
    assert wait_for_rest(own) == ""
    before = look(own)
    with own.open_session() as session:
        session.python("x = 1")
        assert "processes alive" in wait_for_rest(own, 0.5)
    assert wait_for_rest(own) == ""
    held = [socket.socket(socket.AF_UNIX) for _ in range(160)]
    try:
        for sock in held:
            assert own.address is not None
            sock.connect("\0" + own.address.name)
        own.run(Job(""))
        deadline = time.monotonic() + 30.0  # connections are taken one at a time
        while not (told := what_changed(before, look(own))) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [one.split(" from ")[0] for one in told] == ["descriptors grew"]
    finally:
        for sock in held:
            sock.close()


def test_the_host_check_sees_memory(own: Sandbox) -> None:
    own.run_batch([Job("")] * 8)
    before = look(own)
    for number in range(40):  # kept for whoever asks with the same key
        own.run(Job("print('x' * 1_000_000)", idempotency_key=str(number)))
    assert any(told.startswith("memory grew") for told in what_changed(before, look(own)))


@needs_root
def test_the_host_check_sees_mounts(own: Sandbox) -> None:
    before = look(own)
    if own.facts["mode"] != "root":
        pytest.skip("boxes have no mounts of their own here")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            kernel.setns(
                os.open(f"/proc/{before.zygotes[0]}/ns/mnt", os.O_RDONLY), kernel.CLONE_NEWNS
            )
            kernel.mount("none", "/box/job", "tmpfs", 0, "size=4k")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert any(told.startswith("mounts grew") for told in what_changed(before, look(own)))


# ---- graders ----


def test_the_cheats_are_real(sandbox: Sandbox) -> None:
    """A grader that believes exit codes, or marks in the output, pays many of them."""
    asserts = "\n".join(f"assert f({x}) == {x * x + 1}" for x in TASK_INPUTS)
    believed = [
        name
        for name, source in TAMPERS.items()
        if name not in ("endless", "timer exits")
        and sandbox.run(Job(f"{source}\n{asserts}\n", limits=FAST)).exit_code == 0
    ]
    expected = {
        "always equal", "int subclass", "exit in function", "exit at import", "hard exit at import",
        "hard exit in function", "counts its calls", "exit handlers", "exec true",
    }  # fmt: skip
    assert expected <= set(believed), believed


def test_golden_and_flip_checks_can_fail(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GOLDEN, "plain", "def f(x):\n    return x * x\n")
    assert [told for told in soak.golden_failures(sandbox, 1) if told.startswith("plain: ")]
    for name in list(GOLDEN):
        if name != "plain":
            monkeypatch.delitem(GOLDEN, name)
    coin = "import os\ndef f(x):\n    return x * x + (os.urandom(1)[0] < 128)\n"
    monkeypatch.setitem(GOLDEN, "plain", coin)
    monkeypatch.setattr(soak, "_STEADY_TAMPERS", ())
    monkeypatch.setattr(soak, "_STEADY_ROWS", {})
    assert soak.verdict_flips(sandbox, 40)


def test_a_wrong_answer_and_a_dead_sandbox_are_told_apart(sandbox: Sandbox) -> None:
    wrong = grade_function(sandbox, "def f(x): return 0", "f", CASES)
    assert wrong.score().value == 0.0 and wrong.verdict is BoxVerdict.OK
