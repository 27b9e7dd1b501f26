"""What runs inside a box, beside the candidate: it loads the program, calls it and sends values.

It uses the standard library and its siblings in ``inside`` only: a bare interpreter executes it
inside the box. Nothing here is trusted by the grader. It knows inputs, never answers,
and a candidate that takes it over can only send values, exactly what returning them would do.
"""

# ruff: noqa: PTH103, PTH109, PTH120, PTH123, SIM115
# (pathlib costs memory in every box; the standard streams stay open on purpose)
from __future__ import annotations

import _thread
import atexit
import builtins
import contextlib
import gc
import json
import marshal
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from educe.sandbox.inside import kernel, process_tree, sessions, stubs
from educe.sandbox.inside.executables import run_executable
from educe.sandbox.inside.frames import (
    CASE,
    CASE_DIED,
    CASE_HEADER,
    CASE_TIMEOUT,
    COMPILE,
    END,
    HEADER,
    IMPORT,
    IMPORT_EXIT,
    MAX_ERROR,
    MEMORY,
    START,
    TEST,
    clip,
    send,
    write_all,
)
from educe.sandbox.inside.rlimits import apply_fixed, apply_rlimits
from educe.sandbox.inside.typed import encode
from educe.sandbox.inside.waiting import Waiting

# Taken before any candidate code runs: patching the modules later cannot confuse the runner.
_exit, _write, _read, _open, _close = os._exit, os.write, os.read, os.open, os.close
_setpgid, _dumps, _encode_text = os.setpgid, json.dumps, json.encoder.encode_basestring_ascii
_num_threads, _os_fork = _thread._count, os.fork
_bare_fork = kernel.fork_bare if sys.platform == "linux" else os.fork
_pipe, _kill, _killpg = os.pipe, os.kill, os.killpg
_LEAST_WAIT_S = 0.001  # for a processor, that is worth moving a deadline for
_PATIENCE_MS, _OFTEN_S, _MANY_BYTES = 5, 0.02, 8192  # when results of calls are sent on
_TOO_LARGE = b'{"s":"unserialisable","e":"the value is larger than the result limit"}'
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def _fork() -> int:
    """Fork as cheaply as it can be done.

    With one thread the interpreter's after-fork work has nothing to do (see ``kernel.fork``), and
    leaving it out costs a test case a third.
    """
    return _bare_fork() if _num_threads() == 0 else _os_fork()


def _to_json(record: dict[str, Any]) -> bytes:
    """Return a record as JSON; the usual one without the layers of ``json.dumps``."""
    value = record.get("v", "")
    kind = type(value)
    if kind is int:
        return b'{"s":"returned","v":%d}' % value
    if kind is str and record["s"] == "returned":
        return b'{"s":"returned","v":%s}' % _encode_text(value).encode()
    return _dumps(record).encode()


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def run_job(job: dict[str, Any], result_fd: int, read_tests: Callable[[], list[str]]) -> NoReturn:
    """Run a job in this process and never return.

    ``read_tests`` fetches the texts of assert-style tests; it is called only after the candidate
    has a process of its own.
    """
    if job["files"]:
        _place_files(job["files"])
    if job["session"]:
        os.environ.update(job["env"])
        os.close(result_fd)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        sessions.Server(job, job["session"]).serve()
    if job["runtime"].startswith("python"):
        if job["seed"]:  # the zygote was seeded with 0, which costs its boxes nothing
            seed_generators(job["seed"])
        if job["env"]:
            os.environ.update(job["env"])
        if job["num_tests"]:
            _run_tests(job, result_fd, read_tests)
        if job["suite"]:
            _run_suite(job, result_fd)
        if job["entry_point"]:
            _run_calls(job, result_fd)
        _run_program(job, result_fd)
    run_executable(job, result_fd)


