# ruff: noqa: E501
"""Modes, owners, times and attributes of files, where a box keeps its user's id and has no mounts.

Only files that the tests made are ever in reach of a change: no control may touch the host's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_sandbox_controls import without

from educe.sandbox import (
    BoxVerdict,
    Job,
    Level,
    Limits,
    Sandbox,
    SandboxError,
    embedded,
    open_sandbox,
)
from educe.sandbox.host import system_paths

LIMITS = Limits(cpu_s=20, wall_s=120, memory_mb=512, disk_mb=16)
# Prints the names of all changes that could be made to the file of its first argument.
_CHANGES = """
import ctypes, fcntl, os, platform, struct, sys, time
path = sys.argv[1].encode()
libc = ctypes.CDLL(None, use_errno=True)
fd, bare = os.open(path, os.O_RDONLY), os.open(path, os.O_PATH)
above = os.open(os.path.dirname(path), os.O_PATH)
name, me, group, old = os.path.basename(path), os.getuid(), os.getgid(), struct.pack("4q", 1, 0, 2, 0)
at = ctypes.byref(ctypes.create_string_buffer(old, len(old)))
def call(number, *arguments):
    ready = [ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)]
    if libc.syscall(*ready) < 0: raise OSError(ctypes.get_errno(), "")
def lease():
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK); leases.append(1)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
def flags(request, data, place):
    changed = bytearray(data); changed[place] ^= 0x40  # not to be dumped
    fcntl.ioctl(fd, request, bytes(changed))
leases = []
intel = platform.machine() == "x86_64"
changes = {
    "chmod": lambda: os.chmod(path, 0o610),
    "fchmod": lambda: os.fchmod(fd, 0o620),
    "fchmodat": lambda: os.chmod(name, 0o630, dir_fd=above),
    "fchmodat2": lambda: call(452, bare, b"", 0o640, 0x1000),
    "chown": lambda: os.chown(path, me, group),
    "lchown": lambda: os.lchown(path, me, group),
    "fchown": lambda: os.fchown(fd, me, group),
    "fchownat": lambda: os.chown(name, me, group, dir_fd=above),
    "utimensat": lambda: os.utime(path, (3, 4)),
    "futimens": lambda: os.utime(fd, (5, 6)),
    "now": lambda: os.utime(path),
    "utimensat of a descriptor": lambda: call(280 if intel else 88, bare, b"", at, 0x1000),
    "setxattr": lambda: os.setxattr(path, "user.a", b"1"),
    "lsetxattr": lambda: os.setxattr(path, "user.b", b"1", follow_symlinks=False),
    "fsetxattr": lambda: os.setxattr(fd, "user.c", b"1"),
    "removexattr": lambda: os.removexattr(path, "user.kept1"),
    "lremovexattr": lambda: os.removexattr(path, "user.kept2", follow_symlinks=False),
    "fremovexattr": lambda: os.removexattr(fd, "user.kept3"),
    "setxattrat": lambda: call(463, above, name, 0, b"user.d", bytes(16), 16),
    "flags": lambda: flags(0x40086602, fcntl.ioctl(fd, 0x80086601, bytes(8)), 0),
    "project flags": lambda: flags(0x401C5820, fcntl.ioctl(fd, 0x801C581F, bytes(28)), 0),
    "version": lambda: fcntl.ioctl(fd, 0x40087602, bytes([9] + [0] * 7)),
    "lease": lease,
}
if intel:
    changes["utime"] = lambda: call(132, path, struct.pack("2q", 7, 8))
    changes["utimes"] = lambda: call(235, path, struct.pack("4q", 9, 0, 10, 0))
    changes["futimesat"] = lambda: call(261, above, name, struct.pack("4q", 11, 0, 12, 0))
    changes["chown by number"] = lambda: call(92, path, me, group)
    changes["chmod by number"] = lambda: call(90, path, 0o650)
def look():
    about = os.stat(path)
    return about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, about.st_ctime_ns, len(leases)
for what, change in changes.items():
    before = look(); time.sleep(0.02)
    try: change()
    except OSError: pass
    if look() != before: print(what)
print("end")
"""
_ALWAYS = {
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "utimensat",
    "futimens",
    "now",
    "lease",
}


def make_file(path: Path) -> Path:
    path.write_text("whole")
    try:
        for number in range(1, 4):
            os.setxattr(path, f"user.kept{number}", b"1")
    except OSError:
        pass  # a file system without them: then no change of them is asked for either
    return path


@pytest.mark.parametrize("kept", [True, False])
def test_a_confined_job_changes_no_file_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """A folder of the user that the box may read, as an interpreter of the user's own is."""
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setattr(embedded, "system_paths", lambda: [*system_paths(), str(outside)])
    # Below a folder that is the user's alone: so root keeps its user id, too.
    tmp_path.chmod(0o700)
    other, target = make_file(tmp_path / "other"), make_file(outside / "target")
    done = subprocess.run(
        [sys.executable, "-I", "-c", _CHANGES, str(other)],
        capture_output=True,
        text=True,
        check=True,
    )
    possible = set(done.stdout.splitlines())
    assert possible >= _ALWAYS, done
    before = target.stat()
    with without(*(() if kept else ("seccomp",)), modes=("confined",)) as sandbox:
        result = sandbox.run(Job(_CHANGES, argv=(str(target),), limits=LIMITS))
    printed = set(result.stdout_text.splitlines())
    assert "end" in printed, result
    after = target.stat()
    if kept:
        assert printed == {"end"}
        assert after == before
    else:
        assert printed == possible
        assert after.st_mode != before.st_mode and after.st_mtime != before.st_mtime


