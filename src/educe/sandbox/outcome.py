"""From raw facts about a dead job to its verdict, the same for every level.

The facts are the kernel's (exit status, limits hit) and ours (deadline, overflow); the frames come
from the candidate's side and are parsed as hostile bytes.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from typing import Any

from educe.sandbox import values
from educe.sandbox.contract import BoxVerdict, CallResult, Job, Level, Result, SuiteOutcome, Times
from educe.sandbox.inside import frames as wire_frames

Buffer = bytes | bytearray


@dataclass(slots=True)
class Ending:
    """What is known about how a job ended. ``status`` is negative for a signal."""

    status: int | None = None
    late: bool = False
    cpu_late: bool = False  # the job's processes together used too much processor time
    broke_twice: bool = False
    overflow: str = ""
    out_of_memory: bool = False
    broken: str = ""  # our own failure, in words
    times: Times = field(default_factory=Times)
    peak_memory_mb: float = 0.0
    outputs: dict[str, bytes] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    level: Level = Level.PLAIN
    fingerprint: str = ""


@dataclass(slots=True)
class Frames:
    """The parsed result channel."""

    cases: dict[int, CallResult] = field(default_factory=dict)
    tests: dict[str, SuiteOutcome] = field(default_factory=dict)
    compile_error: str | None = None
    import_error: str | None = None
    import_exit: str | None = None
    memory_error: bool = False
    started: bool = False
    ended: bool = False
    tamper: str = ""


def parse_frames(data: Buffer, num_calls: int) -> Frames:
    """Parse the result channel; never raises, forged or broken frames are named in ``tamper``."""
    frames = Frames()
    at, header = 0, wire_frames.HEADER
    while at < len(data):
        if at + header.size > len(data):
            frames.tamper = "half a frame"
            break
        kind, index, cpu_s, length = header.unpack_from(data, at)
        at += header.size
        body = bytes(data[at : at + length])
        if len(body) < length:
            frames.tamper = "half a frame"
            break
        at += length
        _take_frame(frames, kind, index, cpu_s, body, num_calls)
    return frames


def _take_frame(
    frames: Frames, kind: int, index: int, cpu_s: float, body: bytes, num_calls: int
) -> None:
    text = body[: wire_frames.MAX_ERROR + 8].decode("utf-8", "replace")
    if kind in (wire_frames.CASE, wire_frames.CASE_TIMEOUT, wire_frames.CASE_DIED):
        if index in frames.cases or index >= num_calls or frames.ended:
            frames.tamper = f"an unexpected result for call {index}"
            return
        cpu_s = cpu_s if 0 <= cpu_s < 1e9 else 0.0
        if kind == wire_frames.CASE_TIMEOUT:
            frames.cases[index] = CallResult("timeout", error="took too long", cpu_s=cpu_s)
        elif kind == wire_frames.CASE_DIED:
            frames.cases[index] = CallResult("died", error=_death(text), cpu_s=cpu_s)
        else:
            frames.cases[index] = _parse_case(frames, body, cpu_s)
    elif kind == wire_frames.TEST:
        _take_test(frames, body)
    elif kind == wire_frames.START:
        frames.started = True
    elif kind == wire_frames.END:
        frames.ended = True
    elif kind == wire_frames.COMPILE:
        frames.compile_error = text
    elif kind == wire_frames.IMPORT:
        frames.import_error = text
    elif kind == wire_frames.IMPORT_EXIT:
        frames.import_exit = text
    elif kind == wire_frames.MEMORY:
        frames.memory_error = True
    else:
        frames.tamper = f"a frame of unknown kind {kind}"


def _take_test(frames: Frames, body: bytes) -> None:
    try:
        name, how, message = json.loads(body)
        if how not in ("passed", "failed", "error", "skipped") or not isinstance(name, str):
            raise ValueError
        name = _printable(name)
        outcome = SuiteOutcome(name, how, _printable(str(message)[:1000]))
    except (ValueError, TypeError, RecursionError):
        frames.tamper = "a malformed report"
        return
    if name in frames.tests:
        frames.tamper = f"two reports of {name[:80]}"
    frames.tests[name] = outcome


def _parse_case(frames: Frames, body: bytes, cpu_s: float) -> CallResult:
    try:
        return _case_result(json.loads(body), cpu_s)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # Our runner writes none of these: somebody else wrote on the channel. The call counts as
        # failed and the whole job as tampered with, so nothing is lost by not looking further.
        frames.tamper = f"a malformed result ({type(error).__name__})"
        return CallResult("died", error="sent a malformed result", cpu_s=cpu_s)


def _case_result(record: Any, cpu_s: float) -> CallResult:
    """Return the result that a decoded record stands for.

    Raises:
        ValueError, TypeError, KeyError: for a record of another form.
    """
    status, error = record["s"], record.get("e", "")
    if status == "returned":
        return CallResult("returned", values.decode(record["v"]), cpu_s=cpu_s)
    if status in ("raised", "exited", "unserialisable") and isinstance(error, str):
        return CallResult(status, error=_printable(error), cpu_s=cpu_s)
    raise ValueError("unknown status")


def _printable(text: str) -> str:
    """Return text that every encoder takes: JSON carries lone surrogates through."""
    return text.encode("utf-8", "backslashreplace").decode()


def _death(text: str) -> str:
    try:
        code = int(text)
    except ValueError:
        return "ended without a result"
    if code >= 0:
        return f"ended without a result (exit code {code})"
    return f"killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11, and ``signal 70`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def conclude(job: Job, ending: Ending, stdout: Buffer, stderr: Buffer, channel: Buffer) -> Result:
    """Return the result of a job from everything that is known about it."""
    num_calls = len(job.calls) or len(job.tests)
    frames = parse_frames(channel, num_calls)
    calls = tuple(
        frames.cases.get(index, CallResult("missing", error="no result arrived"))
        for index in range(num_calls)
    )
    verdict, reason = _verdict(job, ending, frames, calls)
    flags = list(ending.flags)
    if frames.tamper:
        flags.append(f"tamper:{frames.tamper}")
    truncated = list(ending.truncated)
    if ending.overflow:
        truncated.append(ending.overflow)
    status = ending.status
    return Result(
        verdict=verdict,
        reason=reason,
        exit_code=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        stdout=bytes(stdout),
        stderr=bytes(stderr),
        outputs=ending.outputs,
        calls=calls,
        tests=tuple(frames.tests.values()),
        truncated=tuple(truncated),
        flags=tuple(flags),
        times=ending.times,
        peak_memory_mb=ending.peak_memory_mb,
        level=ending.level,
        fingerprint=ending.fingerprint,
    )


def _verdict(
    job: Job, ending: Ending, frames: Frames, calls: tuple[CallResult, ...]
) -> tuple[BoxVerdict, str]:
    limits, status = job.limits, ending.status
    if ending.broke_twice:
        return BoxVerdict.PROTO, f"the job broke its sandbox twice: {ending.broken}"
    if ending.broken:
        return BoxVerdict.INFRA, ending.broken
    if ending.overflow:
        return BoxVerdict.OLE, f"wrote more than allowed to {ending.overflow}"
    if ending.out_of_memory:
        return BoxVerdict.MLE, f"needed more than {limits.memory_mb} MiB"
    if (
        ending.cpu_late
        or status == -signal.SIGXCPU
        or (status is not None and status < 0 and ending.times.cpu_s >= limits.cpu_s)
    ):
        return BoxVerdict.TLE_CPU, f"used more than {limits.cpu_s:g} s of processor time"
    if ending.late:
        if ending.times.cpu_s >= limits.cpu_s:
            return BoxVerdict.TLE_CPU, f"used more than {limits.cpu_s:g} s of processor time"
        allowed_s = max(limits.wall_s, ending.times.limit_s)
        return BoxVerdict.TLE_WALL, f"did not end within {allowed_s:.4g} s"
    if frames.compile_error is not None:
        return BoxVerdict.CE, frames.compile_error
    if frames.memory_error:
        return BoxVerdict.MLE, f"needed more than {limits.memory_mb} MiB"
    if frames.tamper:
        return BoxVerdict.PROTO, f"the result channel held {frames.tamper}"
    if job.entry_point or job.tests or job.suite:
        return _call_verdict(frames, calls, status)
    if status is None:
        return BoxVerdict.INFRA, "the exit status was lost"
    if status < 0:
        return BoxVerdict.RE, f"killed by {signal_name(-status)}"
    if status > 0:
        return BoxVerdict.RE, f"exit code {status}"
    return BoxVerdict.OK, ""


def _call_verdict(
    frames: Frames, calls: tuple[CallResult, ...], status: int | None
) -> tuple[BoxVerdict, str]:
    if frames.import_error is not None:
        return BoxVerdict.RE, frames.import_error
    if frames.import_exit is not None:
        return BoxVerdict.PROTO, f"the program ended itself while loading: {frames.import_exit}"
    if not frames.ended and status is not None and status < 0:
        return BoxVerdict.RE, f"killed by {signal_name(-status)}"
    if not frames.ended:
        return (
            BoxVerdict.PROTO,
            f"the program ended (exit code {status}) before all calls were made",
        )
    for index, call in enumerate(calls):
        if call.status in ("died", "exited", "missing"):
            return BoxVerdict.PROTO, f"call {index}: {call.error}"
    return BoxVerdict.OK, ""
