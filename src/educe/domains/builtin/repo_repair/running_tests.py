"""Runs test files inside a session and prints what happened. Sent there as text; stands alone.

Each file has a process and a deadline of its own. What it prints is for the model to read: the code
that is tested shares the process and could write it as well, so no reward looks at it.
"""

# ruff: noqa: PTH100, PTH109, PTH123
from __future__ import annotations

import ast
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

MARK = "\x1e"
_MAX_REPORT = 1 << 16


class _Asserts(ast.NodeTransformer):
    """Turns ``assert left == right`` into a call that tells what left was."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        test = node.test
        is_plain = isinstance(test, ast.Compare) and len(test.ops) == 1 and node.msg is None
        if not (is_plain and isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq)):
            return node
        arguments = [test.left, test.comparators[0], ast.Constant(ast.unparse(test.left))]
        call = ast.Call(ast.Name("__check__", ast.Load()), arguments, [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))


def _check(got: Any, expected: Any, text: str) -> None:
    if not got == expected:
        raise AssertionError(f"{text} gave {got!r}, expected {expected!r}")


def _describe(error: BaseException) -> str:
    """Return the error with the place in the checkout where it was raised."""
    home, place, trace = os.getcwd() + "/", "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(home):
            place = f" ({name[len(home) :]} line {trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, AssertionError):
        return str(error) or f"the assertion does not hold{place}"
    return f"{type(error).__name__}: {error}{place}".replace(home, "")


def _run_file(path: str, fd: int) -> None:
    def report(name: str, how: str, text: str = "") -> None:
        os.write(fd, (json.dumps([f"{path}::{name}", how, text[:400]]) + "\n").encode())

    space: dict[str, Any] = {"__name__": "tests", "__file__": path, "__check__": _check}
    sys.path.insert(0, os.getcwd())
    try:
        with open(path, encoding="utf-8") as file:
            tree = _Asserts().visit(ast.parse(file.read(), path))
        exec(compile(tree, os.path.abspath(path), "exec"), space)
    except BaseException as error:
        report("", "error", _describe(error))
        return
    for name, thing in list(space.items()):
        if name.startswith("test") and callable(thing):
            try:
                thing()
            except BaseException as error:
                report(name, "failed", _describe(error))
            else:
                report(name, "passed")
    report("", "end")


def _read(fd: int, pid: int, seconds: float) -> tuple[list[list[str]], str]:
    """Return the reports of a test process, and what went wrong with it."""
    data, deadline, trouble = b"", time.monotonic() + seconds, ""
    while len(data) < _MAX_REPORT:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            trouble = "its tests took too long and were ended"
            break
        part = os.read(fd, 1 << 14)
        if not part:
            break
        data += part
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    reports = [json.loads(line) for line in data.splitlines()]
    if not trouble and not (reports and reports[-1][0].endswith("::")):
        trouble = "its process ended before all tests had run"
    return [report for report in reports if report[1] != "end"], trouble


def main(paths: Sequence[str], seconds: float) -> None:
    """Run test files and print, behind a mark, a JSON list of [id, how it went, message]."""
    found: list[list[str]] = []
    for path in paths:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            try:
                _run_file(path, writer)
            finally:
                os._exit(0)
        os.close(writer)
        reports, trouble = _read(reader, pid, seconds)
        os.close(reader)
        found += reports
        if trouble:
            found.append([f"{path}::", "error", trouble])
    print(MARK + json.dumps(found), flush=True)
