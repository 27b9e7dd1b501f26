"""The lowest level: a child process with rlimits, its own session, a deadline and drained pipes.

It keeps accidents in, not attackers: the program sees the file system and the network of the user
who runs it. Used where nothing better exists (macOS, locked-down containers) and only by opting in.
"""

from __future__ import annotations

import marshal
import os
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from educe.sandbox.contract import BoxVerdict, Job, Level, Limits, Result, Times
from educe.sandbox.fingerprint import host_fingerprint, job_fingerprint
from educe.sandbox.inside import process_tree
from educe.sandbox.inside.folders import remove_tree
from educe.sandbox.launch import command
from educe.sandbox.outcome import Ending, conclude
from educe.sandbox.payload import base_environment, import_paths, job_payload, preloads


def run_plain(job: Job) -> Result:
    """Run one job as an ordinary child process and return how it ended."""
    result = _run_once(job, job.limits.wall_s)
    starved_s = result.times.waited_s
    if result.verdict is BoxVerdict.TLE_WALL and starved_s > 0.1 * job.limits.wall_s:
        # A machine that lets it wait is not the job's fault.
        result = _run_once(job, job.limits.wall_s + 2 * starved_s)
    return result


def _run_once(job: Job, wall_s: float) -> Result:
    begun = time.monotonic()
    folder = tempfile.mkdtemp(prefix="educe-job-")
    try:
        return _run_in(job, folder, begun, wall_s)
    except OSError as error:
        return Result(BoxVerdict.INFRA, f"cannot start a process: {error}", level=Level.PLAIN)
    finally:
        remove_tree(folder)


def _run_in(job: Job, folder: str, begun: float, wall_s: float) -> Result:
    payload = job_payload(job)
    payload["import_paths"] = import_paths(job.runtime)
    payload["preload"] = preloads(job.runtime)
    payload["limit_address_space"] = job.runtime != "node"
    with tempfile.TemporaryFile() as job_file, tempfile.TemporaryFile() as stdin_file:
        job_file.write(marshal.dumps(payload) + marshal.dumps(list(job.tests)))
        job_file.seek(0)
        stdin_file.write(job.stdin)
        stdin_file.seek(0)
        result_read, result_write = os.pipe()
        try:
            process = subprocess.Popen(
                command("runner", str(job_file.fileno()), str(result_write)),
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(job_file.fileno(), result_write),
                cwd=folder,
                env=base_environment(folder),
                start_new_session=True,
            )
        except BaseException:
            os.close(result_read)
            raise
        finally:
            os.close(result_write)
    started = time.monotonic()
    with process:
        streams, ending = _watch(process, result_read, job.limits, started + wall_s)
    ending.level = Level.PLAIN
    ending.fingerprint = job_fingerprint(job, host_fingerprint(Level.PLAIN.name))
    ending.times = Times(
        setup_s=started - begun,
        cpu_s=ending.times.cpu_s,
        wall_s=time.monotonic() - started,
        waited_s=ending.times.waited_s,
        limit_s=wall_s,
    )
    for path in job.outputs:
        _collect(Path(folder), path, ending, job.limits)
    return conclude(job, ending, streams[0], streams[1], streams[2])


def _watch(
    process: subprocess.Popen[bytes], result_read: int, limits: Limits, deadline: float
) -> tuple[list[bytearray], Ending]:
    """Drain the three channels while waiting; kill the whole group when time or space runs out."""
    assert process.stdout is not None and process.stderr is not None
    caps = [limits.stdout_bytes, limits.stderr_bytes, limits.result_bytes * 2 + (1 << 16)]
    names = ["stdout", "stderr", "result"]
    kept = [bytearray(), bytearray(), bytearray()]
    ending = Ending()
    exited = False
    with selectors.DefaultSelector() as selector:
        files: list[Any] = [process.stdout.fileno(), process.stderr.fileno(), result_read]
        for index, fd in enumerate(files):
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ, index)
        try:
            while selector.get_map():
                if not exited and _has_exited(process.pid):
                    exited = True
                    # Descendants that hold a pipe open must not hold us up.
                    _kill_group(process)
                    deadline = min(deadline, time.monotonic() + 0.2)
                left = deadline - time.monotonic()
                if left <= 0:
                    ending.late = not exited
                    break
                for key, _ in selector.select(min(left, 0.02)):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                        continue
                    room = caps[key.data] - len(kept[key.data])
                    kept[key.data] += chunk[:room]
                    if len(chunk) > room:
                        ending.overflow = names[key.data]
                        break
                if ending.overflow:
                    break
            while not exited and not ending.late and not ending.overflow:
                exited = _has_exited(process.pid)
                ending.late = not exited and time.monotonic() >= deadline
                time.sleep(0.002)
        finally:
            waited_s = process_tree.longest_wait_s([process.pid])
            _kill_group(process)
            os.close(result_read)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ending.status = process.returncode
    ending.times = Times(cpu_s=usage.ru_utime + usage.ru_stime, waited_s=waited_s)
    ending.peak_memory_mb = usage.ru_maxrss / 1024
    return kept, ending


def _has_exited(pid: int) -> bool:
    """Return whether the child is dead, without reaping it (its group id must stay taken)."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _collect(folder: Path, path: str, ending: Ending, limits: Limits) -> None:
    """Read a wanted output: a regular file below the folder, reached through no link."""
    current = folder
    for part in path.split("/"):
        current = current / part
        if current.is_symlink():
            return
    if not current.is_file():
        return
    cap = limits.disk_mb << 20
    with current.open("rb") as file:
        content = file.read(cap + 1)
    if len(content) > cap:
        ending.truncated.append(path)
    ending.outputs[path] = content[:cap]
