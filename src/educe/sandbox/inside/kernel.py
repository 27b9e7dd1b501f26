"""System calls that Python has no name for, through ctypes. Linux on x86-64 and arm64.

Everything here is thin: one function a call, errors as ``OSError``. The interpreter must be
single-threaded where it forks.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import signal
import struct

CLONE_VM = 0x100
CLONE_PIDFD = 0x1000
CLONE_VFORK = 0x4000
CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
WALL = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, PR_SET_THP_DISABLE = 47, 4, 41
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_RECURSIVE = 0x8000
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8

PROMPT_NICENESS, _PROMPT_SLICE_NS = -15, 100_000

# Arguments of capset: version 3 of the header for this process, and empty sets.
NO_CAPABILITIES = (struct.pack("<Ii", 0x20080522, 0), bytes(24))

MACHINE = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine, -1)
# name: (x86-64, arm64); None where the architecture never had it.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "write": (1, 64),
    "sendto": (44, 206),
    "recvmsg": (47, 212),
    "wait4": (61, 260),
    "ioctl": (16, 29),
    "setns": (308, 268),
    "close": (3, 57),
    "sendmsg": (46, 211),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "clone": (56, 220),
    "chdir": (80, 49),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "sched_setattr": (314, 274),
    "prctl": (157, 167),
    "mount": (165, 40),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "unshare": (272, 97),
    "dup3": (292, 24),
    "prlimit64": (302, 261),
    "capset": (126, 91),
    "seccomp": (317, 277),
    "pivot_root": (155, 41),
    "pidfd_send_signal": (424, 424),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}

_CLONE = NUMBERS["clone"][MACHINE] if MACHINE >= 0 else None
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
# A system call of plain numbers, its own first and six arguments: what touches least memory.
# The interpreter lock is kept, as forking must; so only for processes with one thread.
raw_call = ctypes.PyDLL(None).syscall
raw_call.restype = ctypes.c_long
raw_call.argtypes = [ctypes.c_long] * 7


def number(name: str) -> int:
    """Return a system call's number on this machine.

    Raises:
        OSError: ENOSYS on an architecture this file does not know.
    """
    value = NUMBERS[name][MACHINE] if MACHINE >= 0 else None
    if value is None:
        raise OSError(38, f"no system call {name} on {os.uname().machine}")
    return value


def check(result: int, what: str) -> int:
    """Return a libc result, or raise the OSError of ``errno``."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def call(name: str, *arguments: object) -> int:
    """Make a system call with integers and buffers as arguments."""
    ready = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(int(_syscall(ctypes.c_long(number(name)), *ready)), name)


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    check(
        _libc.mount(
            source.encode(),
            target.encode(),
            None if kind is None else kind.encode(),
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
        f"mount {kind or 'bind'} on {target}",
    )


def umount(target: str, flags: int = 0) -> None:
    check(_libc.umount2(target.encode(), flags), f"umount {target}")


def make_read_only(target: str, *, with_devices: bool = False) -> None:
    """Make a mount and all below it read-only, without set-user-id programs.

    ``with_devices``: what devices lead to stays writable, and only their inodes do not.
    """
    flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if with_devices else MOUNT_ATTR_NODEV)
    attributes = struct.pack("<QQQQ", flags, 0, 0, 0)
    call("mount_setattr", -100, target.encode() + b"\0", AT_RECURSIVE, attributes, len(attributes))


def pivot_root(new: str, old: str) -> None:
    call("pivot_root", new.encode() + b"\0", old.encode() + b"\0")


def prctl(option: int, *arguments: int) -> int:
    ready = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return check(_libc.prctl(option, *ready), f"prctl {option}")


def schedule_attributes(niceness: int, slice_ns: int = 0) -> bytes:
    """Return ``struct sched_attr`` of an ordinary process; a slice of 0 is the kernel's own."""
    return struct.pack("<IIQiIQQQ", 48, 0, 0, niceness, 0, slice_ns, 0, 0)


def be_prompt(niceness: int) -> bool:
    """Let this process run as soon as it can, however many others want to.

    A privileged one gets a priority that hardly waits. Everyone may ask for short slices (Linux
    6.12): an ordinary process with one goes before others whose time is not used up.

    Returns:
        Whether the kernel knows the call, with which a child becomes ordinary again.
    """
    for wanted, slice_ns in (
        (min(niceness, PROMPT_NICENESS), _PROMPT_SLICE_NS),
        (niceness, _PROMPT_SLICE_NS),
        (niceness, 0),
    ):
        try:
            call("sched_setattr", 0, schedule_attributes(wanted, slice_ns), 0)
            return True
        except OSError:
            continue  # not ours to have; what there is does, a little later
    return False


def fix_addresses() -> None:
    """Lay out memory the same way in every process that this one execs."""
    _libc.personality(ctypes.c_ulong(0x0040000))  # ADDR_NO_RANDOMIZE


