"""The default backend: a supervisor process of our own, with zygotes and prepared boxes.

This side only connects, sends jobs and turns facts into results. Each thread has its own
connection, so a call costs no hand-over between threads; a process forked from the owner connects
anew. Nothing here installs a signal handler or starts a thread.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from educe.sandbox.connection import Address, Connections, connect
from educe.sandbox.contract import (
    BoxVerdict,
    Job,
    Level,
    Limits,
    Result,
    SandboxError,
    Times,
)
from educe.sandbox.fingerprint import host_fingerprint, job_fingerprint
from educe.sandbox.host import (
    ETC,
    is_open_to_all,
    mount_point,
    runtimes,
    system_paths,
    temporary_folder,
)
from educe.sandbox.inside import wire
from educe.sandbox.inside.preparation import CONTROL_FD
from educe.sandbox.inside.root_folder import WORK
from educe.sandbox.launch import command
from educe.sandbox.outcome import Ending, conclude
from educe.sandbox.payload import base_environment, job_payload, limits_of, preload_name

_START_TIMEOUT_S = 120.0
ALL_LAYERS = ("landlock", "seccomp", "privileges")
# Run in the first box of every sandbox: a level is claimed only when its layers were seen to hold.
_PROBE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
broken = [] if libc.unshare(0x10000000) < 0 else ["seccomp"]
for path in ("/etc/shadow", "/etc/machine-id", "/home", "/var/log"):
    try: os.listdir(path) if os.path.isdir(path) else open(path).close()
    except OSError: continue
    broken.append("files")
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
    broken.append("network")
except OSError: pass
if LEVEL == 2:
    os.chmod(".", 0o711)
    if os.stat(".").st_mode & 0o077: broken.append("modes")
try:
    status, groups = open("/proc/self/status").read(), open("/proc/self/cgroup").read()
    if "CapEff:\\t0000000000000000" not in status: broken.append("capabilities")
    if LEVEL > 2 and os.getpid() > 9: broken.append("processes")
    if LEVEL > 3 and "/educe-" not in groups: broken.append("groups")
except OSError:
    if LEVEL > 2: broken.append("proc")
print("held" if not broken else broken)
"""


