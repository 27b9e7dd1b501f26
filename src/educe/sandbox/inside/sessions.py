"""A session's server inside its box: a persistent Python, a shell, files and snapshots.

The server answers one request at a time on the control channel: marshalled tuples in, JSON out. It
never runs model-written code itself. Python state lives in a *worker*; when that dies or is ended,
the next turn gets a new one and the answer says ``reset``. A snapshot is a parked copy of the
worker, made by fork, and a copy of the work folder.

Large modules are imported where they are used: what this file loads, every box pays for.
"""

# ruff: noqa: PTH102, PTH103, PTH108, PTH109, PTH112, PTH113
# ruff: noqa: PTH114, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import base64
import contextlib
import json
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from typing import Any, NoReturn

from educe.sandbox.inside import kernel, process_tree

_LENGTH = struct.Struct("<I")
_MAX_READ = 8 << 20
MAX_STRETCH = 3.0  # of a turn's wall time, on a machine that lets its processes wait
_HIDDEN = (".educe", ".cwd")
_SHELL = """
cd "$(cat .cwd 2>/dev/null || echo .)" 2>/dev/null
[ -f "$EDUCE_STATE" ] && . "$EDUCE_STATE"
trap 'code=$?; pwd > "$EDUCE_CWD"; export -p > "$EDUCE_STATE"; exit $code' EXIT
"""


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


