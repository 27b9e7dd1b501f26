"""A seccomp filter, assembled by hand.

A deny list, because programs need most of what a kernel has; whatever is newer than this file is
unknown to it and answered ENOSYS. Foreign system-call tables kill the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from educe.sandbox.inside import kernel
from educe.sandbox.inside.steps import Steps

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_ABOVE, _JUMP_BITS, _RETURN = (
    0x20,
    0x15,
    0x25,
    0x35,
    0x45,
    0x06,
)
_ALLOW, _ERRNO, _KILL, _TELL = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
_EPERM = _ERRNO | errno.EPERM
_ARCHITECTURES = (0xC000003E, 0xC00000B7)
_NEWEST_KNOWN = 462  # mseal, Linux 6.10
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_AF_ALLOWED = (1, 2, 10)  # unix, inet, inet6: an empty network namespace is behind them
# New namespaces, and CLONE_PARENT: a child beside its parent would be the zygote's.
_REFUSED_FLAGS = 0x7E020080 | 0x8000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FIRST_PLAIN_IOCTL, _LAST_PLAIN_IOCTL = 0x5400, 0x54FF  # of terminals, pipes and descriptors
_F_SETLEASE, _F_SETDELEG = 1024, 1040

Instruction = tuple[int, int, int, int]
Number = tuple[int | None, int | None]
DENIED: dict[str, Number] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Contexts that are counted for the whole machine.
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
}
# Done without being done: nothing of a box is worth a disk's time, which is the host's, and what
# these wait for is not in the box.
IDLE: dict[str, Number] = {
    "sync": (162, 81),
    "syncfs": (306, 267),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sync_file_range": (277, 84),
}
# How a box is scheduled is its keeper's business: a process that stepped back would be late by its
# own doing, and take long to die.
SCHEDULING: dict[str, Number] = {
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
# Where other processes of the same user are outside the box: for oneself only (pid 0).
OF_OTHERS: dict[str, Number] = {"prlimit64": (302, 261), "sched_setaffinity": (203, 122)}
# Without mounts of its own a box has the host's files before it, and Landlock looks at what is
# opened only: mode, owner and times are for whoever has a file's user id. Said to be done without
# being done, because what copies and unpacks files (cp, tar, shutil) ends where it is refused.
ATTRIBUTES: dict[str, Number] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
# Answered as by a file system that has none, which such programs are used to. (What sets these
# and a file's flags by newer calls, from Linux 6.13 on, is not known here: ENOSYS.)
EXTENDED_ATTRIBUTES: dict[str, Number] = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
# Memory that no cgroup of ours counts and no tmpfs limit bounds.
UNCOUNTED: dict[str, Number] = {"memfd_create": (319, 279)}
# Without a pid namespace the process group is what gets killed, so nothing may leave it.
GROUP_ESCAPES: dict[str, Number] = {"setsid": (112, 157), "setpgid": (109, 154)}
# Where Landlock cannot keep signals inside (before its version 6).
SIGNALS: dict[str, Number] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_CLONE, _CLONE3, _SOCKET, _IOCTL, _PERSONALITY = (
    (56, 220),
    (435, 435),
    (41, 198),
    (16, 29),
    (135, 92),
)
_FCNTL = (72, 25)
# Refused without a word: runtimes try these by themselves and do without.
_QUIET = ("io_uring_setup", "io_uring_enter", "io_uring_register", "mbind", "set_mempolicy")


def build_filter(
    *,
    has_cgroup: bool,
    has_namespaces: bool,
    keeps_signals: bool = True,
    tells: bool = False,
    machine: int = kernel.MACHINE,
) -> bytes:
    """Return the filter program as packed ``sock_filter`` instructions.

    Args:
        has_cgroup: whether the kernel counts the job's memory.
        has_namespaces: whether processes, networks and mounts are the job's own; without them
            sockets and new process groups are refused as well, and attributes of files stay as
            they are.
        keeps_signals: whether something else keeps the job's signals inside.
        tells: whether somebody answers refused calls, and so hears of them (see ``refusals``).
        machine: 0 for x86-64, 1 for arm64.
    """
    denied = DENIED | SCHEDULING
    if not has_cgroup:
        denied |= UNCOUNTED
    if not has_namespaces:
        denied |= GROUP_ESCAPES
        if not keeps_signals:
            denied |= SIGNALS
    told = (_RETURN, 0, 0, _TELL)
    refuse = told if tells else (_RETURN, 0, 0, _EPERM)
    bodies: dict[int, list[Instruction]] = {}
    for name, pair in denied.items():
        call = pair[machine]
        if call is not None:
            is_quiet = name in _QUIET or name not in DENIED
            bodies[call] = [(_RETURN, 0, 0, _EPERM) if is_quiet else refuse]
    bodies |= {n: [(_RETURN, 0, 0, _ERRNO)] for n in _numbers(IDLE, machine)}
    if not has_namespaces:
        yourself = [(_JUMP_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _EPERM)]
        bodies |= {n: _argument(0, yourself) for n in _numbers(OF_OTHERS, machine)}
        bodies |= _keep_attributes(machine)
    # EPERM would make the C library give up on threads; ENOSYS makes it use clone.
    bodies[_CLONE3[machine]] = [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    bodies[_CLONE[machine]] = _argument(0, [(_JUMP_BITS, 0, 1, _REFUSED_FLAGS), refuse])
    families = _AF_ALLOWED if has_namespaces else ()
    checks = [(_JUMP_EQUAL, len(families) - i, 0, family) for i, family in enumerate(families)]
    checks.append(told if tells else (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT))
    bodies[_SOCKET[machine]] = _argument(0, checks)
    if has_namespaces:
        terminal = [(_JUMP_EQUAL, 1, 0, _TIOCSTI), (_JUMP_EQUAL, 0, 1, _TIOCLINUX), refuse]
    else:
        terminal = _only_plain_ioctls(refuse)
    bodies[_IOCTL[machine]] = _argument(1, terminal)
    bodies[_PERSONALITY[machine]] = _argument(0, [(_JUMP_EQUAL, 1, 0, 0xFFFFFFFF), refuse])
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == 0:
        # The x32 table hides the same calls behind other numbers.
        code += [(_JUMP_ABOVE, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    code += [(_JUMP_GREATER, 0, 1, _NEWEST_KNOWN), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _search(bodies)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _keep_attributes(machine: int) -> dict[int, list[Instruction]]:
    """Return what is done where files of the job's user are within its reach: nothing to them."""
    nothing, absent = (_RETURN, 0, 0, _ERRNO), (_RETURN, 0, 0, _ERRNO | errno.EOPNOTSUPP)
    bodies = {n: [nothing] for n in _numbers(ATTRIBUTES, machine)}
    bodies |= {n: [absent] for n in _numbers(EXTENDED_ATTRIBUTES, machine)}
    # A lease on a file keeps others waiting who open it.
    leases = [(_JUMP_EQUAL, 1, 0, _F_SETLEASE), (_JUMP_EQUAL, 0, 1, _F_SETDELEG)]
    bodies[_FCNTL[machine]] = _argument(1, [*leases, (_RETURN, 0, 0, _EPERM)])
    return bodies