_COPIES = """
import os, shutil, stat, sys, tarfile, tempfile, zipfile
open("a", "w").write("text")
os.chmod("a", 0o640); os.utime("a", (1, 2)); os.chown("a", os.getuid(), os.getgid())
print(shutil.copy("a", "b"), shutil.copy2("a", "c"), open("c").read())
os.mkdir("d"); shutil.move("b", "d/b"); shutil.copytree("d", "e")
with tarfile.open("t.tar.gz", "w:gz") as archive: archive.add("e"); archive.add("a")
with tarfile.open("t.tar.gz") as archive: archive.extractall("out", filter="fully_trusted")
shutil.make_archive("z", "zip", "e"); shutil.unpack_archive("z.zip", "out2")
print(open("out/e/b").read(), open("out2/b").read(), sorted(os.listdir("out")))
with tempfile.NamedTemporaryFile() as file: print(oct(os.stat(file.name).st_mode & 0o777))
with tempfile.TemporaryDirectory() as folder: os.fchmod(os.open(folder, os.O_RDONLY), 0o755)
fd = os.open("program", os.O_CREAT | os.O_WRONLY, 0o700)
os.write(fd, b"#!/bin/sh\\necho run\\n"); os.close(fd); sys.stdout.flush()
os.spawnv(os.P_WAIT, "./program", ["program"])
shutil.rmtree("d")
"""


def test_programs_that_copy_and_unpack_work_at_every_level(each_level: Sandbox) -> None:
    result = each_level.run(Job(_COPIES, limits=LIMITS))
    assert result.verdict is BoxVerdict.OK, result
    shown = "b c text\ntext text ['a', 'e']\n0o600\nrun\n"
    assert result.stdout_text == shown and result.stderr == b""
    # Where there are no sockets: tarfile asks for a user's name, and the C library a daemon.
    assert result.flags in ((), ("blocked:socket",)), result.flags


_SHELL = """
set -e
printf 'echo hi\\n' > a; chmod +x a; cp -p a b; cp -a b c; touch c; touch -d '2001-01-01' new
mkdir -m 755 d; install -m 644 a d/a; mv d e; tar -cf t.tar e; mkdir out; tar -xf t.tar -C out
chown "$(id -u)" a; cat out/e/a; bash a; ln -s a link; rm -r e out
"""


def test_shell_tools_work_at_every_level(each_level: Sandbox) -> None:
    result = each_level.run(Job(_SHELL, runtime="bash", limits=LIMITS))
    assert result.verdict is BoxVerdict.OK, result
    assert result.stdout == b"echo hi\nhi\n" and result.stderr == b""


def test_what_a_confined_program_sees() -> None:
    """What the page says: done without effect, no extended attributes, requests unknown."""
    source = """
import errno, fcntl, os, subprocess, sys
open("a", "w").write("#!/bin/sh\\necho no\\n"); mode = os.stat("a").st_mode
os.chmod("a", 0o755); os.utime("a", (1, 1))
print(os.stat("a").st_mode == mode, os.stat("a").st_mtime > 1)
def told(action):
    try: action(); return "done"
    except OSError as error: return errno.errorcode[error.errno]
print(told(lambda: os.setxattr("a", "user.x", b"")), told(lambda: fcntl.ioctl(os.open("a", 0), 0x40086602, bytes(8))))
print(told(lambda: subprocess.run(["./a"])), told(lambda: fcntl.fcntl(os.open("a", 0), 1024, 0)), sys.stdin.isatty())
"""
    try:
        sandbox = open_sandbox("confined", num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        result = sandbox.run(Job(source, limits=LIMITS))
        assert result.stdout == b"True True\nENOTSUP ENOTTY\nEACCES EPERM False\n", result
        # A compiled program is made executable all the same, whatever the job calls its files.
        main = '#include <stdio.h>\nint main() { puts("run"); }'
        compiled = Job(main, runtime="c", files={"main.bin": b"old" * 9}, limits=LIMITS)
        try:
            ran = sandbox.run(compiled)
        except SandboxError as error:
            pytest.skip(str(error))
        assert ran.stdout == b"run\n", ran


def test_a_level_whose_modes_can_be_changed_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that pretends: the filter is off, and the sandbox believes it is on."""
    kept = tuple(layer for layer in embedded.ALL_LAYERS if layer != "seccomp")
    monkeypatch.setattr(embedded, "ALL_LAYERS", kept)
    with pytest.raises(SandboxError, match=r"does not hold here.*modes|no sandbox of level"):
        embedded.EmbeddedBackend(level=Level.CONFINED, layers=kept)
