"""``educe sandbox``: what this host enforces, and running one program in isolation."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

_SUFFIXES = {
    ".py": "python",
    ".sh": "bash",
    ".c": "c",
    ".cc": "c++",
    ".cpp": "c++",
    ".js": "node",
    ".mjs": "node",
}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("sandbox", help="what isolation this machine offers")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    doctor = actions.add_parser("doctor", help="attack every level and say what held")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(handler=_doctor)
    run = actions.add_parser("run", help="run one program and print how it ended")
    run.add_argument("file", help="program; - reads it from standard input (then Python)")
    run.add_argument("arguments", nargs="*", help="arguments of the program")
    run.add_argument(
        "--runtime", default="", help="python, python-numpy, python-pytest, bash, c, c++, node"
    )
    run.add_argument("--level", help="exactly this level (default: the best this host has)")
    run.add_argument("--stdin", help="file that becomes the program's standard input")
    run.add_argument("--cpu-s", type=float, default=5.0)
    run.add_argument("--wall-s", type=float, default=10.0)
    run.add_argument("--memory-mb", type=int, default=256)
    run.add_argument("--loopback", action="store_true", help="let the program talk to itself")
    run.add_argument("--json", action="store_true")
    run.set_defaults(handler=_run)


def _doctor(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; exit status 1 when the default level cannot be had."""
    from educe.sandbox.doctor import diagnose

    found = diagnose()
    if arguments.json:
        print(json.dumps(found.to_json()))
        return 0 if found.default is not None else 1
    for report in found.levels:
        state = f"yes ({report.mode})" if report.is_available else f"no: {report.reason}"
        print(f"{report.level.name.lower():<11} {state}")
        for promise, held in report.held.items():
            print(f"            {'holds ' if held else 'BROKEN'} {promise}")
    default = "none (fails closed)" if found.default is None else found.default.name.lower()
    print(f"default     {default}; Landlock ABI {found.landlock}, cgroup version {found.cgroups}")
    print(f"runtimes    {', '.join(found.runtimes)}")
    for reason in found.missing.values():
        print(f"            not here: {reason}")
    for sentence in found.advice:
        print(f"- {sentence}")
    return 0 if found.default is not None else 1


def _run(arguments: argparse.Namespace) -> int:
    """Run the program; exit status 0 only for the verdict OK."""
    from educe.core.errors import EduceError
    from educe.sandbox import BoxVerdict, Job, Limits, open_sandbox

    try:
        source = sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text()
        stdin = Path(arguments.stdin).read_bytes() if arguments.stdin else b""
    except OSError as error:
        raise EduceError(f"cannot read {error.filename}: {error.strerror}") from None
    job = Job(
        source,
        runtime=arguments.runtime or _SUFFIXES.get(Path(arguments.file).suffix, "python"),
        argv=tuple(arguments.arguments),
        stdin=stdin,
        limits=Limits(
            cpu_s=arguments.cpu_s, wall_s=arguments.wall_s, memory_mb=arguments.memory_mb
        ),
        network="loopback" if arguments.loopback else "none",
    )
    with open_sandbox(arguments.level) as sandbox:
        result = sandbox.run(job)
    if arguments.json:
        print(json.dumps(result.to_json()))
    else:
        sys.stdout.write(result.stdout_text)
        sys.stdout.flush()
        sys.stderr.write(result.stderr_text)
        reason = f": {result.reason}" if result.reason else ""
        print(
            f"[{result.verdict}{reason}; {result.times.cpu_s:.3f} s cpu, "
            f"{result.peak_memory_mb:.1f} MiB, level {result.level.name.lower()}]",
            file=sys.stderr,
        )
    return 0 if result.verdict is BoxVerdict.OK else 1
