"""Calls of a job's entry point, each in a process of its own.

Every fork makes all memory of the process shared again, and what either side touches after it is
copied, 2 µs a page: that, and not the calls, is what a test case costs. So the loop keeps to one
function and to names of its own, and everything that is not usual is somewhere else.
"""

from __future__ import annotations

import _thread
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from educe.sandbox.inside import kernel, process_tree
from educe.sandbox.inside.frames import (
    CASE,
    CASE_DIED,
    CASE_HEADER,
    CASE_TIMEOUT,
    HEADER,
    MAX_ERROR,
    clip,
    write_all,
)
from educe.sandbox.inside.typed import encode
from educe.sandbox.inside.waiting import Waiting

# Taken before any candidate code runs: patching the modules later cannot confuse us.
_exit, _write, _read, _close, _pipe = os._exit, os.write, os.read, os.close, os.pipe
_kill, _killpg, _setpgid = os.kill, os.killpg, os.setpgid
_dumps, _encode_text = json.dumps, json.encoder.encode_basestring_ascii
_num_threads, _os_fork, _now = _thread._count, os.fork, time.monotonic
_bare_fork = kernel.fork_bare if sys.platform == "linux" else os.fork
_LEAST_WAIT_S = 0.001  # for a processor, that is worth moving a deadline for
_PATIENCE_MS, _OFTEN_S, _MANY_BYTES = 5, 0.02, 8192  # when results of calls are sent on
_LEAST_INT, _MOST_INT = -(1 << 63), 1 << 63
_TOO_LARGE = b'{"s":"unserialisable","e":"the value is larger than the result limit"}'


def fork() -> int:
    """Fork as cheaply as it can be done.

    With one thread the interpreter's after-fork work has nothing to do (see
    ``kernel.LaidOutFork``), and leaving it out costs a test case a third.
    """
    return _bare_fork() if _num_threads() == 0 else _os_fork()


def make_calls(job: dict[str, Any], function: Any, result_fd: int) -> None:
    """Make a job's calls one after another and send what they gave.

    Results go out together, at the latest when a call takes longer than ``_PATIENCE_MS``: each
    write would wake up the supervisor.
    """
    wall_s, cap = job["limits"]["case_wall_s"], job["limits"]["result_bytes"]
    wait = Waiting().wait if job["is_linux"] else _wait
    pack, unpack, poller, polled = HEADER.pack, CASE_HEADER.unpack_from, select.poll(), -1
    frames, sent_at = b"", _now()
    finish_quietly()  # or every child would print what is buffered again
    for index, (args, kwargs) in enumerate(job["calls"]):
        if _num_threads():
            finish_quietly()  # one of them may have printed
        begun = _now()
        reader, writer = _pipe()
        child = fork()
        if child == 0:
            _close(reader)
            _close(result_fd)
            _call(job, function, args, kwargs, writer)
        _close(writer)
        if reader != polled:
            poller.register(reader, select.POLLIN)
            polled = reader
        if poller.poll(_PATIENCE_MS):
            data = _read(reader, 4096)
        else:
            write_all(result_fd, frames)
            frames, sent_at, data = b"", _now(), b""
        kind, late, body = CASE, False, data[4:]
        if len(data) < 4 or unpack(data)[0] != len(data) - 4 or len(body) > cap:
            deadline = begun + wall_s if wall_s else None
            found, late = _read_case(reader, child, data, deadline, cap)
            kind, body = (CASE, found) if found is not None else (CASE_DIED, b"")
        _close(reader)
        if kind == CASE or late:
            _end(child)
        status, cpu_us, _ = wait(child) or (0, 0, 0)
        if kind != CASE:
            is_late = late or status == -signal.SIGXCPU
            kind, body = (CASE_TIMEOUT, b"") if is_late else (CASE_DIED, b"%d" % status)
        frames += pack(kind, index, cpu_us * 1e-6, len(body)) + body
        if len(frames) > _MANY_BYTES or _now() - sent_at > _OFTEN_S:
            write_all(result_fd, frames)
            frames, sent_at = b"", _now()
    write_all(result_fd, frames)


def _wait(child: int) -> tuple[int, int, int]:
    """Wait for a child; return (status, processor µs, peak memory)."""
    try:
        _, status, usage = os.wait4(child, 0)
    except ChildProcessError:
        return 0, 0, 0  # the candidate said that nobody waits for children
    cpu_us = int((usage.ru_utime + usage.ru_stime) * 1e6)
    return os.waitstatus_to_exitcode(status), cpu_us, usage.ru_maxrss


def _read_case(
    fd: int, child: int, data: bytes, deadline: float | None, cap: int
) -> tuple[bytes | None, bool]:
    """Read what is still to come; return (the case's body or None, whether its time ran out).

    What the case's process spent waiting for a processor is not its time: on a busy machine the
    deadline moves by that, within the time of the whole job.
    """
    waited_s, poller = 0.0, select.poll()
    poller.register(fd, select.POLLIN)
    while True:
        if len(data) >= CASE_HEADER.size:
            (length,) = CASE_HEADER.unpack_from(data)
            if length > cap:
                return _TOO_LARGE, False
            if len(data) >= CASE_HEADER.size + length:
                return data[CASE_HEADER.size : CASE_HEADER.size + length], False
        if deadline is not None:
            left = deadline - _now()
            if left <= 0 or not poller.poll(left * 1000 + 1):
                more_s = process_tree.longest_wait_s([child]) - waited_s
                if more_s >= _LEAST_WAIT_S:
                    deadline, waited_s = deadline + more_s, waited_s + more_s
                elif not process_tree.is_kept_waiting([child], lambda s: poller.poll(s * 1000)):
                    return None, True
                continue
        chunk = _read(fd, 1 << 16)
        if not chunk:
            return None, False
        data += chunk


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
    record: dict[str, Any] | None = None
    body = b""
    try:
        value = function(*args, **kwargs)
        try:
            if type(value) is int and _LEAST_INT < value < _MOST_INT:
                body = b'{"s":"returned","v":%d}' % value  # so short because it is so usual
            else:
                record = {"s": "returned", "v": encode(value)}
        except RecursionError:
            record = {"s": "unserialisable", "e": "the value is nested too deeply"}
        except TypeError as error:
            record = {"s": "unserialisable", "e": str(error)}
    except SystemExit as error:
        record = {"s": "exited", "e": f"SystemExit: {error.code!r}"[:MAX_ERROR]}
    except BaseException as error:
        record = {"s": "raised", "e": clip(_trace(error)).decode("utf-8", "replace")}
    if record is not None:
        body = _to_json(record)
    if len(body) > job["limits"]["result_bytes"]:
        body = _TOO_LARGE
    data = CASE_HEADER.pack(len(body)) + body
    finish_quietly()
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError:
        _exit(1)  # nobody reads any more: the call was late, or its value too large
    _exit(0)


def _trace(error: BaseException) -> str:
    """Return ``Type: text (line n)``, the line being the candidate's innermost one."""
    text = describe(error)
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith("solution.py"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return text if line is None else f"{text} (line {line})"


def _to_json(record: dict[str, Any]) -> bytes:
    """Return a record as JSON; the usual one without the layers of ``json.dumps``."""
    value = record.get("v")
    if type(value) is str and record["s"] == "returned":
        return b'{"s":"returned","v":%s}' % _encode_text(value).encode()
    return _dumps(record).encode()


def describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def finish_quietly() -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            return 0
    return 0
