"""Programs that are not Python: compiled when they must be, then executed."""

# ruff: noqa: PTH108, PTH123
from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from educe.sandbox.inside.frames import COMPILE, MAX_ERROR, clip, send

_MAIN_NAMES = {"bash": "main.sh", "c": "main.c", "c++": "main.cpp", "node": "main.js"}
_PROGRAM = "main.bin"
COMPILERS = {
    "c": ["cc", "-O1", "-std=gnu17", "-o", _PROGRAM, "main.c", "-lm"],
    "c++": ["c++", "-O1", "-std=gnu++20", "-o", _PROGRAM, "main.cpp"],
}

_exit, _write, _read, _fork = os._exit, os.write, os.read, os.fork


def run_executable(job: dict[str, Any], result_fd: int) -> NoReturn:
    """Compile when the runtime needs it, then become the program."""
    runtime = job["runtime"]
    os.set_inheritable(result_fd, False)
    environment = {**os.environ, **job["env"]}
    if runtime in _MAIN_NAMES:
        with open(_MAIN_NAMES[runtime], "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(job["source"])
    if runtime in COMPILERS:
        _compile(COMPILERS[runtime], environment, result_fd)
    arguments = list(job["argv"])
    if runtime == "executable":
        name = arguments[0]
        if name in job["files"]:
            arguments[0] = "./" + name
    else:
        starts = {"bash": ["bash", "main.sh"], "node": ["node", "main.js"]}
        arguments = starts.get(runtime, ["./" + _PROGRAM]) + arguments
    # Python ignores these two; a program must start with the usual disposition.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(arguments[0], arguments, environment)
    except OSError as error:
        send(result_fd, COMPILE, body=clip(f"cannot run {arguments[0]!r}: {error.strerror}"))
        _exit(127)


def _compile(command: list[str], environment: dict[str, str], result_fd: int) -> None:
    reader, writer = os.pipe()
    child = _fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            _write(2, f"{command[0]}: {error.strerror}\n".encode())
            _exit(127)
    os.close(writer)
    text = b""
    while chunk := _read(reader, 1 << 16):
        text = (text + chunk)[:MAX_ERROR]
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if status != 0:
        send(result_fd, COMPILE, body=text or b"the compiler failed without a message")
        _exit(1)
    if not os.access(_PROGRAM, os.X_OK):
        _make_anew(_PROGRAM)


def _make_anew(path: str) -> None:
    """Make a file executable where no mode can be changed: it is chosen when a file is made."""
    old = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.unlink(path)
    new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    while os.sendfile(new, old, None, 1 << 24):
        pass
    os.close(new)
    os.close(old)