class Server:
    """Answers the requests of one session."""

    def __init__(self, job: dict[str, Any], control: int) -> None:
        self.control = control
        self.limits: dict[str, Any] = job["limits"]
        self.home = os.getcwd()
        # Snapshots and the shell's state stay out of the folder that the user sees.
        self.state = "/box/job/tmp"
        if not self.home.startswith("/box/"):
            self.state = os.path.join(self.home, _HIDDEN[0])
            os.mkdir(self.state)
        self.worker: int = 0
        self.line: socket.socket | None = None
        self.pipes: list[int] = []
        self.parked: dict[int, socket.socket] = {}

    def serve(self) -> NoReturn:
        """Answer requests until the control channel closes."""
        while True:
            (length,) = _LENGTH.unpack(_read_exactly(self.control, _LENGTH.size))
            name, *arguments = marshal.loads(_read_exactly(self.control, length))
            try:
                answer = getattr(self, "do_" + name)(*arguments)
            except OSError as error:
                answer = {"error": error.strerror or str(error)}
            except ValueError as error:
                answer = {"error": str(error)}
            data = json.dumps(answer).encode()
            data = _LENGTH.pack(len(data)) + data
            while data:
                data = data[os.write(self.control, data) :]

    # ---- Python ----

    def do_python(self, code: str, wall_s: float, cpu_s: float) -> dict[str, Any]:
        fresh = self._ensure_worker()
        assert self.line is not None
        data = code.encode("utf-8", "surrogatepass")
        limit = _LENGTH.pack(min(86400, int(cpu_s + 1)))
        try:
            self.line.sendall(_LENGTH.pack(len(data)) + limit + data)
        except OSError:
            return {"reset": True, "status": "died", **self._drop_worker("the worker is gone")}
        status, output = self._watch(self.pipes, self.line, wall_s, self.worker)
        if status in ("ok", "raised", "exited"):
            return {"status": status, "reset": False, "fresh": fresh, **output}
        return {**output, "status": status, "reset": True, **self._drop_worker(status)}

    def _ensure_worker(self) -> bool:
        if self.worker:
            return False
        self._adopt(os.fork, None)
        return True

    def _adopt(self, fork: Any, parked: socket.socket | None) -> None:
        """Start a worker: a fork of ours, or of a parked one that is sent its descriptors."""
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        if parked is None:
            self.worker = fork()
            if self.worker == 0:
                os.close(self.control)
                ours.close()
                _work(theirs, out_write, err_write)
        else:
            socket.send_fds(parked, [b"G"], [theirs.fileno(), out_write, err_write])
            self.worker = _LENGTH.unpack(parked.recv(_LENGTH.size))[0]
        theirs.close()
        _close(out_write, err_write)
        self.line, self.pipes = ours, [out_read, err_read]
        for fd in self.pipes:
            os.set_blocking(fd, False)

    def _drop_worker(self, why: str) -> dict[str, Any]:
        if self.worker:
            with contextlib.suppress(OSError):
                os.kill(self.worker, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.worker, 0)
            for fd in self.pipes:
                os.close(fd)
            if self.line is not None:
                self.line.close()
        self.worker, self.line, self.pipes = 0, None, []
        return {"why": why}

    def _watch(
        self,
        pipes: list[int],
        line: socket.socket | None,
        wall_s: float,
        pid: int,
        *,
        is_child: bool = False,
    ) -> tuple[str, dict[str, Any]]:
        """Drain a turn's output until it says how it ended, dies or is late.

        ``pid`` is the turn's process; with ``is_child`` its end is the turn's. The time that its
        processes spend waiting for a processor is not the turn's.
        """
        kept, caps = [b"", b""], [self.limits["stdout_bytes"], self.limits["stderr_bytes"]]
        deadline, status, truncated = time.monotonic() + wall_s, "", False
        latest = deadline + (MAX_STRETCH - 1) * wall_s
        waited_s = _waited_s(pid)
        poller = select.poll()
        watched = [*pipes] + ([line.fileno()] if line is not None else [])
        for fd in watched:
            poller.register(fd, select.POLLIN)
        open_pipes = set(pipes)
        while not status:
            left = deadline - time.monotonic()
            if left <= 0:
                family = process_tree.descendants([pid])
                more_s = process_tree.longest_wait_s(family) - waited_s
                if time.monotonic() < latest and (
                    more_s > 0.001 or process_tree.is_kept_waiting(family, time.sleep)
                ):
                    deadline, waited_s = min(latest, deadline + more_s), waited_s + more_s
                    continue
                status = "timeout"
                break
            for fd, _ in poller.poll(min(left, 0.05 if is_child else left) * 1000 + 1):
                if line is not None and fd == line.fileno():
                    word = line.recv(64)
                    status = word.decode() if word else "died"
                elif not _drain(fd, kept, pipes.index(fd), caps):
                    poller.unregister(fd)
                    open_pipes.discard(fd)
            if is_child and not status:
                found, code = os.waitpid(pid, os.WNOHANG)
                status = f"exit {os.waitstatus_to_exitcode(code)}" if found else ""
        for index, fd in enumerate(pipes):
            if fd in open_pipes:
                _drain(fd, kept, index, caps)
        for index, cap in enumerate(caps):
            truncated = truncated or len(kept[index]) > cap
            kept[index] = kept[index][:cap]
        out, err = (base64.b64encode(part).decode() for part in kept)
        return status, {"out": out, "err": err, "truncated": truncated}

    # ---- shell ----

    def do_shell(self, command: str, wall_s: float, cpu_s: float) -> dict[str, Any]:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        state = {"EDUCE_STATE": f"{self.state}/.shell", "EDUCE_CWD": f"{self.home}/.cwd"}
        child = os.fork()
        if child == 0:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            os.close(self.control)
            os.dup2(out_write, 1), os.dup2(err_write, 2)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.chdir(self.home)
            limit = max(1, int(cpu_s + 0.999))
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            kernel.close_from(3)
            os.execvpe("bash", ["bash", "-c", _SHELL + command], {**os.environ, **state})
        _close(out_write, err_write)
        pipes = [out_read, err_read]
        for fd in pipes:
            os.set_blocking(fd, False)
        status, output = self._watch(pipes, None, wall_s, child, is_child=True)
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        if status == "timeout":
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        _close(out_read, err_read)
        return {"status": status, "reset": False, **output}

    # ---- files ----

    def do_read(self, path: str) -> dict[str, Any]:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            if not os.path.isfile(path):
                raise ValueError("not a regular file")
            content = file.read(_MAX_READ + 1)
        if len(content) > _MAX_READ:
            raise ValueError(f"larger than {_MAX_READ} bytes")
        return {"content": base64.b64encode(content).decode()}

    def do_write(self, path: str, content: bytes) -> dict[str, Any]:
        os.makedirs(os.path.dirname(os.path.join(self.home, path)), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return {}

    def do_list(self, path: str) -> dict[str, Any]:
        names = sorted(os.listdir(path or "."))[:10000]
        entries = [
            [name, os.path.isdir(full), os.lstat(full).st_size]
            for name in names
            if name not in _HIDDEN
            for full in [os.path.join(path or ".", name)]
        ]
        return {"entries": entries}

    def do_remove(self, path: str) -> dict[str, Any]:
        import shutil

        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return {}

    # ---- snapshots ----

    def do_snapshot(self) -> dict[str, Any]:
        import shutil

        self._ensure_worker()
        assert self.line is not None
        number = len(self.parked) + 1
        ours, theirs = socket.socketpair()
        self.line.sendall(_LENGTH.pack(0xFFFFFFFF))
        socket.send_fds(self.line, [b"S"], [theirs.fileno()])
        theirs.close()
        if ours.recv(1) != b"P":
            raise ValueError("the worker could not be copied")
        ignore = shutil.ignore_patterns(_HIDDEN[0])
        shutil.copytree(self.home, f"{self.state}/.snapshot{number}", symlinks=True, ignore=ignore)
        self.parked[number] = ours
        return {"snapshot": number}

    def do_restore(self, number: int) -> dict[str, Any]:
        import shutil

        if number not in self.parked:
            raise ValueError(f"there is no snapshot {number}")
        self._drop_worker("restored")
        self._adopt(None, self.parked[number])
        for name in set(os.listdir(self.home)) - {_HIDDEN[0]}:
            full = os.path.join(self.home, name)
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)
        folder = f"{self.state}/.snapshot{number}"
        shutil.copytree(folder, self.home, symlinks=True, dirs_exist_ok=True)
        return {}


