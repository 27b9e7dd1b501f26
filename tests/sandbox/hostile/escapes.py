# ruff: noqa: E501
"""Programs that look for a way out of the box, or for what is in it."""

from __future__ import annotations

import os
import tempfile

from hostile.row import BOXED, TRY, Row

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
""".replace("test-socket", f"test-socket-{os.getpid()}"),
        "OK",
        never="CONNECTED",
    ),
    Row(
        "attributes of a file outside",
        f"""
import os, time
path = {tempfile.gettempdir()!r} + "/educe-test-stand-in-{os.getpid()}"
def look():
    try: about = os.stat(path); return about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, about.st_ctime_ns
    except OSError: return None
for change in (lambda: os.chmod(path, 0o640), lambda: os.utime(path), lambda: os.utime(path, (1, 1)), lambda: os.chown(path, os.getuid(), os.getgid()), lambda: os.setxattr(path, "user.x", b"y")):
    before = look(); time.sleep(0.02)
    try: change()
    except OSError: pass
    if look() != before: print("TOUCHED", before, look())
print("end")
""",
        "OK",
        prints="end",
        never="TOUCHED",
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
        TRY
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
