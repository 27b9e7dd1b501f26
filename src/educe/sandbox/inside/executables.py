"""Programs that are not Python: compiled when they must be, then executed."""

# ruff: noqa: PTH101, PTH123
from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from educe.sandbox.inside.frames import COMPILE, MAX_ERROR, clip, send

_MAIN_NAMES = {"bash": "main.sh", "c": "main.c", "c++": "main.cpp", "node": "main.js"}
COMPILERS = {
    "c": ["cc", "-O1", "-std=gnu17", "-o", "main.bin", "main.c", "-lm"],
    "c++": ["c++", "-O1", "-std=gnu++20", "-o", "main.bin", "main.cpp"],
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
            os.chmod(name, 0o700)
            arguments[0] = "./" + name
    else:
        starts = {"bash": ["bash", "main.sh"], "node": ["node", "main.js"]}
        arguments = starts.get(runtime, ["./main.bin"]) + arguments
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