def _place_files(files: dict[str, bytes]) -> None:
    for path, content in sorted(files.items()):
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def seed_generators(seed: int) -> None:
    """Seed the generators that programs use without asking for one of their own."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def open_standard_streams() -> None:
    """Give the interpreter fresh, UTF-8 standard streams."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(
        2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1
    )
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _load(job: dict[str, Any], name: str, path: str, result_fd: int) -> tuple[Any, Any]:
    """Return (code, module) of the source, or send a compile error and exit."""
    folder = os.getcwd()
    path = f"{folder}/{path}"
    try:
        source = job["source"].encode()
        fd = _open(path, _NEW_FILE, 0o600)
        while source:
            source = source[_write(fd, source) :]
        _close(fd)
        code = compile(job["source"], path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        text = _describe(error)
        if isinstance(error, SyntaxError):
            text = f"{type(error).__name__}: {error.msg} (line {error.lineno})"
        send(result_fd, COMPILE, body=clip(text))
        _exit(1)
    module = types.ModuleType(name)
    module.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    return code, module


def _run_program(job: dict[str, Any], result_fd: int) -> NoReturn:
    """Run the source as ``__main__``, as the interpreter would, exit handlers included."""
    sys.argv = ["main.py", *job["argv"]]
    code, module = _load(job, "__main__", "main.py", result_fd)
    status = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        status = _exit_status(error.code)
    except MemoryError:
        send(result_fd, MEMORY)
        status = 1
    except BaseException:
        status = 1
        kind, value, trace = sys.exc_info()
        assert kind is not None and value is not None and trace is not None
        value = value.with_traceback(trace.tb_next)  # without our own frame
        sys.excepthook(kind, value, trace.tb_next)
    _exit(_finish(status))


def _exit_status(code: object) -> int:
    """Return the status that a shell would see for ``sys.exit(code)``."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    try:
        print(code, file=sys.stderr)
    except BaseException:
        return 1
    return 1


def _finish(status: int) -> int:
    """Join threads, run exit handlers and flush, in the interpreter's order."""
    try:
        if len(threading._active) > 1:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException:
        status = status or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            status = status or 120
    return status


def _run_calls(job: dict[str, Any], result_fd: int) -> NoReturn:
    """Import the source once, then make each call in a process of its own."""
    code, module = _load(job, "solution", "solution.py", result_fd)
    try:
        exec(code, module.__dict__)
        function: Any = module
        for part in job["entry_point"].split("."):
            if isinstance(function, type):
                function = function()
            function = getattr(function, part)
    except SystemExit as error:
        send(result_fd, IMPORT_EXIT, body=clip(repr(error.code)))
        _exit(_exit_status(error.code))
    except MemoryError:
        send(result_fd, MEMORY)
        _exit(1)
    except BaseException as error:
        text = _describe(error)
        if isinstance(error, AttributeError) and job["entry_point"].split(".")[-1] in text:
            text = f"the program defines no {job['entry_point']!r} ({text})"
        send(result_fd, IMPORT, body=clip(text))
        _exit(1)
    send(result_fd, START)
    _finish_quietly()  # or every child would print what is buffered again
    cases = _Cases(job, result_fd)
    gc.freeze()
    for index, (args, kwargs) in enumerate(job["calls"]):
        cases.run(function, index, args, kwargs)
    cases.flush()
    send(result_fd, END)
    _exit(_finish_quietly())


def _run_tests(
    job: dict[str, Any], result_fd: int, read_tests: Callable[[], list[str]]
) -> NoReturn:
    """Be the tester: put the candidate into another process, then read and run the tests."""
    ours, theirs = socket.socketpair()
    child = _fork_from_hidden(job)
    if child == 0:
        ours.close()
        job["close_tests"]()
        _host_candidate(job, result_fd, theirs)
    theirs.close()
    tests = read_tests()
    first = ours.recv(MAX_ERROR + 1)
    if first[:1] != b"R":
        if first:
            send(result_fd, IMPORT, body=first[1:])
        _exit(1)
    send(result_fd, START)
    for index, text in enumerate(tests):
        try:
            record = stubs.run_test(text, ours)
        except OSError:
            record = {"s": "raised", "e": "the candidate's process is gone"}
        send(result_fd, CASE, index, 0.0, json.dumps(record).encode())
    send(result_fd, END)
    _exit(0)


def _fork_from_hidden(job: dict[str, Any]) -> int:
    """Fork a process for code that must not look into this one, whose ``/proc`` nobody may enter:
    not for a moment, because it is so before the other process is there.
    """
    if job["is_linux"]:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    child = _fork()
    if child == 0 and job["is_linux"]:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    return child


def _host_candidate(job: dict[str, Any], result_fd: int, requests: socket.socket) -> NoReturn:
    code, module = _load(job, "solution", "solution.py", result_fd)
    os.close(result_fd)  # nothing of the channel is left when the candidate's code begins
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        _finish_quietly()
        requests.sendall(b"X" + clip(_describe(error)))
        _exit(1)
    requests.sendall(b"R")
    stubs.serve_tests(module, requests)


def _run_suite(job: dict[str, Any], result_fd: int) -> NoReturn:
    """Run every test file in a process of its own and pass on its reports."""
    send(result_fd, START)
    for path in job["suite"]:
        reader, writer = os.pipe()
        child = _fork_from_hidden(job)
        if child == 0:
            os.close(reader)
            os.close(result_fd)
            space: dict[str, Any] = {"__name__": "educe_suites"}
            exec(job["suite_program"], space)  # shipped as text: our files are not in the box
            with_pytest = job["runtime"] == "python-pytest"
            space["run_with_pytest" if with_pytest else "run_file"](path, writer)
        os.close(writer)
        data = b""
        while len(data) <= job["limits"]["result_bytes"] and (chunk := _read(reader, 1 << 16)):
            data += chunk
        os.close(reader)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        prefix = json.dumps(f"{path}::")[1:-1].encode()
        for line in data.splitlines():
            if line.startswith(b'["' + prefix):
                send(result_fd, TEST, body=line)
    send(result_fd, END)
    _exit(0)


def _finish_quietly() -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            return 0
    return 0


class _Cases:
    """Makes calls in processes of their own, and passes on what they send.

    All memory of this process is shared anew at each fork: what it touches between two of them is
    copied, so it keeps to little. Results go out together, at the latest when a call takes longer
    than ``_PATIENCE_MS``: each write would wake up the supervisor.
    """

    def __init__(self, job: dict[str, Any], result_fd: int) -> None:
        limits = job["limits"]
        self._job, self._result_fd = job, result_fd
        self._wall_s, self._cap = limits["case_wall_s"], limits["result_bytes"]
        self._waiting = Waiting() if job["is_linux"] else None
        self._frames, self._flushed_at = b"", time.monotonic()
        self._poller, self._polled = select.poll(), -1

    def run(self, function: Any, index: int, args: Any, kwargs: Any) -> None:
        """Make one call."""
        if _num_threads():
            _finish_quietly()  # a thread may have printed
        reader, writer = _pipe()
        child = _fork()
        if child == 0:
            _close(reader)
            _close(self._result_fd)
            _call(self._job, function, args, kwargs, writer)
        _close(writer)
        if reader != self._polled:
            self._poller.register(reader, select.POLLIN)
            self._polled = reader
        body, late = self._read(reader, child)
        _close(reader)
        if body is not None or late:
            _end(child)
        status, cpu_s = self._wait(child)
        if body is not None:
            self._add(CASE, index, cpu_s, body)
        elif late or status == -signal.SIGXCPU:
            self._add(CASE_TIMEOUT, index, cpu_s, b"")
        else:
            self._add(CASE_DIED, index, cpu_s, b"%d" % status)

    def _wait(self, child: int) -> tuple[int, float]:
        """Return (exit status, negative for a signal; processor seconds)."""
        if self._waiting is not None:
            ended = self._waiting.wait(child)
            return (ended[0], ended[1] * 1e-6) if ended is not None else (0, 0.0)
        _, status, usage = os.wait4(child, 0)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def _add(self, kind: int, index: int, cpu_s: float, body: bytes) -> None:
        self._frames += HEADER.pack(kind, index, cpu_s, len(body)) + body
        if len(self._frames) > _MANY_BYTES or time.monotonic() - self._flushed_at > _OFTEN_S:
            self.flush()

    def flush(self) -> None:
        """Send the results so far."""
        if self._frames:
            write_all(self._result_fd, self._frames)
        self._frames, self._flushed_at = b"", time.monotonic()

    def _read(self, fd: int, child: int) -> tuple[bytes | None, bool]:
        """Return (the case's body or None, whether its time ran out).

        What the case's process spent waiting for a processor is not its time: on a busy machine
        the deadline moves by that, within the time of the whole job.
        """
        data, waited_s, size = b"", 0.0, 4096
        deadline = time.monotonic() + self._wall_s if self._wall_s else None
        poller = self._poller
        if not poller.poll(_PATIENCE_MS):
            self.flush()
        while True:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not poller.poll(left * 1000 + 1):
                    more_s = process_tree.longest_wait_s([child]) - waited_s
                    if more_s >= _LEAST_WAIT_S:
                        deadline, waited_s = deadline + more_s, waited_s + more_s
                    elif not process_tree.is_kept_waiting([child], lambda s: poller.poll(s * 1000)):
                        return None, True
                    continue
            chunk = _read(fd, size)
            if not chunk:
                return None, False
            data, size = data + chunk, 1 << 16
            if len(data) < CASE_HEADER.size:
                continue
            (length,) = CASE_HEADER.unpack_from(data)
            if length > self._cap:
                return _TOO_LARGE, False
            if len(data) >= CASE_HEADER.size + length:
                return data[CASE_HEADER.size : CASE_HEADER.size + length], False


def _end(child: int) -> None:
    """Kill a process, and what it left in its group."""
    for kill in (_kill, _killpg):
        try:  # noqa: SIM105 (a context manager would touch more memory)
            kill(child, signal.SIGKILL)
        except OSError:
            pass


def _call(job: dict[str, Any], function: Any, args: Any, kwargs: Any, fd: int) -> NoReturn:
    """In the case's own process: call, encode strictly, send, die."""
    try:  # noqa: SIM105 (a context manager would touch more memory in each case's process)
        _setpgid(0, 0)
    except OSError:
        pass  # refused where the job's own group is what gets killed
    record: dict[str, Any]
    try:
        value = function(*args, **kwargs)
        try:
            record = {"s": "returned", "v": encode(value)}
        except RecursionError:
            record = {"s": "unserialisable", "e": "the value is nested too deeply"}
        except TypeError as error:
            record = {"s": "unserialisable", "e": str(error)}
    except SystemExit as error:
        record = {"s": "exited", "e": f"SystemExit: {error.code!r}"[:MAX_ERROR]}
    except BaseException as error:
        record = {"s": "raised", "e": clip(_trace(error)).decode("utf-8", "replace")}
    body = _to_json(record)
    if len(body) > job["limits"]["result_bytes"]:
        body = _TOO_LARGE
    data = CASE_HEADER.pack(len(body)) + body
    _finish_quietly()
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError:
        _exit(1)  # nobody reads any more: the call was late, or its value too large
    _exit(0)


def _trace(error: BaseException) -> str:
    """Return ``Type: text (line n)``, the line being the candidate's innermost one."""
    text = _describe(error)
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith("solution.py"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return text if line is None else f"{text} (line {line})"


def main() -> NoReturn:
    """Entry of the plain level: a marshalled job on one descriptor, frames on another."""
    job_fd, result_fd = int(sys.argv[1]), int(sys.argv[2])
    with os.fdopen(job_fd, "rb") as file:
        job = marshal.load(file)
        tests = marshal.load(file)
    os.set_inheritable(result_fd, False)
    for path in job["import_paths"]:
        sys.path.append(path)
    for name in job["preload"]:
        __import__(name)
    open_standard_streams()
    apply_fixed()
    apply_rlimits(job["limits"], address_space=job["limit_address_space"])
    for name in [name for name in sys.modules if name.startswith("educe")]:
        del sys.modules[name]
    job["close_tests"] = tests.clear
    seed_generators(0)
    run_job(job, result_fd, lambda: tests)
