# ruff: noqa: E501
"""Programs that attack the box, the machine or the limits, with what must come of each.

A row runs at every level that the host offers. ``verdicts`` are the endings allowed; ``prints`` must
stand in the output and ``never`` must not. Everything is bounded in number and time, and nothing
leaves the machine (addresses are loopback, documentation ranges or link-local).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from educe.sandbox import Job, Level, Limits, Result

FAST = Limits(cpu_s=0.4, wall_s=15.0, memory_mb=64, disk_mb=8, num_inodes=256, num_processes=16)
SLEEPY = Limits(cpu_s=2.0, wall_s=0.5, memory_mb=64, disk_mb=8, num_inodes=256, num_processes=16)
CALM = Limits(cpu_s=4.0, wall_s=40.0, memory_mb=128, disk_mb=8, num_inodes=256, num_processes=16)


@dataclass(frozen=True)
class Row:
    """One program. ``levels`` are those at which the promise is made."""

    name: str
    source: str
    verdicts: str
    prints: str = ""
    never: str = ""
    limits: Limits = CALM
    levels: tuple[Level, ...] = (Level.CONFINED, Level.NAMESPACES, Level.CGROUPS)
    runtime: str = "python"
    network: Literal["none", "loopback"] = "none"
    stdin: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    truncated: bool = False
    flag: str = ""

    def job(self) -> Job:
        return Job(
            self.source,
            runtime=self.runtime,
            limits=self.limits,
            network=self.network,
            stdin=self.stdin,
            files=self.files,
        )

    def complaint(self, result: Result) -> str:
        """Return what is wrong with a result, or an empty string."""
        where = f"{self.name} at {result.level.name.lower()}: "
        shown = f" ({result.reason}; {result.stdout[-200:]!r}; {result.stderr[-300:]!r})"
        if str(result.verdict) not in self.verdicts.split("|"):
            return f"{where}{result.verdict}, expected {self.verdicts}{shown}"
        text = result.stdout_text
        if self.prints and self.prints not in text:
            return f"{where}{self.prints!r} was not printed{shown}"
        if self.never and self.never in text:
            return f"{where}{self.never!r} was printed{shown}"
        if self.truncated and not result.truncated:
            return f"{where}nothing was marked as truncated{shown}"
        if self.flag and self.flag not in result.flags:
            return f"{where}the flag {self.flag} is missing{shown}"
        return ""


BOXED = (Level.NAMESPACES, Level.CGROUPS)
COUNTED = (Level.CGROUPS,)
_TRY = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *arguments):
    result = getattr(libc, name)(*arguments)
    code = ctypes.get_errno()
    print(name, "ALLOWED" if result >= 0 else "refused", errno.errorcode.get(code, code))
def number(name, n, *arguments):
    result = libc.syscall(n, *arguments)
    code = ctypes.get_errno()
    print(name, "ALLOWED" if result >= 0 else "refused", errno.errorcode.get(code, code))
"""

