"""Candidates that go for the graders' own processes; prints what each was paid as JSON.

Run as an ordinary user too: there the grader's processes, the pipes between them and the candidate
belong to one user, so only what is said to the kernel keeps them apart.
"""

from __future__ import annotations

import json
import os
import sys

from educe.sandbox import Case, Sandbox, grade_asserts, grade_function, grade_suite, open_sandbox

# Opens whatever it can of its parents' descriptors and memory, and reports for all tests.
OPENER = """
import json, os, signal, struct
def send(fd, kind, index=0, body=b""):
    os.write(fd, struct.pack("<BIfI", kind, index, 0.0, len(body)) + body)
def forge():
    for pid in (os.getppid(), 2, 1):
        for fd in range(3, 10):
            try:
                path = f"/proc/{pid}/fd/{fd}"
                if "pipe:" not in os.readlink(path) or pid == os.getpid(): continue
                out = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                send(out, 1)
                for index in range(3): send(out, 2, index, b'{"s": "returned", "v": true}')
                for name in NAMES: send(out, 10, 0, json.dumps([name, "passed", ""]).encode())
                send(out, 5)
            except OSError: pass
        try: os.open(f"/proc/{pid}/mem", os.O_RDWR)
        except OSError: pass
    if os.getppid() > 1:
        try: os.kill(os.getppid(), signal.SIGKILL)
        except OSError: pass
NAMES = ["tests/test_a.py::test_one", "tests/test_b.py::test_two"]
forge()
def f(x):
    forge()
    return 0
"""
ASSERTS = ("assert f(2) == 5", "assert f(3) == 10", "assert f(1) == 2")
SUITE = {
    "tests/test_a.py": b"from pkg.a import f\ndef test_one(): assert f(1) == 2\n",
    "tests/test_b.py": b"def test_two(): assert False\n",
}
IDS = ("tests/test_a.py::test_one", "tests/test_b.py::test_two")
# The window that a tester would leave open, if there were one, is narrow.
_TRIES = 12


def payments(sandbox: Sandbox) -> dict[str, list[float | None]]:
    """Return what the graders paid the forger."""
    package = {"pkg/__init__.py": b"", "pkg/a.py": OPENER.encode()}
    cases = [Case((x,), x * x + 1) for x in (1, 2, 3)]
    return {
        "asserts": [grade_asserts(sandbox, OPENER, ASSERTS).score().value for _ in range(_TRIES)],
        "function": [grade_function(sandbox, OPENER, "f", cases).score().value],
        "suite of another file": [grade_suite(sandbox, package, SUITE, IDS[1:]).score().value],
    }


def controls(sandbox: Sandbox) -> dict[str, float | None]:
    """Return what an honest program is paid by the same graders."""
    source = "def f(x): return x * x + 1\n"
    package = {"pkg/__init__.py": b"", "pkg/a.py": source.encode()}
    cases = [Case((x,), x * x + 1) for x in (1, 2, 3)]
    return {
        "asserts": grade_asserts(sandbox, source, ASSERTS).score().value,
        "function": grade_function(sandbox, source, "f", cases).score().value,
        "suite": grade_suite(sandbox, package, SUITE, IDS[:1]).score().value,
    }


def main() -> None:
    with open_sandbox(sys.argv[1], num_parallel=1) as sandbox:
        told = {"uid": os.getuid(), "paid": payments(sandbox), "honest": controls(sandbox)}
        print(json.dumps(told))


if __name__ == "__main__":
    main()
