"""Run a Python program as an ordinary user (from a test that runs as root).

The interpreter may live in a folder that only root may enter, so the program gets a mount namespace
of its own in which the folders above it are open. Usage: ``unprivileged.py UID PROGRAM [ARGS]``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def open_the_way(path: Path) -> None:
    """Make a path reachable for everyone, in this mount namespace only."""
    from educe.sandbox.inside import kernel

    for parent in reversed(path.parents):
        if parent.stat().st_mode & 0o005 != 0o005:
            held = os.open(path, os.O_PATH | os.O_DIRECTORY)
            kernel.mount("tmpfs", str(parent), "tmpfs", 0, "mode=755")
            path.mkdir(parents=True)
            kernel.mount(f"/proc/self/fd/{held}", str(path), None, kernel.MS_BIND | kernel.MS_REC)
            os.close(held)
            return


def main() -> None:
    from educe.sandbox.inside import kernel

    uid, program, *arguments = sys.argv[1:]
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    for path in (Path(sys.base_prefix).resolve(), Path(sys.prefix), Path(__file__).parents[2]):
        open_the_way(path)
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    os.environ.update(HOME="/tmp", PYTHONDONTWRITEBYTECODE="1")
    os.execv(sys.executable, [sys.executable, program, *arguments])


if __name__ == "__main__":
    main()