RESOURCE = [
    Row(
        "fork bomb",
        "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
        "TLE_CPU|TLE_WALL|RE|MLE",
        limits=FAST,
    ),
    Row(
        "thread bomb",
        """
import threading, time
count = 0
try:
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(0.3,), daemon=True).start(); count += 1
except RuntimeError as error:
    print("stopped", error)
print(count < 200 or "all started")
""",
        "OK|RE",
        levels=COUNTED,
        prints="can't start new thread",
    ),
    Row(
        "endless memory", "kept = []\nwhile True: kept.append(bytearray(10**7))", "MLE", limits=CALM
    ),
    Row("one huge array", "bytearray(10**12)", "RE|MLE"),
    Row(
        "memory of many children",
        """
import os, time
for _ in range(12):
    if os.fork() == 0:
        kept = bytearray(b"x" * 2**23); time.sleep(5); os._exit(0)
for _ in range(12): os.wait()
""",
        "MLE|TLE_WALL",
        limits=Limits(cpu_s=4, wall_s=3, memory_mb=64, disk_mb=8),
        levels=COUNTED,
    ),
    Row(
        "memory in files",
        """
try:
    with open("big", "wb") as f:
        for _ in range(64): f.write(bytes(2**20)); f.flush()
except OSError as error: print("full", error.errno in (28, 27))
""",
        "OK|RE",
        prints="full True",
    ),
    Row(
        "memfd, shared memory, message queues",
        _TRY
        + """
number("memfd", 319, b"x", 0)
number("shmget", 29, 0, 2**20, 0o1600); number("semget", 64, 0, 1, 0o1600)
number("msgget", 68, 0, 0o1600); number("mq_open", 240, b"q", 0o102, 0o600, None)
""",
        "OK",
        never="shmget ALLOWED",
    ),
    Row(
        "stdout flood", "import os\nwhile True: os.write(1, b'y\\n' * 4096)", "OLE", truncated=True
    ),
    Row(
        "stderr flood", "import os\nwhile True: os.write(2, b'y\\n' * 4096)", "OLE", truncated=True
    ),
    Row("200 kB of output", "print('x' * 200_000, end='')\nprint('done')", "OK", prints="xdone"),
    Row(
        "disk fill in the work folder",
        """
done = 0
try:
    for i in range(100):
        with open(f"f{i}", "wb") as f: f.write(bytes(2**20))
        done += 1
except OSError as error: print("errno", error.errno)
print(done)
""",
        "OK",
        prints="errno 28",
        levels=BOXED,
    ),
    Row(
        "disk fill in /tmp and /dev/shm",
        """
import os
for folder in ("/tmp", "/dev/shm"):
    try:
        for i in range(20):
            with open(f"{folder}/f{i}", "wb") as f: f.write(bytes(2**20))
        print("NO LIMIT")
    except OSError as error: print("errno", error.errno)
""",
        "OK",
        prints="errno 28",
        never="NO LIMIT",
        levels=BOXED,
    ),
    Row(
        "inode fill",
        """
try:
    for i in range(8000): open(f"f{i}", "w").close()
except OSError as error: print("errno", error.errno, i < 5000)
""",
        "OK",
        prints="errno 28 True",
        levels=BOXED,
    ),
    Row(
        "one file over the limit",
        """
import os
fd = os.open("big", os.O_WRONLY | os.O_CREAT)
try:
    os.lseek(fd, 2**30, 0); os.write(fd, b"x"); print("WROTE")
except OSError as error: print("errno", error.errno)
""",
        "OK|RE",
        never="WROTE",
    ),
    Row(
        "deep folders and odd names",
        """
import os
depth = 0
try:
    for _ in range(10000):
        os.mkdir("d"); os.chdir("d"); depth += 1
except OSError as error: print("stopped", error.errno)
os.chdir("/box/job/work") if os.path.isdir("/box/job/work") else None
print("deep", depth > 50)
""",
        "OK",
        prints="deep True",
        levels=BOXED,
    ),
    Row(
        "names with newlines and 255 bytes",
        """
import os
for name in ("a\\nb", "x" * 255, "\\udcff", "-rf", "*"): open(name, "w").close()
print(len(os.listdir(".")))
""",
        "OK",
        prints="6",
    ),
    Row(
        "descriptors until EMFILE",
        """
import os
kept = []
try:
    while True: kept.append(os.open("/dev/null", 0))
except OSError as error: print("errno", error.errno, len(kept) < 200)
""",
        "OK",
        prints="errno 24 True",
    ),
    Row("busy loop", "while True: pass", "TLE_CPU", limits=FAST),
    Row("sleep", "import time\ntime.sleep(100)", "TLE_WALL", limits=SLEEPY),
    Row("select for ever", "import select\nselect.select([], [], [])", "TLE_WALL", limits=SLEEPY),
    Row("read an empty stdin", "import sys\nprint(repr(sys.stdin.read()))", "OK", prints="''"),
    Row(
        "ignores signals and loops",
        """
import signal
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
while True: pass
""",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row(
        "huge number to text",
        """
import sys
sys.set_int_max_str_digits(0)
str(1 << 20_000_000)
""",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row(
        "catastrophic regular expression",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row("recursion", "def f(): f()\nf()", "RE"),
    Row(
        "recursion without a limit",
        """
import sys
sys.setrecursionlimit(10**9)
def f(n): return [f(n + 1)]
f(0)
""",
        "MLE|RE|TLE_CPU",
    ),
    Row(
        "recursion in C",
        """
import sys
sys.setrecursionlimit(10**9)
x = []
for _ in range(10**5): x = [x]
repr(x)
""",
        "RE|MLE|TLE_CPU",
    ),
    Row("null pointer", "import ctypes\nctypes.string_at(0)", "RE"),
    Row("abort", "import os\nos.abort()", "RE"),
    Row(
        "broken heap",
        """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
p = libc.malloc(64)
ctypes.memset(p, 0x41, 4096)
libc.free.argtypes = [ctypes.c_void_p]
for _ in range(100): libc.free(libc.malloc(64))
libc.free(p); libc.free(p); import os; os._exit(3)
""",
        "RE",
    ),
    Row(
        "rename storm",
        """
import os
open("a", "w").close()
while True: os.rename("a", "b"); os.rename("b", "a"); os.utime("a")
""",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row("tiny writes", "import os\nwhile True: os.write(os.open('/dev/null', 1), b'x')", "RE"),
    Row(
        "fsync loop",
        """
import os
fd = os.open("a", os.O_CREAT | os.O_WRONLY)
while True: os.write(fd, b"x"); os.fsync(fd); os.lseek(fd, 0, 0)
""",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row(
        "hash collisions",
        """
class K:
    def __init__(self, n): self.n = n
    def __hash__(self): return 1
    def __eq__(self, other): return self.n == other.n
d = {K(i): i for i in range(100000)}
""",
        "TLE_CPU|TLE_WALL",
        limits=FAST,
    ),
    Row(
        "zombies",
        """
import os
made = 0
try:
    for _ in range(10000):
        if os.fork() == 0: os._exit(0)
        made += 1
except OSError: print("stopped")
print(made)
""",
        "OK|RE",
        prints="stopped",
        limits=CALM,
        levels=BOXED,
    ),
    Row(
        "a pool of 64 workers",
        """
import multiprocessing
try:
    with multiprocessing.Pool(64) as pool: print(sum(pool.map(abs, range(8))))
except OSError as error: print("errno", error.errno)
""",
        "OK|RE|TLE_WALL|TLE_CPU|MLE",
        limits=FAST,
        levels=BOXED,
    ),
]

ESCAPE = [
    Row(
        "environment",
        """
import os
print(sorted(os.environ))
for p in ("/proc/1/environ", "/proc/self/environ"):
    try: print(open(p, "rb").read())
    except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="EDUCE_TEST_SECRET",
    ),
    Row(
        "other processes",
        """
import os
pids = [n for n in os.listdir("/proc") if n.isdigit()] if os.path.isdir("/proc/1") else []
print("few" if len(pids) <= 3 else pids)
for pid in pids:
    for name in ("environ", "root/etc/shadow", "mem", "cwd/x"):
        if int(pid) != os.getpid():
            try: open(f"/proc/{pid}/{name}", "rb").read(1); print("READ", pid, name)
            except OSError: pass
""",
        "OK",
        prints="few",
        never="READ",
        levels=BOXED,
    ),
    Row(
        "files of the host",
        """
import os
for p in ("/etc/shadow", "/root/.ssh", "/root/.bashrc", "/home", "/var/log", "/etc/hostname"):
    try:
        content = os.listdir(p) if os.path.isdir(p) else open(p).read()
        print("SAW", p)
    except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="SAW",
    ),
    Row(
        "kills everything it can see",
        """
import os, signal
for target in (lambda: os.kill(-1, 9), lambda: os.kill(os.getppid() or 1, 9),
               lambda: os.kill(1, 9), lambda: os.kill(1, 2)):
    if os.getuid() == 0: break   # without a user of its own this would not be a fair test
    try: target()
    except OSError: pass
print("still here")
""",
        "OK|RE",
        levels=BOXED,
    ),
    Row("kills its own group", "import os\nos.killpg(0, 9)", "RE"),
    Row(
        "network",
        """
import socket
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 22)),
    (socket.AF_INET6, socket.SOCK_DGRAM, ("2001:db8::1", 53)),
):
    try:
        s = socket.socket(family, kind); s.settimeout(1)
        s.connect(address); s.send(b"x"); print("SENT", address)
    except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="SENT",
    ),
    Row(
        "raw and odd sockets",
        """
import socket
for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (17, socket.SOCK_RAW), (40, 1), (16, 3),
                     (38, 5), (29, 3), (31, 3)):
    try: socket.socket(family, kind, 1 if kind == 3 else 0); print("OPENED", family)
    except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="OPENED",
    ),
    Row(
        "abstract sockets of the host",
        """
import socket
try:
    s = socket.socket(socket.AF_UNIX); s.connect("\\0educe-test-socket"); print("CONNECTED")
except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="CONNECTED",
    ),
    Row(
        "loopback in one job",
        """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = server.accept(); connection.sendall(b"hello"); connection.close()
threading.Thread(target=serve).start()
print(socket.create_connection(server.getsockname()).recv(10))
""",
        "OK",
        prints="b'hello'",
        network="loopback",
        levels=BOXED,
    ),
    Row(
        "no loopback by default",
        """
import socket
try:
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname(), 1); print("CONNECTED")
except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="CONNECTED",
    ),
    Row(
        "kernel doors",
        _TRY
        + """
attempt("unshare", 0x10000000); attempt("unshare", 0x20000); attempt("setns", 0, 0)
attempt("mount", b"none", b"/tmp", b"tmpfs", 0, None); attempt("umount2", b"/proc", 2)
attempt("chroot", b"/tmp"); number("pivot_root", 155, b".", b".")
number("keyctl", 250, 0, -3, 1); number("add_key", 248, b"user", b"a", b"b", 1, -3)
number("bpf", 321, 0, None, 0); number("perf_event_open", 298, None, 0, -1, -1, 0)
number("userfaultfd", 323, 1); number("io_uring_setup", 425, 1, None)
number("ptrace", 101, 16, 1, 0, 0); number("init_module", 175, None, 0, b"")
number("kexec_load", 246, 0, 0, None, 0); number("clone3", 435, None, 0)
number("open_by_handle_at", 304, 0, None, 0); number("process_vm_readv", 310, 1, None, 0, None, 0, 0)
number("fsopen", 430, b"tmpfs", 0); number("open_tree", 428, -100, b"/", 1)
number("clone newuser", 56, 0x10000000 | 17, 0, 0, 0, 0); number("future", 9999)
number("settimeofday", 164, None, None) if False else None
number("sethostname", 170, b"x", 1); number("personality", 135, 0x0040000)
number("memfd_secret", 447, 0); number("seccomp strict", 317, 7, 0, None)
""",
        "OK",
        never="ALLOWED",
    ),
    Row(
        "the i386 table",
        """
import ctypes, mmap, os
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"   # mov eax, 20 (getpid of i386); int 0x80; ret
page = mmap.mmap(-1, 4096, prot=7)
page.write(code)
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print("RETURNED", call())
""",
        "RE",
        never="RETURNED",
    ),
    Row(
        "becomes root",
        """
import os
for change in (os.setuid, os.setgid, lambda n: os.setresuid(n, n, n), lambda n: os.setgroups([n])):
    try: change(0); print("CHANGED" if os.getuid() != 0 else "")
    except OSError as error: print("errno", error.errno)
print("uid", os.getuid())
print([l for l in open("/proc/self/status") if l.startswith("CapEff")])
""",
        "OK",
        never="uid 0",
        prints="0000000000000000",
        levels=BOXED,
    ),
    Row(
        "set-user-id programs",
        """
import os, stat
open("s", "w").write("x"); os.chmod("s", 0o4755)
import subprocess
for p in ("/usr/bin/su", "/usr/bin/passwd", "/bin/mount"):
    try: print(subprocess.run([p, "-c", "id"], capture_output=True, timeout=1).stdout)
    except Exception as error: print(type(error).__name__)
""",
        "OK",
        never="uid=0",
    ),
    Row(
        "writes to programs",
        """
import os, sys
for p in ("/usr/bin/x", os.__file__, sys.executable, "/x", "/etc/passwd", "/lib/x", "/dev/x", "/box/x"):
    try: open(p, "ab").write(b"x"); print("WROTE", p)
    except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="WROTE",
    ),
    Row(
        "writes to the kernel",
        """
import os
for p in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/mm/ksm/run",
          "/proc/sys/vm/drop_caches", "/sys/fs/cgroup/memory/cgroup.procs", "/proc/1/oom_score_adj"):
    try: os.write(os.open(p, os.O_WRONLY), b"0"); print("WROTE", p)
    except OSError as error: print("errno", error.errno)
try: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"); print("WROTE oom")
except OSError as error: print("errno", error.errno)
""",
        "OK",
        never="WROTE",
    ),
    Row(
        "devices",
        """
import os, stat
for kind, device in ((stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFBLK, os.makedev(254, 0))):
    try: os.mknod("dev", 0o600 | kind, device); open("dev", "rb").read(1); print("MADE")
    except OSError as error: print("errno", error.errno)
for p in ("/dev/mem", "/dev/kvm", "/dev/vda", "/dev/sda", "/dev/tty", "/dev/ptmx", "/dev/fuse"):
    try: os.open(p, os.O_RDWR); print("OPENED", p)
    except OSError: pass
print("end")
""",
        "OK",
        never="MADE",
        prints="end",
        levels=BOXED,
    ),
    Row(
        "raises its limits",
        """
import os, resource
for name in ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_RTPRIO"):
    try: resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY,) * 2); print("RAISED")
    except (OSError, ValueError): print("refused")
try: os.nice(-20); print("RAISED nice")
except OSError: print("refused")
try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); print("RAISED fifo")
except OSError: print("refused")
""",
        "OK",
        never="RAISED",
    ),
    Row(
        "daemon",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(100):
            try: os.close(fd)
            except OSError: pass
        time.sleep(300)
    os._exit(0)
print("left")
""",
        "OK",
        prints="left",
        levels=BOXED,
        flag="killed_descendants",
    ),
    Row(
        "a child that holds the pipe",
        "import subprocess\nsubprocess.Popen(['sleep', '30'])\nprint('left')",
        "OK",
        prints="left",
    ),
    Row(
        "the zygote's memory",
        """
import ctypes, gc, sys
needle = "NEEDLE" + "-IN-AN-EARLIER-JOB"
found = [o for o in gc.get_objects() if isinstance(o, (str, bytes)) and needle in str(o)]
with open("/proc/self/maps") as maps:
    for line in maps:
        part, access = line.split()[:2]
        if access.startswith("rw") and "[v" not in line:
            low, high = (int(x, 16) for x in part.split("-"))
            if high - low < 64 << 20:
                data = ctypes.string_at(low, high - low)
                if data.count(needle.encode()) > 2: found.append(line)
print("FOUND" if found else "nothing", found[:2])
""",
        "OK",
        never="FOUND",
        levels=BOXED,
    ),
    Row(
        "traces of educe",
        """
import sys
print([name for name in sys.modules if "educe" in name or "torch" in name or "pytest" in name])
try: import educe; print("IMPORTED")
except ImportError: print("absent")
""",
        "OK",
        prints="absent",
        never="IMPORTED",
    ),
    Row(
        "terminal tricks",
        """
import fcntl
for fd in (0, 1, 2):
    try: fcntl.ioctl(fd, 0x5412, b"x"); print("PUSHED")
    except OSError as error: print("errno", error.errno)
try: open("/dev/tty"); print("TTY")
except OSError: print("no terminal")
""",
        "OK",
        prints="no terminal",
        never="PUSHED",
    ),
]

