"""The sandbox's contract: what a job is, what comes back, and what is refused before it runs.

Everything is validated when it is built, so nothing half-checked is ever written to a pipe or a
disk. A :class:`Result` never is a number: only graders turn results into scores, and ``INFRA`` has
no number by construction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Literal

from educe.core.errors import EduceError, InfrastructureError, did_you_mean
from educe.core.types import JSON, Fault
from educe.sandbox.values import show

MAX_INPUT_BYTES = 64 << 20
MAX_FILES = 2048
_PAGE = 4096  # a file of a box takes up whole pages
_OWN_INODES = 5  # of a box: its folders and the program's text
RUNTIMES = (
    "python", "python-numpy", "python-pytest", "bash", "c", "c++", "node", "executable",
)  # fmt: skip
Network = Literal["none", "loopback"]


class JobError(EduceError, ValueError):
    """A job that cannot be run as written; raised before anything is started or written."""


class SandboxError(InfrastructureError):
    """The sandbox cannot give what was asked of it (level, runtime, or its processes died)."""


class BoxVerdict(StrEnum):
    """How a job ended. Whether its answer is right is a grader's business."""

    OK = "OK"
    CE = "CE"  # did not compile
    RE = "RE"  # ended with a non-zero exit code or by a signal
    TLE_CPU = "TLE_CPU"
    TLE_WALL = "TLE_WALL"
    MLE = "MLE"
    OLE = "OLE"  # wrote more than it may
    PROTO = "PROTO"  # ended without a complete, well-formed result record
    INFRA = "INFRA"  # ours; never becomes a number


