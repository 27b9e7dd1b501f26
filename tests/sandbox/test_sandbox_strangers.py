# ruff: noqa: E501
"""Attacks by somebody who did not write the sandbox: every level, other users, and a control each.

The rows are in ``hostile/strangers.py`` (the suite of hostile rows and the soak run them, too). What
a row cannot say is here: outputs, the host's own processes and folders, who pays for what is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from host_state import look, wait_for_rest, what_changed
from hostile import BOXED, STRANGERS, Row
from test_sandbox_controls import without
from test_sandbox_hostile import _as_user

from educe.sandbox import BoxVerdict, Job, Level, Limits, Sandbox, SandboxError, open_sandbox
from educe.sandbox.inside.boxes import Box
from educe.sandbox.inside.folders import remove_tree

HERE = Path(__file__).parent
BY_NAME = {row.name: row for row in STRANGERS}
# One of each kind that ends by itself; the others run at the lower levels in the slow tier.
QUICK = [
    "children of its parent", "every signal at the first process", "hops from process to process",
    "adopts what it leaves behind", "descriptors sent inside themselves", "locked memory",
    "slots of asynchronous input", "flushes every disk", "timers without end", "watches on everything",
    "times of the host's devices", "files without names", "holes and promises", "many names of one file",
    "attributes as a disk", "more doors of the kernel", "steals from its own pipes",
]  # fmt: skip


def run_rows(level: str, names: list[str]) -> list[str]:
    """Run rows one after another through one pool; return what went wrong with them or the host."""
    try:
        sandbox = open_sandbox(level, num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        sandbox.run_batch([Job("")] * 4)
        told = [wait_for_rest(sandbox)]
        before = look(sandbox)
        for row in (BY_NAME[name] for name in names):
            if sandbox.level in row.levels:
                told += [row.complaint(sandbox.run(row.job())), wait_for_rest(sandbox, 60)]
                after = sandbox.run(Job("print('fine')"))
                told.append("" if after.stdout == b"fine\n" else f"after {row.name}: {after}")
        return [one for one in told if one] + what_changed(before, look(sandbox))


@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_quick_rows_at_lower_levels(level: str) -> None:
    assert run_rows(level, QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("level", ["cgroups", "namespaces", "confined"])
def test_all_rows_at_every_level(level: str) -> None:
    assert run_rows(level, list(BY_NAME)) == []


@pytest.mark.parametrize("level", ["namespaces", "confined"])
def test_quick_rows_as_an_ordinary_user(level: str) -> None:
    told = json.loads(_as_user(HERE / "run_hostile.py", level, ",".join(QUICK)))
    assert told["uid"] != 0
    assert told["complaints"] == []


# ---- controls ----

# With the filter off the same program is let through (and does little: it runs once).
FILTERED = {
    "children of its parent": "ALLOWED",
    "slots of asynchronous input": "ALLOWED",
    "flushes every disk": "syncfs refused",
    "more doors of the kernel": "ALLOWED",
}
_WIDE = Limits(
    cpu_s=30, wall_s=120, memory_mb=1024, disk_mb=256, num_inodes=20_000, num_processes=512,
    num_descriptors=4096,
)  # fmt: skip
# With wide limits the same program gets what it wants.
LIMITED = {
    "shared memory of many children": "ALL HELD",
    "memory of threads whose leader is gone": "ALL HELD",
    "files without names": "ALL WRITTEN",
    "many names of one file": "ALL LINKED",
    "attributes as a disk": "",
    "watches on everything": "",
}
_SPIN = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.2: pass"
# What the detector says of a program that got away with it.
DETECTED = {
    "every signal at the first process": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "stops itself": "print('ENDED')",
    "stops its whole group and its parent": "print('ENDED')",
    "is polite to be excused": _SPIN,
    "hides its processor time behind a name": _SPIN,
    "spawns without end": _SPIN,
    "hops from process to process": "raise SystemExit(1)",
    "adopts what it leaves behind": "print('left')",
    "a filter that lets nobody end": "print('filter 0')",
    "memory in sockets": "print('HELD 20')",
    "memory in pipes": "print('OVER')",
    "descriptors sent inside themselves": "print('sent', False)",
    "locked memory": "print('LOCKED')",
    "timers without end": "print('OVER')",
    "signals in a queue": "print('OVER')",
    "times of the host's devices": BY_NAME["times of the host's devices"].source.replace("/dev/null", "main.py"),
    "holes and promises": "print('HUGE')",
    "packets of one byte": "print('y')",
    "steals from its own pipes": "raise SystemExit(3)",
}  # fmt: skip


def test_every_row_has_a_control() -> None:
    assert set(FILTERED) | set(LIMITED) | set(DETECTED) == set(BY_NAME)
    assert len(BY_NAME) >= 20


def test_without_the_filter_its_rows_turn_red() -> None:
    with without("seccomp") as sandbox:
        for name, shows in FILTERED.items():
            told = BY_NAME[name].complaint(sandbox.run(BY_NAME[name].job()))
            assert shows in told, f"{name} stayed green: {told!r}"


def test_a_stray_child_of_the_zygote_is_seen() -> None:
    """What that row is about: without the filter the zygote has children that it never waits for."""
    with without("seccomp") as sandbox:
        assert wait_for_rest(sandbox) == ""
        sandbox.run(BY_NAME["children of its parent"].job())
        assert "processes alive" in wait_for_rest(sandbox, 1.0)


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_is_what_stops_a_row(sandbox: Sandbox, name: str) -> None:
    row = BY_NAME[name]
    if sandbox.level not in row.levels:
        pytest.skip("nothing is promised at this level")
    wide = replace(row, limits=_WIDE, prints=row.prints or "errno")
    told = wide.complaint(sandbox.run(wide.job()))
    assert told and LIMITED[name] in told, told


@pytest.mark.parametrize("name", DETECTED)
def test_a_row_sees_what_it_looks_for(sandbox: Sandbox, name: str) -> None:
    row = replace(BY_NAME[name], source=DETECTED[name])
    if sandbox.level not in row.levels:
        pytest.skip("nothing is promised at this level")
    assert row.complaint(sandbox.run(row.job()))


# ---- to be excused ----

_DUTY = """
import os, time
while True:
    begun = time.monotonic()
    while time.monotonic() - begun < 0.07: pass
    time.sleep(0.03)
