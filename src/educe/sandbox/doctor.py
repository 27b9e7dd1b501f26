"""What this host really enforces, found out by running small attacks, and how to get more."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from educe.core.types import JSON
from educe.sandbox.box import Sandbox, open_sandbox
from educe.sandbox.contract import (
    RUNTIMES,
    BoxVerdict,
    Job,
    Level,
    Limits,
    Result,
    SandboxError,
)
from educe.sandbox.host import missing_runtimes

_LIMITS = Limits(cpu_s=1, wall_s=20, memory_mb=64, disk_mb=4, num_inodes=64, num_processes=8)
# question: (program that attacks; prints "held" when it was stopped, limits)
_ATTACKS: dict[str, str] = {
    "files of the host stay hidden": """
import os, sys
readable = []
for path in (sys.argv[1], "/etc/shadow", "/home", "/var/log", "/etc/machine-id"):
    try: readable.append(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError: pass
print("held" if not readable else readable)
""",
    "other processes stay hidden": """
import os
try: pids = [n for n in os.listdir("/proc") if n.isdigit()]
except OSError: pids = []
print("held" if len(pids) <= 3 else f"{len(pids)} processes seen")
""",
    "no network": """
import socket
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("192.0.2.1", 9)); print("route")
except OSError: print("held")
""",
    "dangerous system calls are refused": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("held" if libc.unshare(0x10000000) < 0 and libc.syscall(9999) < 0 and
      libc.chroot(b".") < 0 and ctypes.get_errno() == 1 else "allowed")
""",
    "no privileges": """
import os
try: status = open("/proc/self/status").read()
except OSError: status = "CapEff:\\t0000000000000000"
print("held" if "CapEff:\\t0000000000000000" in status else "capabilities")
""",
    "files outside keep mode and times": """
import os, sys
path = sys.argv[1]
def look():
    try: about = os.stat(path); return about.st_mode, about.st_mtime
    except OSError: return None
before = look()
for change in (lambda: os.chmod(path, 0o640), lambda: os.utime(path, (1, 1))):
    try: change()
    except OSError: pass
print("held" if look() == before else "changed")
""",
    "disk space is capped": """
try:
    for i in range(16): open(f"f{i}", "wb").write(bytes(2**20))
    print("no cap")
except OSError: print("held")
""",
    "the number of processes is capped": """
import os, time
made = 0
try:
    for _ in range(60):
        if os.fork() == 0: time.sleep(1); os._exit(0)
        made += 1
except OSError: pass
print("held" if made < 20 else made)
""",
}


@dataclass(frozen=True, slots=True)
class LevelReport:
    """One level: whether it can be opened, why not, and what an attack on each layer met."""

    level: Level
    is_available: bool
    reason: str
    held: dict[str, bool]
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All levels of this host, the one used by default, and what would help.

    ``missing`` says why, for each runtime that cannot be run here.
    """

    levels: tuple[LevelReport, ...]
    default: Level | None
    landlock: int
    cgroups: int
    user: str
    advice: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Runtimes that this host can run."""
        return tuple(name for name in RUNTIMES if name not in self.missing)

    def to_json(self) -> dict[str, JSON]:
        return {
            "default": None if self.default is None else self.default.name.lower(),
            "landlock_abi": self.landlock,
            "cgroup_version": self.cgroups,
            "user": self.user,
            "runtimes": list(self.runtimes),
            "missing_runtimes": dict(self.missing),
            "levels": [
                {
                    "level": report.level.name.lower(),
                    "available": report.is_available,
                    "reason": report.reason,
                    "mode": report.mode,
                    "held": report.held,
                }
                for report in self.levels
            ],
            "advice": list(self.advice),
        }


