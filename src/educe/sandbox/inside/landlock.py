"""Landlock: which files a box may read and write, no TCP, no signals or sockets to outside.

One rule set is made per zygote and used by all of its boxes: a rule on a folder covers whatever is
mounted below it later, so a box only has to enter it.
"""

from __future__ import annotations

import os
import stat
import struct

from educe.sandbox.inside import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FS_BITS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_TCP = 3  # bind and connect
_SCOPES = 3  # abstract sockets and signals
READ = _EXECUTE | _READ_FILE | _READ_DIR


def abi_version() -> int:
    """Return the kernel's Landlock version, 0 where there is none."""
    try:
        return kernel.call("landlock_create_ruleset", 0, 0, 1)
    except OSError:
        return 0


def make_ruleset(version: int, readable: list[str], writable: list[str], *, allow_tcp: bool) -> int:
    """Return a descriptor of a rule set: reading below some paths, everything below others."""
    handled = (1 << _FS_BITS_BY_ABI[min(version, 5)]) - 1
    attributes = struct.pack(
        "<QQQ",
        handled,
        0 if allow_tcp or version < 4 else _TCP,
        _SCOPES if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = kernel.call("landlock_create_ruleset", attributes[:size], size, 0)
    for path in readable:
        _add(ruleset, path, READ & handled)
    for path in writable:
        _add(ruleset, path, handled)
    return ruleset


def _add(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _EXECUTE | _WRITE_FILE | _READ_FILE
        kernel.call("landlock_add_rule", ruleset, 1, struct.pack("<Qi", access, fd), 0)
    finally:
        os.close(fd)


def restrict(ruleset: int) -> None:
    """Enter a rule set for good; needs ``no_new_privs``."""
    kernel.call("landlock_restrict_self", ruleset, 0)
