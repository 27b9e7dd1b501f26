"""The tools of a checkout: list, read, search, edit, write, delete files, and run its tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from educe.core.types import ToolCall, ToolSpec
from educe.domains.builtin.repo_repair.checkout import Files, SessionFiles, TestReport
from educe.domains.builtin.stateful_tools.tools import ToolFailure, unknown_tool

_MAX_SHOWN, _MAX_HITS, _MAX_FAILURES, _MAX_LINE = 6000, 40, 8, 160


def _spec(name: str, description: str, *parameters: str) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema)


TOOLS = (
    _spec("list_files", "list all files"),
    _spec("read_file", "show a file", "path"),
    _spec("search", "show the lines that contain a text", "text"),
    _spec("edit_file", "replace old, which must occur once, by new", "path", "old", "new"),
    _spec("write_file", "create or replace a file", "path", "content"),
    _spec("delete_file", "delete a file", "path"),
    _spec("run_tests", "run the tests in tests/"),
)
_NAMES = [tool.name for tool in TOOLS]
_SPECS = {tool.name: tool for tool in TOOLS}


def list_files(files: Files) -> str:
    return "\n".join(files.paths())


def read_file(files: Files, path: str) -> str:
    text = files.read(path)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}\n... (cut)"


def search(files: Files, text: str) -> str:
    """Return the lines that contain a text, with their places."""
    if not text:
        raise ToolFailure("the text to search for is empty")
    hits = []
    for path in files.paths():
        try:
            lines = files.read(path).splitlines()
        except ToolFailure:  # not a text
            continue
        for number, line in enumerate(lines, 1):
            if text in line:
                hits.append(f"{path}:{number}: {line.strip()[:_MAX_LINE]}")
    if len(hits) > _MAX_HITS:
        hits[_MAX_HITS:] = [f"... and {len(hits) - _MAX_HITS} more"]
    return "\n".join(hits) or "nothing found"


def edit_file(files: Files, path: str, old: str, new: str) -> str:
    """Replace a text that occurs once."""
    text = files.read(path)
    if not old:
        raise ToolFailure("old is empty; use write_file for a new file")
    count = text.count(old)
    if count != 1:
        raise ToolFailure(f"old occurs {count} times in '{path[:80]}', it must occur once")
    files.write(path, text.replace(old, new))
    return f"edited {path}"


def write_file(files: Files, path: str, content: str) -> str:
    files.write(path, content)
    return f"wrote {path}"


def delete_file(files: Files, path: str) -> str:
    files.remove(path)
    return f"deleted {path}"


_TEXT_TOOLS: Mapping[str, Callable[..., str]] = {
    tool.__name__: tool
    for tool in (list_files, read_file, search, edit_file, write_file, delete_file)
}


def use_tool(files: Files, call: ToolCall) -> str:
    """Carry out a call of a tool other than ``run_tests`` and return its reply.

    Raises:
        ToolFailure: it cannot be done, or the call is not valid.
    """
    arguments = read_arguments(call)
    return _TEXT_TOOLS[call.name](files, **arguments)


def read_arguments(call: ToolCall) -> dict[str, str]:
    """Return a call's arguments; raises ToolFailure when tool or arguments are not right."""
    if call.name not in _SPECS:
        raise unknown_tool(call.name, _NAMES)
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        raise ToolFailure("the arguments are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ToolFailure("the arguments must be a JSON object")
    wanted = _SPECS[call.name].parameters["required"]
    for name in arguments:
        if name not in wanted:
            raise ToolFailure(f"{call.name} has no argument '{name[:40]}'")
    for name in wanted:
        if not isinstance(arguments.get(name), str):
            raise ToolFailure(f"{call.name} needs the argument '{name}', a string")
    return arguments


def run_tests(files: SessionFiles, shown: Sequence[str], failed_before: Sequence[str]) -> str:
    """Run the checkout's test files and say what fails, and what did not fail at the start.

    Args:
        shown: ids of the tests that the test files had at the start.
        failed_before: those of them that failed then.
    """
    paths = [path for path in files.paths() if path.startswith("tests/test")]
    if not any(path.endswith(".py") for path in paths):
        raise ToolFailure("there are no test files tests/test_*.py")
    reports = files.run_tests([path for path in paths if path.endswith(".py")])
    return describe_run(reports, shown, failed_before)


def describe_run(
    reports: Sequence[TestReport], shown: Sequence[str], failed_before: Sequence[str]
) -> str:
    """Return the text that a test run is answered with."""
    passed = {name for name, how, _ in reports if how == "passed"}
    failed = [(name, message) for name, how, message in reports if how != "passed"]
    lines = [f"{len(passed)} passed" + (f", {len(failed)} failed" if failed else "")]
    for name, message in failed[:_MAX_FAILURES]:
        lines.append(f"FAILED {name.removesuffix('::')}: {message[:_MAX_LINE]}")
    if len(failed) > _MAX_FAILURES:
        lines.append(f"... and {len(failed) - _MAX_FAILURES} more")
    broken = [name for name in shown if name not in passed and name not in failed_before]
    if broken:
        more = f" and {len(broken) - _MAX_FAILURES} more" if len(broken) > _MAX_FAILURES else ""
        lines.append(f"Broken by your edits: {', '.join(broken[:_MAX_FAILURES])}{more}")
    return "\n".join(lines)


def edits_between(before: str, after: str) -> list[tuple[str, str]]:
    """Return (old, new) pairs for ``edit_file`` that turn one text into another."""
    import difflib

    edits: list[tuple[str, str]] = []
    while before != after:
        one, other = before.splitlines(keepends=True), after.splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
        _, i, k, j, m = next(step for step in matcher.get_opcodes() if step[0] != "equal")
        while not one[i:k] or before.count("".join(one[i:k])) != 1:
            if i > 0:  # a line before both, where there is one, else one behind
                i, j = i - 1, j - 1
            else:
                k, m = k + 1, m + 1
        old, new = _trimmed(before, one[i:k], other[j:m])
        edits.append((old, new))
        before = before.replace(old, new)
    return edits


def _trimmed(text: str, old_lines: Sequence[str], new_lines: Sequence[str]) -> tuple[str, str]:
    """Return lines as texts, without shared white space around them where that is unambiguous."""
    old, new = "".join(old_lines), "".join(new_lines)
    if len(old_lines) == len(new_lines) == 1:
        margin = len(old) - len(old.lstrip())
        if new[:margin] == old[:margin] and new[margin : margin + 1] != " ":
            short = old.strip()
            if short and text.count(short) == 1:
                return short, new.strip()
    if old.endswith("\n") and new.endswith("\n") and text.count(old[:-1]) == 1:
        return old[:-1], new[:-1]
    return old, new