class EmbeddedBackend:
    """Owns a supervisor, or shares the one behind an address.

    Args:
        level: exactly this level; None takes the best from ``minimum`` up.
        minimum: what must be enforced at least.
        num_parallel: jobs that run at once.
        num_spare: prepared boxes kept in stock (0: each job waits for its own).
        layers: what is switched on; only tests leave something out, and the level then says PLAIN.

    Raises:
        SandboxError: when this host cannot enforce the level.
    """

    def __init__(
        self,
        *,
        level: Level | None = None,
        minimum: Level = Level.NAMESPACES,
        num_parallel: int = 0,
        num_spare: int | None = None,
        layers: tuple[str, ...] = ALL_LAYERS,
        modes: tuple[str, ...] = (),
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxError("the embedded sandbox needs Linux")
        cores = len(os.sched_getaffinity(0))
        self._num_parallel = num_parallel or cores
        usual = min(self._num_parallel, cores) + 2
        self._num_spare = usual if num_spare is None else num_spare
        self._modes = modes or _modes(level, minimum)
        self._use_cgroups = level is None or level is Level.CGROUPS
        self._wanted, self._minimum, self._layers = level, minimum, layers
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup: weakref.finalize[Any, Any] | None = None
        self.facts: dict[str, Any] = {}
        self.level = Level.PLAIN
        self._connections = Connections()
        # Kept for life: whoever shares this sandbox finds a supervisor that was started anew.
        self._name = f"educe-{os.getpid()}-{secrets.token_hex(8)}"
        self._token = secrets.token_hex(16)
        self._start()

    def _start(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = _spawn(theirs)
            theirs.close()
            ours.settimeout(_START_TIMEOUT_S)
            ours.send(marshal.dumps(self._configuration()))
            answer = _receive(ours)
            if not answer.get("ok"):
                raise SandboxError(
                    _why_not(answer.get("reasons", []), self._wanted or self._minimum)
                )
            self.level = self._level_of(answer)
            self.facts = answer
            required = self._wanted or self._minimum
            if self._layers == ALL_LAYERS and self.level < required:
                raise SandboxError(_why_not([_shortfall(self.level, required)], required))
            _receive(ours)
        except BaseException:
            ours.close()
            if process is not None:
                _end(process, ours, os.getpid())
            raise
        finally:
            theirs.close()
        self._process, self._lifeline = process, ours
        self._cleanup = weakref.finalize(self, _end, process, ours, os.getpid())
        self.address = Address(self._name, self._token, self.level, self._fingerprint(answer))
        self._connections = Connections()
        if self._layers == ALL_LAYERS:
            self._prove()

    def _prove(self) -> None:
        """Attack the first box; refuse to open when a layer does not hold."""
        probe = Job(f"LEVEL = {int(self.level)}" + _PROBE, limits=Limits(wall_s=60))
        try:
            frame = _frame(0, probe, self.address.token)
            (facts,) = self._connections.get(self.address).exchange([frame])
        except (OSError, EOFError) as error:
            self.close()
            raise SandboxError(f"the sandbox died while it was tried out: {error}") from None
        result = to_result(probe, facts, self.address)
        if result.stdout != b"held\n":
            told = result.stdout_text.strip() or f"{result.verdict}: {result.reason}"
            self.close()
            raise SandboxError(f"level {self.level.name.lower()} does not hold here: {told}")

    def _configuration(self) -> dict[str, Any]:
        limits = Limits()
        return {
            "modes": list(self._modes),
            "use_cgroups": self._use_cgroups,
            "num_parallel": self._num_parallel,
            "num_spare": self._num_spare,
            "layers": list(self._layers),
            "root": mount_point(),
            "system": system_paths(),
            "etc": ETC,
            "environment": {**base_environment(WORK), "TMPDIR": temporary_folder()},
            "runtimes": runtimes(),
            "zygote_command": command("start"),
            "default_shape": ("", False, limits.disk_mb, limits.num_inodes),
            "can_change_user": os.geteuid() == 0 and is_open_to_all(system_paths()),
            "sample": _payload(Job("print(sum(range(10)))")),
            "niceness": max(0, os.getpriority(os.PRIO_PROCESS, 0)),
            "address": self._name,
            "token": self._token,
            "owner": os.getpid(),
        }

    def _level_of(self, answer: dict[str, Any]) -> Level:
        if self._layers != ALL_LAYERS:
            return Level.PLAIN
        if answer["mode"] in ("root", "user"):
            return Level.CGROUPS if answer["cgroups"] else Level.NAMESPACES
        # Landlock could not stop files from being truncated before its version 3.
        if answer["mode"] == "confined" and answer["landlock"] >= 3:
            return Level.CONFINED
        return Level.PLAIN

    def _fingerprint(self, answer: dict[str, Any]) -> str:
        return host_fingerprint(answer, self._layers)

    def run_batch(self, jobs: Sequence[Job]) -> list[Result]:
        results: list[Result | None] = [None] * len(jobs)
        for attempt in range(2):
            todo = [index for index, result in enumerate(results) if result is None]
            frames = [_frame(index, jobs[index], self.address.token) for index in todo]
            try:
                connection = self._connections.get(self.address)
                for head in connection.exchange(frames):
                    index = head["id"]
                    results[index] = to_result(jobs[index], head, self.address)
                break
            except (OSError, EOFError) as error:
                self._connections.forget()
                if attempt or not self.ensure_alive():
                    reason = f"the sandbox's supervisor is gone ({error})"
                    lost = Result(BoxVerdict.INFRA, reason, level=self.level)
                    return [lost if result is None else result for result in results]
        return [result for result in results if result is not None]

    async def run_batch_async(self, jobs: Sequence[Job]) -> list[Result]:
        """Run jobs without blocking the event loop or taking a thread."""
        results: list[Result | None] = [None] * len(jobs)
        try:
            sock = connect(self.address)
            sock.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        except OSError:
            return await asyncio.to_thread(self.run_batch, jobs)
        try:
            for index, job in enumerate(jobs):
                writer.write(_frame(index, job, self.address.token))
            await writer.drain()
            parser, missing = wire.Reader(), len(jobs)
            while missing:
                data = await reader.read(wire.CHUNK)
                if not data:
                    break
                for head, _ in parser.feed(data):
                    results[head["id"]] = to_result(jobs[head["id"]], head, self.address)
                    missing -= 1
        finally:
            writer.close()
        lost = Result(BoxVerdict.INFRA, "the sandbox's supervisor is gone", level=self.level)
        return [lost if result is None else result for result in results]

    def connect_session(self, job: Job) -> socket.socket:
        """Open a session's box; what is sent and received from then on is the box's.

        Raises:
            SandboxError: when no box can be had.
        """
        sock = connect(self.address)
        sock.settimeout(60)
        try:
            sock.sendall(_frame(0, job, self.address.token, "session"))
            ((head, _), *_) = wire.read_frame(sock, wire.Reader())
        except (OSError, EOFError) as error:
            sock.close()
            raise SandboxError(f"no session can be opened: {error}") from None
        if head.get("broken"):
            sock.close()
            raise SandboxError(f"no session can be opened: {head['broken']}")
        return sock

    def stats(self) -> dict[str, Any]:
        """Return counters of the supervisor: running, queued, ready, descriptors, memory.

        Raises:
            SandboxError: when it is gone and cannot be started anew from here.
        """
        frame = wire.pack({"op": "stats", "id": 0, "token": self.address.token})
        for _ in range(2):
            try:
                return self._connections.get(self.address).exchange([frame])[0]
            except (OSError, EOFError):
                self._connections.forget()
                if not self.ensure_alive():
                    break
        raise SandboxError("the sandbox's supervisor is gone")

    def ensure_alive(self) -> bool:
        """Start a new supervisor when the old one died; False when that is not ours or fails."""
        if os.getpid() != self._owner or self._process is None:
            return False
        with self._lock:
            if self._process.poll() is None:
                return True  # it never died, or another thread was faster
            try:
                if self._cleanup is not None:
                    self._cleanup()
                self._start()
            except (SandboxError, OSError):
                return False
        return True

    def close(self) -> None:
        self._connections.forget()
        if self._cleanup is not None:
            self._cleanup()


class SharedBackend(EmbeddedBackend):
    """A client of a supervisor that another process owns."""

    def __init__(self, address: Address) -> None:
        self.address, self.level = address, address.level
        self._connections = Connections()
        self._process, self._owner, self._cleanup = None, -1, None
        self._lock = threading.Lock()
        self.facts = {}

    def ensure_alive(self) -> bool:
        try:
            connect(self.address).close()
        except OSError:
            return False
        return True


def _frame(number: int, job: Job, token: str, op: str = "run") -> bytes:
    head = {
        "op": op,
        "id": number,
        "token": token,
        "key": job.idempotency_key,
        "limits": limits_of(job),
        "outputs": list(job.outputs),
        "preload": preload_name(job.runtime),
        "loopback": job.network == "loopback",
        "num_expected": 2 + 2 * (len(job.calls) + len(job.tests) + len(job.suite)),
    }
    return wire.pack(head, _payload(job, CONTROL_FD if op == "session" else 0))


def _payload(job: Job, session: int = 0) -> bytes:
    """Return what a box reads: the job, and after it the tests that its tester alone may see."""
    payload = job_payload(job)
    payload["session"] = session
    payload["stdin"], payload["outputs"] = job.stdin, bool(job.outputs)
    return _block(payload) + (_block(list(job.tests)) if job.tests else b"")


def _block(content: Any) -> bytes:
    # Version 2 marks no text as interned: looking each up in there would touch, and so copy, pages
    # all over the box's memory.
    data = marshal.dumps(content, 2)
    return len(data).to_bytes(4, "little") + data


def to_result(job: Job, facts: dict[str, Any], address: Address) -> Result:
    """Return the result that a supervisor's facts amount to."""
    ending = Ending(
        status=facts.get("status"),
        late=facts.get("late", False),
        cpu_late=facts.get("cpu_late", False),
        overflow=facts.get("overflow", ""),
        out_of_memory=facts.get("oom", False),
        broken=facts.get("broken", ""),
        broke_twice=facts.get("broke_twice", False),
        times=Times(
            queue_s=facts.get("queue_s", 0.0),
            setup_s=facts.get("setup_s", 0.0),
            cpu_s=facts.get("cpu_s", 0.0),
            wall_s=facts.get("wall_s", 0.0),
            waited_s=facts.get("waited_s", 0.0),
            limit_s=facts.get("limit_s", 0.0),
        ),
        peak_memory_mb=facts.get("peak_mb", 0.0),
        outputs=facts.get("outputs", {}),
        flags=list(facts.get("flags", ())),
        truncated=list(facts.get("truncated", ())),
        level=address.level,
        fingerprint=job_fingerprint(job, address.fingerprint),
    )
    return conclude(
        job, ending, facts.get("stdout", b""), facts.get("stderr", b""), facts.get("channel", b"")
    )


def _modes(level: Level | None, minimum: Level) -> tuple[str, ...]:
    """Return what to try, best first."""
    if level is Level.CONFINED:
        return ("confined",)
    namespaces = ("root", "user") if os.geteuid() == 0 else ("user",)
    if level is None and minimum <= Level.CONFINED:
        return (*namespaces, "confined")
    return namespaces


def _spawn(lifeline: socket.socket) -> subprocess.Popen[bytes]:
    """Start the supervisor with one descriptor and an environment of ours."""
    fd = lifeline.fileno()
    launcher = command("supervisor", str(fd))
    return subprocess.Popen(
        launcher,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("EDUCE_SANDBOX_DEBUG") else subprocess.DEVNULL,
        pass_fds=(fd,),
        env=base_environment("/"),
        cwd="/",
        start_new_session=True,
    )


def _receive(lifeline: socket.socket) -> dict[str, Any]:
    try:
        data = lifeline.recv(1 << 16)
    except TimeoutError:
        raise SandboxError(
            f"the sandbox's supervisor was not ready within {_START_TIMEOUT_S:g} s"
        ) from None
    if not data:
        raise SandboxError("the sandbox's supervisor died while starting")
    answer = marshal.loads(data)
    assert isinstance(answer, dict)
    return answer


def _end(process: subprocess.Popen[bytes], lifeline: socket.socket, owner: int) -> None:
    """Close the lifeline and wait; a forked copy of the owner only closes its end."""
    lifeline.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _shortfall(level: Level, required: Level) -> str:
    return f"this host reaches level {level.name.lower()}, not {required.name.lower()}"


def _why_not(reasons: list[str], minimum: Level) -> str:
    return (
        f"no sandbox of level {minimum.name.lower()} or better on this host: "
        + "; ".join(reasons)
        + ". Run `educe sandbox doctor` for what would help. To run with less isolation, ask for "
        "it by name, for example open_sandbox(minimum='plain')."
    )