def diagnose() -> Diagnosis:
    """Open every level, attack it, and say what held."""
    reports, facts = [], {"landlock": 0, "cgroups": 0}
    for level in sorted(Level, reverse=True):
        try:
            with open_sandbox(level, num_parallel=1) as sandbox:
                facts.update({k: v for k, v in sandbox.facts.items() if v and k in facts})
                mode = str(sandbox.facts.get("mode", "child processes"))
                reports.append(LevelReport(level, True, "", attack(sandbox), mode))
        except SandboxError as error:
            reason = str(error).split(". Run `educe")[0]
            reports.append(LevelReport(level, False, reason, {}))
    best = next((r.level for r in reports if r.is_available and r.level >= Level.NAMESPACES), None)
    user = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    advice = tuple(_advice(best))
    return Diagnosis(
        tuple(reports), best, facts["landlock"], facts["cgroups"], user, advice, missing_runtimes()
    )


def attack(sandbox: Sandbox) -> dict[str, bool]:
    """Return, per promise, whether it held against a small program that tries to break it."""
    with tempfile.NamedTemporaryFile("w", suffix=".secret") as secret:
        secret.write("a secret")
        secret.flush()
        Path(secret.name).chmod(0o644)
        return _attack(sandbox, secret.name)


def _attack(sandbox: Sandbox, secret: str) -> dict[str, bool]:
    jobs = [Job(source, argv=(secret,), limits=_LIMITS) for source in _ATTACKS.values()]
    hungry = "kept = []\nfor _ in range(40): kept.append(bytearray(b'x' * 10**7))"
    jobs += [Job("while True: pass", limits=_LIMITS), Job(hungry, limits=_LIMITS)]
    *results, endless, memory = sandbox.run_batch(jobs)
    held = {name: _held(result) for name, result in zip(_ATTACKS, results, strict=True)}
    held["endless programs are ended"] = endless.verdict is BoxVerdict.TLE_CPU
    held["memory is capped"] = memory.verdict is BoxVerdict.MLE
    return held


def _held(result: Result) -> bool:
    return result.verdict is BoxVerdict.OK and result.stdout.startswith(b"held")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _advice(best: Level | None) -> list[str]:
    """Return one sentence for each thing that would raise the level here."""
    if not sys.platform.startswith("linux"):
        return [
            f"{platform.system()} has no namespaces, Landlock or seccomp: only level plain works "
            "here, which keeps accidents in but not attackers. Use a Linux machine, a Linux "
            "virtual machine or a Linux container for anything but your own programs."
        ]
    found = []
    if best is None:
        if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
            found.append(
                "AppArmor refuses user namespaces to ordinary programs (Ubuntu 23.10 and later). "
                "Allow them for this interpreter with an AppArmor profile that holds 'userns,', or "
                "for all with: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            )
        if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
            found.append(
                "User namespaces are off for ordinary users. Switch them on with: "
                "sudo sysctl kernel.unprivileged_userns_clone=1"
            )
        if _read("/proc/sys/user/max_user_namespaces") == "0":
            found.append(
                "This host allows no user namespaces. Switch them on with: "
                "sudo sysctl user.max_user_namespaces=10000"
            )
        if _in_container():
            found.append(
                "This is a container whose seccomp profile or capabilities refuse namespaces. "
                "Start it with: docker run --security-opt seccomp=unconfined --security-opt "
                "systempaths=unconfined --cap-add SYS_ADMIN (or run the container in gVisor or a "
                "virtual machine, where that is safer)."
            )
        if not found:
            found.append(
                "The kernel refused namespaces; the reasons above say at which step. "
                "open_sandbox(minimum='confined') runs with Landlock and seccomp alone."
            )
    if best is Level.NAMESPACES and os.geteuid() != 0:
        found.append(
            "Control groups need root or delegation: under systemd, run in a scope of your own "
            "with systemd-run --user --scope -p Delegate=yes COMMAND. Without them memory is "
            "limited per process and watched per job every 50 ms."
        )
    if "microsoft" in platform.release().lower():
        found.append(
            "WSL 2 runs a Linux kernel, so namespaces work; control groups need systemd=true in "
            "/etc/wsl.conf. WSL 1 has none of it."
        )
    return found


def _in_container() -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or "docker" in _read("/proc/1/cgroup")