OUTPUT = [
    Row("lone surrogates", "print('\\udcff\\ud800')", "RE|OK"),
    Row("invalid UTF-8", "import os\nos.write(1, b'\\xff\\xfe\\x00\\x1b[31m\\r\\n')", "OK"),
    Row("one line of half a megabyte", "print('a' * 500_000)", "OK", prints="a" * 1000),
    Row("exit codes", "import sys\nsys.exit(256)", "OK"),
    Row("exit text", "import sys\nsys.exit('no')", "RE"),
    Row("exit negative", "import sys\nsys.exit(-1)", "RE"),
    Row(
        "every way to print",
        """
import os, subprocess, sys, ctypes
print("a", flush=True); os.write(1, b"b\\n"); sys.__stdout__.write("c\\n"); sys.__stdout__.flush()
subprocess.run(["echo", "d"]); libc = ctypes.CDLL(None); libc.puts(b"e"); libc.fflush(None)
""",
        "OK",
        prints="a\nb\nc\nd\ne",
    ),
    Row(
        "print from an exit handler",
        "import atexit\natexit.register(print, 'bye')",
        "OK",
        prints="bye",
    ),
    Row(
        "forged result frames",
        """
import os
for fd in range(3, 20):
    try: os.write(fd, b"\\x05" + bytes(12) + b"ALL TESTS PASSED")
    except OSError: pass
print("ALL TESTS PASSED")
""",
        "OK|PROTO|RE",
    ),
]