"""
_STARVE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if os.fork() == 0:
    try: HOW
    except OSError: pass
    while True: pass
"""


@pytest.mark.parametrize(
    "how", ["os.nice(19)", "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"]
)
def test_a_job_that_starves_itself_is_late_not_excused(sandbox: Sandbox, how: str) -> None:
    """Being unscored is worth more than a zero to who cannot solve the task."""
    limits = Limits(cpu_s=60, wall_s=0.6, memory_mb=64, disk_mb=8)
    attack = sandbox.run(Job(_STARVE.replace("HOW", how) + _DUTY, limits=limits))
    if attack.verdict is BoxVerdict.INFRA:  # only a machine that starves everybody may say so
        honest = sandbox.run(Job(_DUTY, limits=limits))
        if "retried:starved" in honest.flags or honest.verdict is BoxVerdict.INFRA:
            pytest.skip("this machine is too busy to tell")
    assert attack.verdict in (BoxVerdict.TLE_WALL, BoxVerdict.TLE_CPU), attack.reason


# ---- outputs ----

_MANY = tuple(f"out\n{number}" for number in range(8))


@pytest.mark.parametrize("level", ["plain", "confined", "namespaces", "cgroups"])
def test_outputs_are_bounded_together_whatever_their_names(level: str) -> None:
    """One file of holes under many names, with line ends in them, and some that are no files."""
    source = """
import os, socket
fd = os.open("big", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 5 << 20)
for number in range(8): os.link("big", f"out\\n{number}")
os.mkfifo("fifo"); os.mkdir("folder"); os.symlink("big", "link"); os.symlink("/proc/self/environ", "far")
open("small", "w").write("kept")
"""
    job = Job(
        source, limits=Limits(disk_mb=8), outputs=("small", *_MANY, "fifo", "folder", "link", "far")
    )
    try:
        sandbox = open_sandbox(level, num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        result = sandbox.run(job)
        assert sandbox.run(Job("print('fine')")).stdout == b"fine\n"
    assert result.verdict is BoxVerdict.OK, result
    assert result.outputs["small"] == b"kept"
    assert not {"fifo", "folder", "link", "far"} & set(result.outputs)
    if level != "plain":  # which promises nothing of many files together
        assert sum(map(len, result.outputs.values())) <= 8 << 20
        whole = set(result.outputs) - set(result.truncated)
        assert whole == {"small", _MANY[0]}, "two of 5 MiB are more than the disk: the rest is cut"


@pytest.mark.parametrize("level", ["plain", "confined", "namespaces"])
def test_a_crash_leaves_no_core(level: str) -> None:
    source = """
import ctypes, os, resource
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
try: resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
except (OSError, ValueError): pass
os.abort()
"""
    try:
        sandbox = open_sandbox(level, num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        result = sandbox.run(Job(source, outputs=("core", "core.2", "core.3")))
    assert result.verdict is BoxVerdict.RE and result.signal == signal.SIGABRT
    assert not result.outputs


# ---- folders of the host ----


@pytest.mark.parametrize("level", ["plain", "confined"])
def test_folders_of_any_depth_and_mode_are_removed(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand folders in each other ended whoever removed them by recursion."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = """
import os
os.mkdir("closed"); open("closed/x", "w").close(); os.symlink("/usr", "closed/link"); os.chmod("closed", 0)
for _ in range(1300): os.mkdir("d"); os.chdir("d")
os.chmod(".", 0)
print("deep")
"""
    try:
        sandbox = open_sandbox(level, num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        assert sandbox.run(Job(source)).stdout == b"deep\n"
        assert sandbox.run(Job("print('fine')")).stdout == b"fine\n"
        assert sandbox.level < 2 or wait_for_rest(sandbox) == ""
    assert list(tmp_path.glob("educe-job-*")) == []


def test_removal_follows_no_link_and_says_nothing_of_what_is_not_there(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside / "a" / "b"):
        folder.mkdir(parents=True)
    (outside / "kept").write_text("x")
    (inside / "a" / "link").symlink_to(outside)
    (inside / "file\nname").write_text("x")
    remove_tree(str(inside))
    assert (outside / "kept").exists() and not inside.exists()
    remove_tree(str(inside))
    link = tmp_path / "link"
    link.symlink_to(outside)
    remove_tree(str(link))  # not a folder: nothing below it is touched
    assert (outside / "kept").exists()


# ---- processes of the host, where a box has no namespace of its own ----

_VICTIM = "import signal, time\nsignal.signal(signal.SIGIO, signal.SIG_DFL)\nprint('up', flush=True)\ntime.sleep(60)"
_REACH = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
pid = VICTIM
def attempt(name, action):
    try: action(); print("REACHED", name)
    except (OSError, ValueError): print("refused", name)
def call(*arguments):
    if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), "")
attempt("prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (50, 50)))
attempt("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))
attempt("setpriority of all", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 5))
attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
attempt("policy", lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))
attempt("io priority", lambda: call(251, 1, pid, (2 << 13) | 7))
attempt("io priority of all", lambda: call(251, 3, os.getuid(), (2 << 13) | 7))
attempt("signal", lambda: os.kill(pid, 9))
attempt("queued signal", lambda: call(129, pid, 9, bytes(128)))
r, w = os.pipe()
def own():
    import fcntl
    fcntl.fcntl(r, fcntl.F_SETOWN, pid); fcntl.fcntl(r, 10, 9)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); os.write(w, b"x")
    raise OSError
attempt("signal by a pipe", own)
attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb"))
attempt("trace", lambda: call(101, 16, pid, 0, 0))
attempt("link", lambda: os.link(TARGET, "mine"))
attempt("rename", lambda: os.rename(TARGET, "mine"))
attempt("truncate", lambda: os.truncate(TARGET, 0))
print("end")
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _VICTIM], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_confined_job_reaches_no_process_of_its_user(
    victim: subprocess.Popen[str], tmp_path: Path, kept: bool
) -> None:
    target = tmp_path / "target"
    target.write_text("whole")
    source = _REACH.replace("VICTIM", str(victim.pid)).replace("TARGET", repr(str(target)))
    if not kept:  # only at the victim: the control must not slow down all of the user's processes
        source = "\n".join(line for line in source.splitlines() if "of all" not in line)
    layers = () if kept else ("landlock", "seccomp", "privileges")
    with without(*layers, modes=("confined",)) as sandbox:
        printed = sandbox.run(Job(source)).stdout_text
    assert "end" in printed
    if kept:
        assert "REACHED" not in printed, printed
        assert victim.poll() is None and target.read_text() == "whole"
    else:
        assert {"prlimit", "setpriority", "affinity", "policy"} <= set(
            printed.replace("REACHED ", "").splitlines()
        )
        assert "REACHED" in printed and victim.wait(30) == -signal.SIGKILL


def test_a_hopping_process_does_not_survive_where_no_namespace_ends_it() -> None:
    name = f"hop{os.getpid()}"
    source = (
        f"import ctypes\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
        + BY_NAME["hops from process to process"].source
    )
    try:
        sandbox = open_sandbox("confined", num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        # The detector: a process of that name is found while it lives.
        sleeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\nprint(flush=True)\ntime.sleep(60)"],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        assert _named(name) == 1
        sleeper.kill()
        sleeper.wait()
        sleeper.stdout.close()
        for _ in range(5):
            assert sandbox.run(Job(source)).stdout == b"left\n"
        deadline = time.monotonic() + 30
        while _named(name) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _named(name) == 0


def _named(name: str) -> int:
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            count += f"({name})" in text and ") Z " not in text
    return count


# ---- whoever comes next ----

_HOARD = """
import array, os, socket
try:
    for _ in range(20):
        a, b = socket.socketpair()
        os.write(memory := os.memfd_create("x"), bytes(1 << 20)) if hasattr(os, "memfd_create") else None
        both = array.array("i", [a.fileno(), b.fileno(), memory])
        a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, both)])
        b.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, both)])
        a.close(); b.close(); os.close(memory)
