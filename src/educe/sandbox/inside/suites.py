"""Test files run beside the candidate: ``unittest`` classes and plain ``test_*`` functions, or
whatever pytest makes of them where it is there.

Tests share a process with the code they test, so the candidate can reach them: graders call this
``integrity = in_process`` and training on it must be opted in to. What can be kept out is kept out:
each test file has a process of its own, its report comes over a pipe whose results must carry that
file's name, and whoever waits for it only counts tests that are required by name.

Imported by the jobs that run a suite only: ``unittest`` would make every fork dearer.
"""

# ruff: noqa: PTH100, PTH109, PTH118, PTH119, PTH120, PTH122, PTH123
from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any, NoReturn

_write = os.write
Report = Callable[[str, str, str], None]


class _Recorder(unittest.TestResult):
    def __init__(self, report: Report, names: dict[unittest.TestCase, str]) -> None:
        super().__init__()
        self._report, self._names, self._bad = report, names, False

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._bad = False

    def addSuccess(self, test: unittest.TestCase) -> None:
        if not self._bad:
            self._report(self._names[test], "passed", "")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, "failed", err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, "error", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._report(self._name(test), "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._report(self._names[test], "skipped", "expected to fail")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None and not self._bad:
            self._bad = True
            self._tell(test, "failed", err)

    def _tell(self, test: unittest.TestCase, how: str, err: Any) -> None:
        self._report(self._name(test), how, f"{err[0].__name__}: {err[1]}")

    def _name(self, test: unittest.TestCase) -> str:
        whole = getattr(test, "test_case", test)  # a sub-test speaks for the test around it
        self._bad = self._bad or whole is not test
        return self._names.get(whole, str(whole))


def _see_the_checkout(path: str) -> None:
    """Let modules of the checkout be imported: only now, when those that run tests are loaded."""
    sys.path[:0] = [os.path.join(os.getcwd(), os.path.dirname(path)), os.getcwd()]


def _load(path: str) -> types.ModuleType:
    """Return a test file as a module, made from its text.

    Not imported: a folder or a compiled file of the candidate's beside it would come first.
    """
    module = types.ModuleType(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module
    with open(path, "rb") as file:
        exec(compile(file.read(), module.__file__, "exec"), module.__dict__)
    return module


def run_file(path: str, descriptor: int) -> NoReturn:
    """Import one test file and run what it holds; reports are JSON lines on a descriptor."""

    def report(name: str, how: str, text: str) -> None:
        line = json.dumps([f"{path}::{name}", how, text[:1000]]) + "\n"
        _write(descriptor, line.encode())

    try:
        _see_the_checkout(path)
        module = _load(path)
    except BaseException as error:
        report("", "error", f"cannot be imported: {type(error).__name__}: {error}")
        os._exit(1)
    names: dict[unittest.TestCase, str] = {}
    suite = unittest.TestSuite()
    for name, thing in sorted(vars(module).items()):
        if isinstance(thing, type) and issubclass(thing, unittest.TestCase):
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(thing):
                assert isinstance(test, unittest.TestCase)
                names[test] = f"{name}::{test._testMethodName}"
                suite.addTest(test)
    suite.run(_Recorder(report, names))
    for name, thing in sorted(vars(module).items()):
        if name.startswith("test") and inspect.isfunction(thing):
            _run_function(name, thing, report)
        elif name.startswith("Test") and _is_plain_class(thing):
            _run_class(name, thing, report)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


# Nothing that lies about in the checkout decides how its tests are run.
_PYTEST_OPTIONS = (
    "-c", os.devnull, "-s", "-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler",
)  # fmt: skip


class _PytestReports:
    """Tells one outcome for each test: passed when its call, set-up and tear-down all did."""

    def __init__(self, path: str, report: Report) -> None:
        self._path, self._report = path, report
        self._outcomes: dict[str, tuple[str, str]] = {}

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._report("", "error", f"cannot be collected: {report.longrepr}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        how, known = "passed", self._outcomes.get(report.nodeid, ("", ""))
        if report.failed:
            how = "failed" if report.when == "call" else "error"
        elif report.skipped or hasattr(report, "wasxfail"):
            how = "skipped"
        elif report.when != "call":
            return  # a set-up that went well is no result
        if known[0] in ("", "passed"):
            self._outcomes[report.nodeid] = (how, str(report.longrepr or ""))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        how, text = self._outcomes.pop(nodeid, ("error", "it gave no result"))
        self._report(nodeid.removeprefix(f"{self._path}::"), how, text[-1000:])


def run_with_pytest(path: str, descriptor: int) -> NoReturn:
    """Let pytest run one test file; reports as :func:`run_file` makes them."""

    def report(name: str, how: str, text: str) -> None:
        line = json.dumps([f"{path}::{name}", how, text[:1000]]) + "\n"
        _write(descriptor, line.encode())

    try:
        import pytest

        _see_the_checkout(path)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        where = ("--rootdir", os.getcwd())
        pytest.main([*_PYTEST_OPTIONS, *where, path], plugins=[_PytestReports(path, report)])
    except BaseException as error:
        report("", "error", f"pytest broke off: {type(error).__name__}: {error}")
    os._exit(0)


def _is_plain_class(thing: Any) -> bool:
    return isinstance(thing, type) and not issubclass(thing, unittest.TestCase)


def _run_class(name: str, kind: type, report: Report) -> None:
    for method in sorted(vars(kind)):
        if method.startswith("test"):
            run = functools.partial(_call_method, kind, method)
            _run_function(f"{name}::{method}", run, report)


def _call_method(kind: type, method: str) -> None:
    getattr(kind(), method)()


def _run_function(name: str, function: Callable[[], Any], report: Report) -> None:
    try:
        function()
    except unittest.SkipTest as error:
        report(name, "skipped", str(error))
    except AssertionError as error:
        report(name, "failed", f"AssertionError: {error}")
    except BaseException as error:
        report(name, "error", f"{type(error).__name__}: {error}")
    else:
        report(name, "passed", "")
