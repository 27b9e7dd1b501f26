# ruff: noqa: E501
"""Programs by somebody who did not write the sandbox: odd routes to the machine's resources.

Each is of a kind that the other rows do not have. ``test_sandbox_strangers.py`` holds a control for
every one of them.
"""

from __future__ import annotations

from hostile.row import BOXED, COUNTED, FAST, SLEEPY, TRY, Limits, Row

# Room for what the processes themselves need, so that only what they hide breaks the limit.
_ROOMY = Limits(cpu_s=8.0, wall_s=120.0, memory_mb=160, disk_mb=8, num_inodes=256, num_processes=24)

STRANGERS = [
    # ---- processes, signals, time ----
    Row(
        "children of its parent",
        TRY
        + """
for _ in range(3):
    pid = libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)   # CLONE_PARENT: the zygote would have to wait
    if pid == 0: os._exit(0)
    print("clone", "ALLOWED" if pid > 0 else "refused")
""",
        "OK",
        prints="clone refused",
        never="ALLOWED",
    ),
    Row(
        "every signal at the first process",
        """
import ctypes, os
libc = ctypes.CDLL(None)
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
    libc.syscall(234, 1, 1, number); libc.syscall(129, 1, number, bytes(128))
print("still here")
""",
        "OK",
        prints="still here",
        levels=BOXED,
    ),
    Row(
        "stops itself",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('ENDED')",
        "TLE_WALL",
        limits=SLEEPY,
    ),
    Row(
        "stops its whole group and its parent",
        """
import os, signal
if os.fork() == 0:
    for target in (os.getppid(), 0):
        try: os.kill(target, signal.SIGSTOP)
        except OSError: pass
os.wait()
print('ENDED')
""",
        "TLE_WALL",
        limits=SLEEPY,
    ),
    Row(
        "is polite to be excused",
        """
import os
for step_back in (lambda: os.nice(19), lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))):
    try: step_back()
    except OSError: pass
while True: pass
""",
        "TLE_CPU|TLE_WALL",
        limits=Limits(cpu_s=0.4, wall_s=3.0, memory_mb=64, disk_mb=8, num_inodes=256),
    ),
    Row(
        "hides its processor time behind a name",
        """
import ctypes, os
libc = ctypes.CDLL(None)
for name in (b") R 0 0 0 0", b"x) S 1 (y", b"\\n\\n0 0 0"):
    if os.fork() == 0:
        libc.prctl(15, name, 0, 0, 0)
        while True: pass
for _ in range(3): os.wait()
""",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row(
        "hops from process to process",
        """
import os
if os.fork() == 0:
    while True:
        if os.fork(): os._exit(0)
print("left")
""",
        "OK",
        prints="left",
    ),
    Row(
        "adopts what it leaves behind",
        """
import ctypes, os, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)   # PR_SET_CHILD_SUBREAPER
if os.fork() == 0:
    if os.fork() == 0:
        if os.fork() == 0: time.sleep(300)
        time.sleep(300)
    os._exit(0)
print("left")
""",
        "OK",
        prints="left",
        flag="killed_descendants",
        levels=BOXED,
    ),
    Row(
        "spawns without end",
        """
import os
while True: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
""",
        "TLE_CPU|TLE_WALL|RE",
        limits=FAST,
    ),
    Row(
        "a filter that lets nobody end",
        """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = b"".join(struct.pack("<HBBI", *i) for i in (
    (0x20, 0, 0, 0), (0x15, 1, 0, 60), (0x15, 0, 1, 231), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)))
kept = ctypes.create_string_buffer(code)
print("filter", libc.syscall(317, 1, 0, struct.pack("<HxxxxxxQ", 5, ctypes.addressof(kept))), flush=True)
""",
        "RE|TLE_CPU|TLE_WALL|PROTO",
        prints="filter 0",
        limits=FAST,
    ),
    # ---- memory by other names ----
    Row(
        "shared memory of many children",
        """
import mmap, os, time
for _ in range(6):
    if os.fork() == 0:
        part = mmap.mmap(-1, 60 << 20)
        for page in range(0, 60 << 20, 4096): part[page] = 1
        time.sleep(2); os._exit(0)
statuses = [os.wait()[1] for _ in range(6)]
print("ALL HELD" if not any(statuses) else "some died")
""",
        "MLE|OK",
        never="ALL HELD",
        limits=_ROOMY,
        levels=BOXED,
    ),
    Row(
        "memory of threads whose leader is gone",
        """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
reader, writer = os.pipe()
def hold():
    kept = bytearray(b"x") * (60 << 20)
    time.sleep(2); os.write(writer, b"H"); os._exit(0)
for _ in range(6):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        libc.syscall(60, 0)   # only this thread ends
for _ in range(6): os.wait()
os.close(writer)
print("ALL HELD" if len(os.read(reader, 10)) == 6 else "some died")
""",
        "MLE|OK",
        never="ALL HELD",
        limits=_ROOMY,
        levels=BOXED,
    ),
    Row(
        "memory in sockets",
        """
import os, socket, time
for _ in range(7):
    if os.fork() == 0: break
kept, total = [], 0
try:
    while True:
        kept += (pair := socket.socketpair())
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22); end.setblocking(False)
            try:
                while True: total += end.send(bytes(1 << 15))
            except BlockingIOError: pass
except OSError: pass
time.sleep(1); print("HELD", total >> 20)
while True:
    try: os.wait()
    except OSError: break
""",
        "MLE|RE|OK",
        never="HELD 2",  # MiB in one of eight processes: 20 or more is beyond the limit
        limits=Limits(
            cpu_s=20, wall_s=120, memory_mb=64, disk_mb=8, num_inodes=256, num_processes=24
        ),
        levels=COUNTED,
    ),
    Row(
        "memory in pipes",
        """
import fcntl, os
total = 0
try:
    while True:
        r, w = os.pipe(); os.set_blocking(w, False)
        try: fcntl.fcntl(w, 1031, 1 << 20)
        except OSError: pass
        try:
            while True: total += os.write(w, bytes(1 << 16))
        except BlockingIOError: pass
except OSError as error: print("errno", error.errno)
print("OVER" if total > 100 << 20 else "bounded")
""",
        "OK|MLE",
        never="OVER",
    ),
    Row(
        "descriptors sent inside themselves",
        """
import array, socket
sent = 0
try:
    for _ in range(200):
        a, b = socket.socketpair()
        both = array.array("i", [a.fileno(), b.fileno()])
        for end in (a, b):
            end.sendmsg([b"x" * 50000], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, both)])
        a.close(); b.close(); sent += 1
except OSError as error: print("errno", error.errno)
print("sent", sent < 200)
""",
        "OK",
        prints="sent True",
    ),
    Row(
        "locked memory",
        """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
part = mmap.mmap(-1, 4 << 20)
place = ctypes.addressof(ctypes.c_char.from_buffer(part))
for name, done in (("mlock", libc.mlock(ctypes.c_void_p(place), 4 << 20)), ("mlock2", libc.syscall(325, ctypes.c_void_p(place), 4 << 20, 1)), ("mlockall", libc.mlockall(3))):
    print(name, "LOCKED" if done == 0 else "refused", ctypes.get_errno())
""",
        "OK",
        never="LOCKED",
    ),
    # ---- tables of the kernel that all share ----
    Row(
        "slots of asynchronous input",
        TRY + "number('io_setup', 206, 64, ctypes.byref(ctypes.c_ulong(0)))\n",
        "OK",
        prints="io_setup refused",
    ),
    Row(
        # Answered as if done: the kernel itself would say that -1 is no descriptor.
        "flushes every disk",
        TRY + "number('syncfs', 306, -1); number('sync', 162)\n",
        "OK",
        prints="syncfs ALLOWED",
    ),
    Row(
        "timers without end",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
count, made = 0, ctypes.c_int()
while count < 20000 and libc.syscall(222, 0, 0, ctypes.byref(made)) == 0: count += 1
print("OVER" if count > 8192 else "bounded", count, ctypes.get_errno())
""",
        "OK",
        prints="bounded",
    ),
    Row(
        "signals in a queue",
        """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))
count = 0
info = bytearray(128); info[8:12] = (-1 & 0xFFFFFFFF).to_bytes(4, "little")
while count < 20000 and libc.syscall(129, os.getpid(), 40, bytes(info)) == 0: count += 1
print("OVER" if count > 8192 else "bounded", count, ctypes.get_errno())
""",
        "OK",
        prints="bounded",
    ),
    Row(
        "watches on everything",
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
count = 0
while libc.inotify_init1(0) >= 0: count += 1
print("errno", ctypes.get_errno(), "few" if count < 128 else "many")
""",
        "OK",
        prints="errno 24 few",
    ),
    Row(
        "times of the host's devices",
        """
import os
for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/usr", "/usr/bin/env", "/etc/passwd"):
    for change in (lambda: os.utime(path), lambda: os.chmod(path, 0o600), lambda: os.setxattr(path, "user.x", b"y"), lambda: os.chown(path, -1, os.getgid())):
        try: change(); print("TOUCHED", path)
        except OSError: pass
print("end")
""",
        "OK",
        prints="end",
        never="TOUCHED",
        levels=BOXED,
    ),
    # ---- files by other names ----
    Row(
        "files without names",
        """
import os
kept = []
try:
    for number in range(60):
        kept.append(os.open(".", os.O_TMPFILE | os.O_RDWR) if number % 2 else os.open("f", os.O_CREAT | os.O_RDWR))
        if not number % 2: os.unlink("f")
        os.write(kept[-1], bytes(1 << 20))
    print("ALL WRITTEN")
except OSError as error: print("errno", error.errno)
""",
        "OK",
        prints="errno 28",
        levels=BOXED,
    ),
    Row(
        "holes and promises",
        """
import os
for size in (1 << 30, 1 << 40, (1 << 63) - 1):
    fd = os.open("big", os.O_CREAT | os.O_RDWR)
    for way in (lambda: os.truncate(fd, size), lambda: os.posix_fallocate(fd, 0, size), lambda: os.pwrite(fd, b"x", size - 1)):
        try: way(); print("HUGE", size)
        except OSError as error: print("errno", error.errno)
""",
        "OK|RE",
        never="HUGE",
    ),
    Row(
        "many names of one file",
        """
import os
open("f", "w").close()
try:
    for number in range(5000): os.link("f", f"l{number}")
    print("ALL LINKED")
except OSError as error: print("errno", error.errno, number < 300)
""",
        "OK",
        prints="errno 28 True",
        levels=BOXED,
    ),
    Row(
        "attributes as a disk",
        """
import os
total = 0
try:
    for number in range(200):
        open(f"f{number}", "w").close()
        for part in range(8):
            os.setxattr(f"f{number}", f"user.{part}", bytes(60000)); total += 60000
except OSError as error: print("errno", error.errno)
print("OVER" if total > 16 << 20 else "bounded")
""",
        "OK",
        never="OVER",
    ),
    # ---- doors and output ----
    Row(
        "more doors of the kernel",
        TRY
        + """
me = os.getpid()
number("ptrace traceme", 101, 0, 0, 0, 0); number("kcmp", 312, me, me, 0, 0, 0)
number("name_to_handle_at", 303, -100, b"/usr", bytes(136), bytes(8), 0)
number("process_vm_readv", 310, me, None, 0, None, 0, 0); number("modify_ldt", 154, 0, bytes(16), 16)
number("pidfd_getfd", 438, libc.syscall(434, me, 0), 0, 0); number("fanotify_init", 300, 0x200, 0)
number("mount_setattr", 442, -100, b"/", 0, bytes(32), 32); number("statmount", 457, bytes(24), bytes(512), 512, 0)
number("setns pidfd", 308, libc.syscall(434, 1, 0), 0x20000); number("request_key", 249, b"user", b"a", None, 0)
number("quotactl", 179, 0x800002, b"/dev/vda", 0, None); number("acct", 163, None); number("syslog", 103, 10, None, 0)
number("swapoff", 168, b"/x"); number("adjtimex", 159, bytes(208)); number("uselib", 134, b"/x")
""",
        "OK",
        never="ALLOWED",
    ),
    Row(
        "packets of one byte",
        """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)
for _ in range(6):
    if os.fork() == 0: break
while True: os.write(1, b"y")
""",
        "OLE|TLE_CPU|TLE_WALL",
        limits=Limits(
            cpu_s=4, wall_s=60, memory_mb=128, disk_mb=8, stdout_bytes=20_000, num_processes=16
        ),
    ),
    Row(
        "steals from its own pipes",
        """
import os
for fd in (1, 2, 3):
    try:
        back = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
        os.write(fd, b"stolen\\n"); print("took", os.read(back, 100))
    except OSError as error: print("errno", error.errno)
print("end")
""",
        "OK|PROTO",
        prints="end",
    ),
]
