"""What of this host a box may see, and what its zygotes are told at the start."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

from educe.sandbox.contract import RUNTIMES, JobError, SandboxError
from educe.sandbox.launch import interpreter
from educe.sandbox.payload import (
    base_environment,
    import_paths,
    library_folders,
    preload_name,
    preloads,
)

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/openssl.cnf")
ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nbox:x:1000:1000:box:/box/job/work:/bin/sh\n",
    "group": "root:x:0:\nbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


# What a runtime is executed by. Without it a program would end like one that does not compile, and
# that would be the program's fault.
_PROGRAMS = {"bash": "bash", "c": "cc", "c++": "c++", "node": "node"}
_seen: set[str] = set()  # runtimes that were found; one that is missing may be installed any time


def require_runtime(runtime: str) -> None:
    """Make sure that this host has what a runtime needs, where a box can see it.

    Raises:
        SandboxError: naming what is missing.
    """
    if runtime in _seen:
        return
    try:
        import_paths(runtime)
    except JobError as error:
        raise SandboxError(str(error)) from None
    if runtime in _PROGRAMS:
        program_of(runtime)
    _seen.add(runtime)


def program_of(runtime: str) -> Path:
    """Return the real path of the program that executes (or compiles for) a runtime.

    Raises:
        SandboxError: it is not installed, or lies where no box can read it.
    """
    name, places = _PROGRAMS[runtime], base_environment("/")["PATH"]
    found = shutil.which(name, path=places)
    if found is None:
        raise SandboxError(
            f"runtime {runtime!r} needs the program {name!r}, which is in none of {places}"
        )
    real = Path(found).resolve()
    if not any(real.is_relative_to(path) for path in system_paths()):
        raise SandboxError(
            f"runtime {runtime!r}: {found} leads to {real}, which a box cannot see; install "
            f"{name!r} below /usr"
        )
    return real


def missing_runtimes() -> dict[str, str]:
    """Return why, for each runtime that this host cannot run."""
    missing = {}
    for runtime in RUNTIMES:
        try:
            require_runtime(runtime)
        except SandboxError as error:
            missing[runtime] = str(error)
    return missing


def system_paths() -> list[str]:
    """Return what a box may read: system programs and the interpreter, nothing of a user."""
    paths = [
        path
        for path in (*_SYSTEM, *_SYSTEM_FILES)
        if Path(path).is_symlink() or Path(path).exists()
    ]
    for prefix in (sys.base_prefix, sys.base_exec_prefix, str(Path(interpreter()).parent.parent)):
        real = str(Path(prefix).resolve())
        if real != "/" and not any(real == p or real.startswith(p + "/") for p in paths):
            paths.append(real)
    return paths


def is_open_to_all(paths: list[str]) -> bool:
    """Return whether any user may enter the folders above these paths."""
    parents = {parent for path in paths for parent in Path(path).resolve().parents}
    return all(parent.stat().st_mode & 0o001 for parent in parents)


def mount_point() -> str:
    """Return an existing folder, outside all we show, that a zygote builds its root over."""
    paths = system_paths()
    for folder in ("/mnt", "/media", "/srv", "/run", "/tmp", "/var"):
        if Path(folder).is_dir() and not any(
            p == folder or p.startswith(folder + "/") for p in paths
        ):
            return folder
    raise SandboxError(
        "no folder to build a box's root over (tried /mnt, /media, /srv, /run, /tmp)"
    )


def runtimes() -> dict[str, dict[str, Any]]:
    """Return preload name to what its zygote imports and must see."""
    runtimes: dict[str, dict[str, Any]] = {"": {"import_paths": [], "preload": [], "readable": []}}
    for runtime in RUNTIMES:
        if preload_name(runtime):
            with contextlib.suppress(JobError):
                runtimes[preload_name(runtime)] = {
                    "import_paths": import_paths(runtime),
                    "preload": preloads(runtime),
                    "readable": library_folders(runtime),
                }
    return runtimes


def temporary_folder() -> str:
    """Return a box's folder for temporary files: /tmp, unless libraries lie below that."""
    shown = [*system_paths(), *(p for r in runtimes().values() for p in r["readable"])]
    return "/box/job/tmp" if any(path.startswith("/tmp/") for path in shown) else "/tmp"