def drop_bounding_set() -> None:
    """Take away every capability that an exec could ever give back."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets of this process."""
    call("capset", *NO_CAPABILITIES)


def close_from(first: int) -> None:
    call("close_range", first, 0x7FFFFFFF, 0)


def send_signal(pidfd: int, signal_number: int) -> bool:
    """Signal the process behind a pidfd; False when it is already gone."""
    return (
        int(_syscall(ctypes.c_long(number("pidfd_send_signal")), pidfd, signal_number, None, 0))
        == 0
    )


def open_beneath(folder_fd: int, path: str, flags: int) -> int:
    """Open a path below a folder, through no link, no mount and no ``..``."""
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return call("openat2", folder_fd, path.encode() + b"\0", how, len(how))


class LaidOutFork:
    """Forks into new namespaces, with everything that the call needs in place beforehand.

    With ``exit_signal`` 0 the child is waited for with ``WALL``. Only for a single-threaded
    interpreter: the interpreter's own after-fork work is left out on purpose. It re-creates locks
    that no second thread can hold and runs hooks of ``threading`` and ``random``, which touch some
    150 pages, a third of what a box costs; the runner seeds ``random`` itself.
    """

    def __init__(self, flags: int, exit_signal: int = 0) -> None:
        self._pidfd = ctypes.c_int(-1)
        place = ctypes.addressof(self._pidfd)
        arguments = struct.pack("<8Q", flags | CLONE_PIDFD, place, 0, 0, exit_signal, 0, 0, 0)
        self._arguments = ctypes.create_string_buffer(arguments, len(arguments))
        self._address, self._length = ctypes.addressof(self._arguments), len(arguments)
        self._number = number("clone3")

    def __call__(self) -> tuple[int, int]:
        """Return (pid, pidfd), (0, -1) in the child."""
        pid: int = raw_call(self._number, self._address, self._length, 0, 0, 0, 0)
        if pid < 0:
            code = errno_place().value
            raise OSError(code, f"clone3: {os.strerror(code)}")
        return pid, self._pidfd.value if pid else -1


def fork(flags: int, exit_signal: int = 0) -> tuple[int, int]:
    """Fork into new namespaces as :class:`LaidOutFork` does; return (pid, pidfd)."""
    return LaidOutFork(flags, exit_signal)()


@functools.cache
def errno_place() -> ctypes.c_int:
    """Return the place where the C library leaves this thread's last error."""
    locate = ctypes.PyDLL(None)["__errno_location"]
    locate.restype = ctypes.c_void_p
    return ctypes.c_int.from_address(locate())


def fork_bare() -> int:
    """Fork as ``os.fork`` does, without the interpreter's after-fork work (see
    :class:`LaidOutFork`).

    Also where a filter refuses ``clone3``. Only for an interpreter with a single thread.
    """
    pid: int = raw_call(_CLONE, signal.SIGCHLD, 0, 0, 0, 0, 0)
    if pid < 0:
        code = errno_place().value
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid


class IdleProcesses:
    """Processes that only sleep in ``pause`` and share this process's memory.

    One is the first process of each job's pid namespace: killing it ends everything in there, and
    it costs no page table. It runs no instruction of ours but ``pause`` in the C library, on a
    stack of its own; signals from inside its namespace cannot reach it.
    """

    STACK_BYTES = 16384

    def __init__(self, flags: int = 0) -> None:
        self._free: list[tuple[mmap.mmap, int]] = []
        self._pause = ctypes.cast(_libc.pause, ctypes.c_void_p).value
        self._clone = ctypes.PyDLL(None)["clone"]
        self._clone.restype = ctypes.c_int
        word = ctypes.c_void_p
        self._clone.argtypes = [word, word, ctypes.c_int, word, word]
        self._flags = flags | CLONE_VM | CLONE_PIDFD
        self._pidfd = ctypes.c_int(-1)
        self._pidfd_place = ctypes.addressof(self._pidfd)

    def start(self) -> tuple[int, int, tuple[mmap.mmap, int]]:
        """Return (pid, pidfd, its stack); wait with ``WALL``, then give the stack back."""
        stack = self._free.pop() if self._free else self._make_stack()
        pid = self._clone(self._pause, stack[1], self._flags, None, self._pidfd_place)
        if pid < 0:
            self._free.append(stack)
            code = errno_place().value
            raise OSError(code, f"clone of an idle process: {os.strerror(code)}")
        return pid, self._pidfd.value, stack

    def _make_stack(self) -> tuple[mmap.mmap, int]:
        stack = mmap.mmap(-1, self.STACK_BYTES)
        top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + self.STACK_BYTES - 64
        return stack, top & ~15

    def give_back(self, stack: tuple[mmap.mmap, int]) -> None:
        self._free.append(stack)
