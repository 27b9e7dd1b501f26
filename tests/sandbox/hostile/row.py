"""One hostile program: its text, its limits, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from educe.sandbox import Job, Level, Limits, Result

# Wall time is generous: these end by what they use, on a busy machine too.
FAST = Limits(cpu_s=0.4, wall_s=60.0, memory_mb=64, disk_mb=8, num_inodes=256, num_processes=16)
SLEEPY = Limits(cpu_s=2.0, wall_s=0.5, memory_mb=64, disk_mb=8, num_inodes=256, num_processes=16)
CALM = Limits(cpu_s=4.0, wall_s=120.0, memory_mb=128, disk_mb=8, num_inodes=256, num_processes=16)


@dataclass(frozen=True)
class Row:
    """One program. ``levels`` are those at which the promise is made."""

    name: str
    source: str
    verdicts: str
    prints: str = ""
    never: str = ""
    limits: Limits = CALM
    levels: tuple[Level, ...] = (Level.CONFINED, Level.NAMESPACES, Level.CGROUPS)
    runtime: str = "python"
    network: Literal["none", "loopback"] = "none"
    stdin: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    truncated: bool = False
    flag: str = ""

    def job(self) -> Job:
        return Job(
            self.source,
            runtime=self.runtime,
            limits=self.limits,
            network=self.network,
            stdin=self.stdin,
            files=self.files,
        )

    def complaint(self, result: Result) -> str:
        """Return what is wrong with a result, or an empty string."""
        where = f"{self.name} at {result.level.name.lower()}: "
        shown = f" ({result.reason}; {result.stdout[-200:]!r}; {result.stderr[-300:]!r})"
        if str(result.verdict) not in self.verdicts.split("|"):
            return f"{where}{result.verdict}, expected {self.verdicts}{shown}"
        text = result.stdout_text
        if self.prints and self.prints not in text:
            return f"{where}{self.prints!r} was not printed{shown}"
        if self.never and self.never in text:
            return f"{where}{self.never!r} was printed{shown}"
        if self.truncated and not result.truncated:
            return f"{where}nothing was marked as truncated{shown}"
        if self.flag and self.flag not in result.flags:
            return f"{where}the flag {self.flag} is missing{shown}"
        return ""


BOXED = (Level.NAMESPACES, Level.CGROUPS)
COUNTED = (Level.CGROUPS,)
TRY = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *arguments):
    result = getattr(libc, name)(*arguments)
    code = ctypes.get_errno()
    print(name, "ALLOWED" if result >= 0 else "refused", errno.errorcode.get(code, code))
def number(name, n, *arguments):
    result = libc.syscall(n, *arguments)
    code = ctypes.get_errno()
    print(name, "ALLOWED" if result >= 0 else "refused", errno.errorcode.get(code, code))
"""
