"""What runs inside a box, beside the candidate: it loads the program, calls it and sends values.

It uses the standard library and its siblings in ``inside`` only: a bare interpreter executes it
inside the box. Nothing here is trusted by the grader. It knows inputs, never answers,
and a candidate that takes it over can only send values, exactly what returning them would do.
"""

# ruff: noqa: PTH103, PTH109, PTH120, SIM115
# (pathlib costs memory in every box; the standard streams stay open on purpose)
from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import json
import marshal
import os
import random
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from educe.sandbox.inside import kernel, sessions, stubs
from educe.sandbox.inside.cases import describe, finish_quietly, fork, make_calls
from educe.sandbox.inside.executables import run_executable
from educe.sandbox.inside.frames import (
    CASE,
    COMPILE,
    END,
    IMPORT,
    IMPORT_EXIT,
    MAX_ERROR,
    MEMORY,
    START,
    TEST,
    clip,
    send,
)
from educe.sandbox.inside.rlimits import apply_fixed, apply_rlimits

# Taken before any candidate code runs: patching the modules later cannot confuse the runner.
_exit, _write, _read, _open, _close = os._exit, os.write, os.read, os.open, os.close
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def run_job(job: dict[str, Any], result_fd: int, read_tests: Callable[[], list[str]]) -> NoReturn:
    """Run a job in this process and never return.

    ``read_tests`` fetches the texts of assert-style tests; it is called only after the candidate
    has a process of its own.
    """
    if job["files"]:
        program = job["argv"][0] if job["runtime"] == "executable" else ""
        _place_files(job["files"], program)
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


def _place_files(files: dict[str, bytes], program: str) -> None:
    """Write a job's files; ``program`` is the one that will be executed."""
    for path, content in sorted(files.items()):
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb", opener=_open_executable if path == program else None) as file:
            file.write(content)


def _open_executable(path: str, flags: int) -> int:
    return _open(path, flags, 0o700)


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
        text = describe(error)
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
        text = describe(error)
        if isinstance(error, AttributeError) and job["entry_point"].split(".")[-1] in text:
            text = f"the program defines no {job['entry_point']!r} ({text})"
        send(result_fd, IMPORT, body=clip(text))
        _exit(1)
    send(result_fd, START)
    gc.freeze()
    make_calls(job, function, result_fd)
    send(result_fd, END)
    _exit(finish_quietly())


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
    child = fork()
    if child == 0 and job["is_linux"]:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    return child


def _host_candidate(job: dict[str, Any], result_fd: int, requests: socket.socket) -> NoReturn:
    code, module = _load(job, "solution", "solution.py", result_fd)
    os.close(result_fd)  # nothing of the channel is left when the candidate's code begins
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        finish_quietly()
        requests.sendall(b"X" + clip(describe(error)))
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