except OSError: pass
try:
    with open("fill", "wb") as file: file.write(bytes(30 << 20))
except OSError: pass
"""


def test_what_a_job_hoarded_is_not_charged_to_the_next() -> None:
    """Memory that outlives its processes: files, and descriptors that are on their way in circles."""
    try:
        sandbox = open_sandbox("cgroups", num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    hoard = Limits(memory_mb=80, disk_mb=40)
    needs = Job("kept = bytearray(b'x') * (50 << 20)\nprint(len(kept) >> 20)", limits=hoard)
    with sandbox:
        for _ in range(8):
            sandbox.run(Job(_HOARD, limits=hoard))
            result = sandbox.run(needs)
            assert result.stdout == b"50\n", result
        # The limit is real: what a job hoards itself does not leave room for the same need.
        assert sandbox.run(replace(needs, source=_HOARD + needs.source)).verdict is BoxVerdict.MLE


def test_many_boxes_with_everything_open_leave_nothing(sandbox: Sandbox) -> None:
    if sandbox.level not in BOXED:
        pytest.skip("nothing is promised at this level")
    rows = [
        BY_NAME[name]
        for name in (
            "descriptors sent inside themselves",
            "hops from process to process",
            "memory in pipes",
        )
    ]
    sandbox.run_batch([Job("")] * 8)
    assert wait_for_rest(sandbox) == ""
    before = look(sandbox)
    results = sandbox.run_batch([row.job() for row in rows * 6])
    assert [
        told
        for row, result in zip(rows * 6, results, strict=True)
        if (told := row.complaint(result))
    ] == []
    assert wait_for_rest(sandbox, 60) == ""
    assert what_changed(before, look(sandbox)) == []


def test_one_stream_does_not_hold_up_the_others() -> None:
    """A writer of single-byte packets always has one more: a look at a pipe must end anyway."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    try:
        import fcntl

        fcntl.fcntl(writer, 1031, 1 << 20)
        for _ in range(200):
            os.write(writer, b"y")
        box: Any = SimpleNamespace(
            pipes=[reader], open_streams={0}, kept=[bytearray()], caps=[1 << 20], facts={}
        )
        Box._drain(box, 0)
        first = len(box.kept[0])
        assert 0 < first < 200
        Box._drain(box, 0)
        assert len(box.kept[0]) > first  # and the next look goes on where it stopped
    finally:
        os.close(reader)
        os.close(writer)


def test_rows_say_at_which_levels_they_promise_something() -> None:
    assert all(isinstance(row, Row) and Level.CGROUPS in row.levels for row in STRANGERS)
