"""Programs that use up what there is: processors, memory, disk, processes, output."""

from __future__ import annotations

from hostile.row import BOXED, CALM, COUNTED, FAST, SLEEPY, TRY, Limits, Row

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
        TRY
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
