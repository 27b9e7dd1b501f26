"""Who hears of the calls that a box's filter refuses: the supervisor, which answers each.

The kernel lets a filter hand a call to a listener, which says what the caller gets. The answer is
the same error as the filter's own; what is gained is the name of what was tried. After a few the
listener is closed: from then on the kernel itself answers that there is no such call.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct

from educe.sandbox.inside import kernel, seccomp

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_MESSAGE, _REPLY = struct.Struct("<QIIi"), struct.Struct("<QqiI")
_MESSAGE_BYTES = 80
MAX_TOLD = 64
_NAMES = seccomp.names_of_told() if kernel.MACHINE >= 0 else {}


def look(listener: int) -> int:
    """Return what is there: ``POLLIN`` for a refused call, ``POLLHUP`` when nobody is left.

    To be asked before :func:`answer`, which waits where there is nothing.
    """
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    found = poller.poll(0)
    return found[0][1] if found else 0


def answer(listener: int) -> str:
    """Take one refused call, answer it with its error and return its name.

    Raises:
        OSError: when nobody waits for an answer (any more).
    """
    raw = fcntl.ioctl(listener, _RECEIVE, bytes(_MESSAGE_BYTES))
    number, _, _, call = _MESSAGE.unpack_from(raw)
    name, error = _NAMES.get(call, (f"call {call}", 1))
    fcntl.ioctl(listener, _SEND, _REPLY.pack(number, 0, -error, 0))
    return name


def can_tell() -> bool:
    """Return whether this kernel lets a filter of ours have a listener (Linux 5.0; an outer filter
    may have one already). Tried out in a child.
    """
    pid, pidfd = kernel.fork(0)
    if pid == 0:
        status = 1
        try:
            program = seccomp.build_filter(has_cgroup=False, has_namespaces=True, tells=True)
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            seccomp.Filter(program, tells=True).install()
            status = 0
        finally:
            os._exit(status)
    os.close(pidfd)
    return os.waitpid(pid, kernel.WALL)[1] == 0
