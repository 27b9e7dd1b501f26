"""Removes what a job left in a folder on the host's own disk."""

# ruff: noqa: PTH106
from __future__ import annotations

import contextlib
import os

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove a folder and all below it: however deep, whatever its modes, through no link.

    The library's own way recurses, so a thousand folders in each other end its caller, and stops at
    a folder that its owner may not enter. What cannot be removed stays; nothing is raised.
    """
    with contextlib.suppress(OSError):
        fd = _enter(path, None)
        fd = _empty(fd)
        os.close(fd)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _empty(fd: int) -> int:
    """Remove all below an open folder; return it, opened anew on the way back up."""
    left, names = [_unlink_files(fd)], [""]
    while left:
        if left[-1]:
            name = left[-1].pop()
            with contextlib.suppress(OSError):
                below = _enter(name, fd)
                os.close(fd)
                fd = below
                left.append(_unlink_files(fd))
                names.append(name)
            continue
        left.pop()
        name = names.pop()
        if left:
            above = os.open("..", _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = above
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=fd)
    return fd


def _enter(name: str, above: int | None) -> int:
    """Open a folder, made readable where it is not."""
    try:
        fd = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=above)
        fd = os.open(name, _FOLDER, dir_fd=above)
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o700)
    return fd


def _unlink_files(fd: int) -> list[str]:
    """Remove what is no folder from an open one; return the names of the folders in it."""
    folders = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=fd)
    return folders
