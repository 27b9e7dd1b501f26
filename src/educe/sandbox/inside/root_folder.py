"""The root folder of all boxes of a zygote: read-only, system programs and little else."""

# ruff: noqa: PTH101, PTH103, PTH108, PTH110, PTH112, PTH114, PTH115, PTH116, PTH120, PTH123, PTH211
from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from educe.sandbox.inside import kernel

BOX = "/box"
JOB = "/box/job"
WORK = "/box/job/work"


def build_root(config: dict[str, Any]) -> None:
    """Replace the root folder by a read-only one that holds system programs and little else."""
    base = config["root"]
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID, "size=4m,mode=755")
    for path in config["system"]:
        _show(path, base + path)
    for name in ("null", "zero", "full", "random", "urandom"):
        _show_device("/dev/" + name, f"{base}/dev/{name}")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1")):
        os.symlink(target, f"{base}/dev/{name}")
    os.symlink("fd/2", f"{base}/dev/stderr")
    os.symlink(JOB + "/shm", base + "/dev/shm")
    os.makedirs(base + "/etc", exist_ok=True)
    for name, text in config["etc"].items():
        with open(f"{base}/etc/{name}", "w") as file:
            file.write(text)
    os.makedirs(base + JOB)
    # Programs of an environment below /tmp stay where they are; a job's own folder is then
    # TMPDIR's alone.
    if not os.path.lexists(base + "/tmp"):
        os.symlink(JOB + "/tmp", base + "/tmp")
    os.makedirs(base + "/proc")
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", base + "/proc", "proc", flags)
    os.chdir(base)
    kernel.pivot_root(".", ".")
    kernel.umount(".", kernel.MNT_DETACH)
    os.chdir("/")
    remount = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID
    kernel.mount("none", "/", None, remount)


def _show(source: str, target: str) -> None:
    """Make a path of the host visible read-only at the same place."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(target)
    elif os.path.exists(source):
        _bind_file(source, target)
        kernel.make_read_only(target)


def _show_device(source: str, target: str) -> None:
    """Make a device of the host usable: by a node of our own where that may be, which spares each
    box a mount, else by the host's.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.mknod(target, stat.S_IFCHR | 0o666, os.stat(source).st_rdev)
        os.chmod(target, 0o666)
        os.close(os.open(target, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        _bind_file(source, target)
        # Or a job could leave a time stamp on a node of the host, for others to see.
        kernel.make_read_only(target, with_devices=True)


def _bind_file(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w"):
        pass
    kernel.mount(source, target, None, kernel.MS_BIND)