def _only_plain_ioctls(refuse: Instruction) -> list[Instruction]:
    """Return a body that lets descriptors be asked what terminals, pipes and sockets are.

    Everything else is answered as by a file that does not know it: a file system's own requests
    (flags, verity, snapshots) work through a descriptor that was opened for reading.
    """
    return [
        (_JUMP_EQUAL, 3, 0, _TIOCSTI),
        (_JUMP_EQUAL, 2, 0, _TIOCLINUX),
        (_JUMP_ABOVE, 0, 2, _FIRST_PLAIN_IOCTL),
        (_JUMP_GREATER, 1, 2, _LAST_PLAIN_IOCTL),
        refuse,
        (_RETURN, 0, 0, _ERRNO | errno.ENOTTY),
    ]


def _numbers(calls: dict[str, Number], machine: int) -> list[int]:
    return [number for pair in calls.values() if (number := pair[machine]) is not None]


def _argument(position: int, body: list[Instruction]) -> list[Instruction]:
    """Return: load the low half of an argument, run the body, allow when it falls through."""
    return [(_LOAD, 0, 0, 16 + 8 * position), *body, (_RETURN, 0, 0, _ALLOW)]


_Body = tuple[Instruction, ...]


def _search(bodies: dict[int, list[Instruction]]) -> list[Instruction]:
    """Return a binary search for the number's interval, among runs of calls that are decided alike.

    The kernel translates the filter for each box and walks it once for every system call there is:
    what a box pays for is its length, and the length of its paths. So a decision stands behind the
    search once, whatever leads to it.
    """
    allow: _Body = ((_RETURN, 0, 0, _ALLOW),)
    runs: list[tuple[int, _Body]] = []  # (first number, what is done from there on)
    for call in range(_NEWEST_KNOWN + 1):
        body = tuple(bodies.get(call, allow))
        if not runs or runs[-1][1] != body:
            runs.append((call, body))
    tree: list[tuple[int, int, int | _Body, int | _Body]] = []
    _grow(runs, tree)
    places: dict[_Body, int] = {}
    behind: list[Instruction] = []
    for _, _, *targets in tree:
        for target in targets:
            if not isinstance(target, int) and target not in places:
                places[target] = len(tree) + len(behind)
                behind += target
    code = []
    for at, (operation, value, *targets) in enumerate(tree):
        # Offsets count from the next instruction, and all are below what one byte holds.
        yes, no = ((t if isinstance(t, int) else places[t]) - at - 1 for t in targets)
        code.append((operation, yes, no, value))
    return code + behind