def _drain(fd: int, kept: list[bytes], index: int, caps: list[int]) -> bool:
    """Read what is there (a little more than the cap is kept); False at the end of the pipe."""
    while True:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        if len(kept[index]) <= caps[index]:
            kept[index] += chunk


def _waited_s(pid: int) -> float:
    return process_tree.longest_wait_s(process_tree.descendants([pid]))


# ---- the worker ----


def _work(line: socket.socket, out: int, err: int) -> NoReturn:
    """Run turns in one namespace, which is ``__main__``."""
    os.dup2(out, 1), os.dup2(err, 2)
    _close(out, err)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path.insert(0, os.getcwd())
    while True:
        line = _next_turn(line, module)


def _next_turn(line: socket.socket, module: types.ModuleType) -> socket.socket:
    header = _recv_exactly(line, _LENGTH.size)
    (length,) = _LENGTH.unpack(header)
    if length == 0xFFFFFFFF:
        _, fds, _, _ = socket.recv_fds(line, 1, 1)
        return _park(line, socket.socket(fileno=fds[0]))
    (cpu_s,) = _LENGTH.unpack(_recv_exactly(line, _LENGTH.size))
    code = _recv_exactly(line, length).decode("utf-8", "surrogatepass")
    _limit_cpu(cpu_s)
    word = _run_turn(code, module)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    line.sendall(word.encode())
    return line


def _limit_cpu(seconds: int) -> None:
    """Give this turn processor seconds of its own, within those of the session."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(time.process_time()) + 1 + seconds
    with contextlib.suppress(OSError, ValueError):
        most = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def _park(line: socket.socket, depot: socket.socket) -> socket.socket:
    """Fork a parked copy, which makes new workers on request; the original goes on."""
    if os.fork() != 0:
        depot.close()
        return line
    line.close()
    depot.sendall(b"P")
    while True:
        data, fds, _, _ = socket.recv_fds(depot, 1, 3)
        if not data:
            os._exit(0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            depot.close()
            os.close(writer)
            os.read(reader, 1)  # the server knows our name now
            os.close(reader)
            os.dup2(fds[1], 1), os.dup2(fds[2], 2)
            _close(fds[1], fds[2])
            return socket.socket(fileno=fds[0])
        for fd in fds:
            os.close(fd)
        depot.sendall(_LENGTH.pack(child))
        os.write(writer, b"g")
        _close(reader, writer)
        _forget_children()


def _forget_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _recv_exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def _run_turn(code: str, module: types.ModuleType) -> str:
    """Execute a turn; a last expression's value is shown, as at a prompt."""
    import ast

    try:
        tree = ast.parse(code, "<turn>")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        exec(compile(tree, "<turn>", "exec"), module.__dict__)
        if last is not None:
            value = eval(compile(last, "<turn>", "eval"), module.__dict__)
            if value is not None:
                print(repr(value))
        return "ok"
    except SystemExit as error:
        print(f"(exit {error.code!r} was asked for; the session goes on)", file=sys.stderr)
        return "exited"
    except BaseException:
        import traceback

        kind, value, trace = sys.exc_info()
        traceback.print_exception(kind, value, trace.tb_next if trace else None)
        return "raised"