class Level(IntEnum):
    """What is enforced, from least to most. Each level was probed by really running it."""

    PLAIN = 1  # process group, rlimits, deadline: keeps accidents in, not attackers
    CONFINED = 2  # + Landlock and seccomp, no namespaces
    NAMESPACES = 3  # + own pid, mount, ipc, uts, net (and user) namespaces, capped tmpfs
    CGROUPS = 4  # + memory and process limits of the whole job by the kernel

    @staticmethod
    def parse(value: Level | str | int) -> Level:
        """Return the level of that name or number.

        Raises:
            JobError: for an unknown one.
        """
        if isinstance(value, str) and not value.isdigit():
            try:
                return Level[value.upper()]
            except KeyError:
                names = [level.name.lower() for level in Level]
                raise JobError(
                    f"unknown sandbox level {value!r}; known: {', '.join(names)}."
                    + did_you_mean(value, names)
                ) from None
        try:
            return Level(int(value))
        except ValueError:
            raise JobError(f"unknown sandbox level {value!r}; expected 1 to 4") from None


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise JobError(f"limit {name} must be a number, got {value!r}")
    if not math.isfinite(value) or not low <= value <= high:
        raise JobError(f"limit {name} must be between {low} and {high}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job may use. Units are in the names; a whole job, unless it says otherwise.

    ``case_wall_s`` bounds each call of a call job (0: only the job's own limits).
    """

    cpu_s: float = 5.0
    wall_s: float = 10.0
    memory_mb: int = 256
    num_processes: int = 32
    num_descriptors: int = 128
    disk_mb: int = 64
    num_inodes: int = 4096
    stdout_bytes: int = 1 << 20
    stderr_bytes: int = 1 << 18
    result_bytes: int = 4 << 20
    case_wall_s: float = 0.0

    def __post_init__(self) -> None:
        _check_range("cpu_s", self.cpu_s, 0.01, 86400)
        _check_range("wall_s", self.wall_s, 0.01, 86400)
        _check_range("case_wall_s", self.case_wall_s, 0, 86400)
        for name, low, high in (
            ("memory_mb", 32, 1 << 20),
            ("num_processes", 1, 4096),
            ("num_descriptors", 16, 65536),
            ("disk_mb", 1, 1 << 16),
            ("num_inodes", 16, 1 << 22),
            ("stdout_bytes", 0, 256 << 20),
            ("stderr_bytes", 0, 256 << 20),
            ("result_bytes", 64, 256 << 20),
        ):
            value = getattr(self, name)
            if type(value) is not int:
                raise JobError(f"limit {name} must be a whole number, got {value!r}")
            _check_range(name, value, low, high)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a job's entry point. Arguments are builtin values (see ``values``)."""

    args: tuple[JSON, ...] = ()
    kwargs: Mapping[str, JSON] = field(default_factory=dict)


def _in_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def check_path(path: str) -> str:
    """Return a relative path inside the job's folder.

    Raises:
        JobError: for absolute paths, ``..``, NUL bytes, empty or overlong names.
    """
    if not isinstance(path, str) or not path:
        raise JobError(f"a file needs a relative path, got {path!r}")
    if "\0" in path:
        raise JobError(f"a file's path must not hold a NUL byte, got {path!r}")
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raise JobError(f"a file's path must be valid Unicode, got {path!r}") from None
    parts = path.split("/")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise JobError(f"a file's path must be relative and stay inside the job, got {path!r}")
    if len(raw) > 1024 or any(len(part.encode()) > 255 for part in parts) or len(parts) > 32:
        raise JobError(f"a file's path is too long or too deep: {path[:80]!r}…")
    return path


@dataclass(frozen=True, slots=True)
class Job:
    """One program to run in isolation.

    Attributes:
        source: the program's text (written as the runtime's main file).
        runtime: ``python``, ``python-numpy``, ``python-pytest``, ``bash``, ``c``, ``c++``, ``node``
            or ``executable`` (then ``argv[0]`` names a program or a file of the job).
        entry_point: name of a function (or ``Class.method``); makes this a call job, whose results
            are in ``Result.calls``. Python only.
        calls: the calls to make, each in a process of its own forked after the import.
        tests: assert-style test texts, run against stubs of the candidate in a process that the
            candidate cannot read; one entry of ``Result.calls`` each. Python only.
        suite: paths of test files among ``files``, run beside the candidate (in its process!); what
            happened to each test is in ``Result.tests``. Python only: with ``python-pytest`` by
            pytest, else ``unittest`` classes and plain functions.
        files: relative path to content, put into the work folder first.
        outputs: relative paths to bring back (regular files only, never through a link).
        idempotency_key: a second job with the same key returns the first one's result.

    Raises:
        JobError: for anything that cannot be run.
    """

    source: str = ""
    runtime: str = "python"
    entry_point: str = ""
    calls: tuple[Call, ...] = ()
    tests: tuple[str, ...] = ()
    suite: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    network: Network = "none"
    seed: int = 0
    idempotency_key: str = ""

    def __post_init__(self) -> None:
        self._check_types()
        if self.runtime not in RUNTIMES:
            raise JobError(
                f"unknown runtime {self.runtime!r}; known: {', '.join(RUNTIMES)}."
                + did_you_mean(str(self.runtime), RUNTIMES)
            )
        if self.network not in ("none", "loopback"):
            raise JobError(f"network must be 'none' or 'loopback', got {self.network!r}")
        if not isinstance(self.limits, Limits):
            raise JobError(f"limits must be a Limits, got {type(self.limits).__name__}")
        if type(self.seed) is not int:
            raise JobError(f"seed must be an int, got {self.seed!r}")
        if self.entry_point:
            self._check_calls()
        elif self.calls:
            raise JobError("calls need an entry_point to call")
        if bool(self.entry_point) + bool(self.tests) + bool(self.suite) > 1:
            raise JobError("a job has an entry_point, tests or a suite, not several of them")
        if (self.tests or self.suite) and not self.runtime.startswith("python"):
            raise JobError(f"tests and suites need a Python runtime, got {self.runtime!r}")
        for path in self.suite:
            if path not in self.files or not path.endswith(".py"):
                raise JobError(f"suite names {path!r}, which is no Python file of the job")
        if self.runtime == "executable" and not self.argv:
            raise JobError("runtime 'executable' needs argv[0], the program to run")
        self._check_texts()
        self._check_sizes()

    def _check_calls(self) -> None:
        if not self.runtime.startswith("python"):
            raise JobError(f"entry_point needs a Python runtime, got {self.runtime!r}")
        if not all(part.isidentifier() for part in self.entry_point.split(".")):
            raise JobError(f"entry_point must be a dotted name, got {self.entry_point!r}")
        if not all(isinstance(call, Call) for call in self.calls):
            raise JobError("calls must be Call objects")

    def _check_types(self) -> None:
        """A text where several are expected would be taken for a tuple of its letters."""
        for names, kind, expected in (
            (("source", "entry_point", "idempotency_key"), str, "text"),
            (("stdin",), bytes, "bytes"),
            (("argv", "outputs", "calls", "tests", "suite"), (tuple, list), "a tuple"),
            (("files", "env"), Mapping, "a mapping"),
        ):
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kind):
                    raise JobError(
                        f"{name} must be {expected}, got {type(value).__name__} ({value!r:.60})"
                    )

    def _check_texts(self) -> None:
        for text in (*self.argv, *self.env, *self.env.values(), *self.tests):
            if not isinstance(text, str) or "\0" in text:
                raise JobError(f"argv and env hold text without NUL bytes, got {text!r}")
        for name in self.env:
            if not name or "=" in name or name.startswith("LD_"):
                raise JobError(f"environment variable {name!r} is not allowed in a job")

    def _check_sizes(self) -> None:
        if len(self.files) > MAX_FILES or len(self.outputs) > MAX_FILES:
            raise JobError(f"a job takes at most {MAX_FILES} files and outputs")
        total = len(self.source) + len(self.stdin)
        on_disk = _in_pages(len(self.source)) + len(self.stdin)
        for path, content in self.files.items():
            check_path(path)
            if not isinstance(content, bytes):
                raise JobError(f"content of {path!r} must be bytes, got {type(content).__name__}")
            total += len(content)
            on_disk += _in_pages(len(content))
        for path in self.outputs:
            check_path(path)
        if self.files:
            self._check_folders()
        if total > MAX_INPUT_BYTES:
            raise JobError(f"a job's inputs may have {MAX_INPUT_BYTES} bytes, these have {total}")
        if on_disk > self.limits.disk_mb << 20:
            raise JobError(
                f"inputs of {total} bytes, {on_disk} in whole pages, do not fit the disk limit of "
                f"{self.limits.disk_mb} MiB"
            )

    def _check_folders(self) -> None:
        """Refuse a name for a file and a folder, and more of them than the job may have."""
        folders = {
            path[:at] for path in self.files for at, letter in enumerate(path) if letter == "/"
        }
        both = folders & set(self.files)
        if both:
            raise JobError(f"files name {min(both)!r} both as a file and as a folder")
        num_needed = len(self.files) + len(folders) + _OWN_INODES
        if num_needed > self.limits.num_inodes:
            raise JobError(
                f"{len(self.files)} files in {len(folders)} folders need {num_needed} inodes, the "
                f"limit num_inodes is {self.limits.num_inodes}"
            )


CallStatus = Literal["returned", "raised", "exited", "timeout", "died", "unserialisable", "missing"]


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one call gave: a builtin value, or why there is none.

    ``value`` only means something when ``status`` is ``returned``. ``error`` is text of the
    candidate's own process: show it, never trust it.
    """

    status: CallStatus
    value: JSON = None
    error: str = ""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """What a suite reported of one test. ``test_id`` is ``path::name`` or ``path::Class::name``."""

    test_id: str
    how: Literal["passed", "failed", "error", "skipped"]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: waiting for a slot, preparing the box, processor time and wall time of the job.

    ``waited_s``: how long its process that waited longest was ready to run while others ran (looked
    at every 50 ms, so 0 for short jobs). ``limit_s``: the wall time it was given, which is more
    than its limit when a busy machine had not let it run the first time.
    """

    queue_s: float = 0.0
    setup_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    waited_s: float = 0.0
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended and what it left. ``level`` and ``fingerprint`` say under which conditions.

    Attributes:
        truncated: names of streams or outputs that were cut.
        flags: ``blocked:…``, ``tamper:…``, ``killed_descendants`` …: noticed, for reports.
    """

    verdict: BoxVerdict
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    outputs: Mapping[str, bytes] = field(default_factory=dict)
    calls: tuple[CallResult, ...] = ()
    tests: tuple[SuiteOutcome, ...] = ()
    truncated: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    times: Times = field(default_factory=Times)
    peak_memory_mb: float = 0.0
    level: Level = Level.PLAIN
    fingerprint: str = ""

    @property
    def fault(self) -> Fault | None:
        """Whose fault a failure was; None when the job simply ended well."""
        if self.verdict is BoxVerdict.OK:
            return None
        infrastructure = self.verdict is BoxVerdict.INFRA
        return Fault.INFRASTRUCTURE if infrastructure else Fault.CANDIDATE

    @property
    def stdout_text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")

    def __bool__(self) -> bool:
        raise TypeError("a Result has no truth value: look at its verdict, or use a grader")

    def __float__(self) -> float:
        raise TypeError("a Result is not a number: use a grader")

    def to_json(self) -> dict[str, JSON]:
        """Return a JSON object; for reports: bytes are decoded with replacement."""
        return {
            "verdict": str(self.verdict),
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout": self.stdout_text,
            "stderr": self.stderr_text,
            "outputs": {k: v.decode("utf-8", "replace") for k, v in self.outputs.items()},
            "calls": [
                {"status": c.status, "value": show(c.value), "error": c.error} for c in self.calls
            ],
            "truncated": list(self.truncated),
            "flags": list(self.flags),
            "times": {
                "queue_s": self.times.queue_s,
                "setup_s": self.times.setup_s,
                "cpu_s": self.times.cpu_s,
                "wall_s": self.times.wall_s,
                "waited_s": self.times.waited_s,
                "limit_s": self.times.limit_s,
            },
            "peak_memory_mb": self.peak_memory_mb,
            "level": self.level.name.lower(),
            "fingerprint": self.fingerprint,
        }