LEGITIMATE = [
    Row(
        "threads",
        """
import threading
threads = [threading.Thread(target=print, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]; print("joined")
""",
        "OK",
        prints="joined",
    ),
    Row(
        "asyncio",
        """
import asyncio
async def main(): return await asyncio.gather(*(asyncio.sleep(0, i) for i in range(4)))
print(asyncio.run(main()))
""",
        "OK",
        prints="[0, 1, 2, 3]",
    ),
    Row(
        "multiprocessing",
        """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))
""",
        "OK",
        prints="[1, 2]",
        levels=BOXED,
    ),
    Row(
        "subprocess",
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(6*7)'], capture_output=True).stdout)",
        "OK",
        prints="42",
    ),
    Row(
        "standard input by input()", "print(input() + input())", "OK", prints="ab", stdin=b"a\nb\n"
    ),
    Row(
        "standard input by buffer",
        """
import sys
r = sys.stdin.buffer.readline
print(r(), r(), r())
""",
        "OK",
        prints="b'1\\n' b'2\\n' b'3'",
        stdin=b"1\n2\n3",
    ),
    Row(
        "standard input by fileinput",
        "import fileinput\nprint(sum(int(x) for x in fileinput.input()))",
        "OK",
        prints="6",
        stdin=b"1\n2\n3\n",
    ),
    Row(
        "two megabytes of input",
        "import sys\nprint(len(sys.stdin.read()))",
        "OK",
        prints="2000000",
        stdin=b"x" * 2_000_000,
    ),
    Row("its own file", "print(open(__file__).read().count('open'))", "OK", prints="2"),
    Row(
        "temporary files",
        """
import tempfile
with tempfile.TemporaryDirectory() as d:
    open(d + "/x", "w").write("y"); print(open(d + "/x").read())
""",
        "OK",
        prints="y",
    ),
    Row(
        "numbers",
        "print(float('inf'), float('nan'), 2**200, 0.1 + 0.2, 1e400, -0.0)",
        "OK",
        prints="0.30000000000000004",
    ),
    Row("unicode names", "größe = 3\nprint('ß∂ƒ', größe)", "OK", prints="ß∂ƒ 3"),
    Row(
        "legal recursion", "def f(n): return n and 1 + f(n - 1)\nprint(f(900))", "OK", prints="900"
    ),
    Row(
        "files of the job",
        "print(open('data/in.txt').read())\nimport mod\nprint(mod.x)",
        "OK",
        prints="hello\n7",
        files={"data/in.txt": b"hello", "mod.py": b"x = 7"},
    ),
    Row("kill itself", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "RE"),
    Row("alarm", "import signal, time\nsignal.alarm(1)\ntime.sleep(5)", "RE"),
    Row("exec", "import os\nos.execv('/bin/echo', ['echo', 'replaced'])", "OK", prints="replaced"),
]

ROWS = [*RESOURCE, *ESCAPE, *OUTPUT, *LEGITIMATE]