def _grow(
    runs: list[tuple[int, _Body]], tree: list[tuple[int, int, int | _Body, int | _Body]]
) -> int | _Body:
    """Append a search among runs; return its place, or what is done where there is but one."""
    if len(runs) == 1:
        return runs[0][1]
    place = len(tree)
    tree.append((0, 0, (), ()))
    if len(runs) == 3 and runs[0][1] == runs[2][1] and runs[2][0] == runs[1][0] + 1:
        tree[place] = (_JUMP_EQUAL, runs[1][0], runs[1][1], runs[0][1])
        return place
    half = (runs[0][0] + runs[-1][0]) / 2  # as many calls on either side, not as many runs
    middle = min(range(1, len(runs)), key=lambda at: abs(runs[at][0] - half))
    low, high = _grow(runs[:middle], tree), _grow(runs[middle:], tree)
    tree[place] = (_JUMP_ABOVE, runs[middle][0], high, low)
    return place


def names_of_told(machine: int = kernel.MACHINE) -> dict[int, tuple[str, int]]:
    """Return a refused call's number to its name and the error it is answered with."""
    names = {pair[machine]: (name, errno.EPERM) for name, pair in DENIED.items()}
    for name, pair in (("clone", _CLONE), ("ioctl", _IOCTL), ("personality", _PERSONALITY)):
        names[pair[machine]] = (name, errno.EPERM)
    names[_SOCKET[machine]] = ("socket", errno.EAFNOSUPPORT)
    return {number: told for number, told in names.items() if number is not None}


class Filter:
    """A program ready to be installed: everything is laid out before the fork.

    With ``tells`` installing it gives a descriptor, on which refused calls are told and answered.
    """

    def __init__(self, program: bytes, *, tells: bool = False) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        address = ctypes.addressof(self._buffer)
        self._header = struct.pack("<HxxxxxxQ", len(program) // 8, address)
        self.tells = tells
        self._flags = _NEW_LISTENER if tells else 0

    def install(self) -> int:
        """Install it for this process and all it starts; needs ``no_new_privs``."""
        return kernel.call("seccomp", _SET_MODE_FILTER, self._flags, self._header)

    def add_to(self, steps: Steps) -> None:
        """Let a list of system calls install it."""
        steps.add("seccomp", _SET_MODE_FILTER, self._flags, self._header)
