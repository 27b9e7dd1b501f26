"""The package as the model works on it: files behind tools, in memory or in a session's box.

A checkout is JSON between two turns, because a turn may be answered by any process and again after
a resume. Within a turn its calls are carried out in one session, and the files are carried back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from educe.core.errors import InfrastructureError
from educe.domains.builtin.repo_repair import running_tests
from educe.domains.builtin.stateful_tools.tools import ToolFailure

if TYPE_CHECKING:
    from educe.sandbox import Sandbox, Session

MAX_FILES, MAX_FILE_BYTES, _MAX_KEPT_BYTES = 120, 1 << 15, 1 << 20
_MAX_DEPTH = 6
_FILE_SECONDS, _CPU_S, _WALL_S, _MEMORY_MB = 2.0, 4.0, 8.0, 256

TestReport = tuple[str, str, str]
"""A test's id, ``passed``, ``failed`` or ``error``, and a message."""


class Files(Protocol):
    """Text files by relative path. Methods raise ToolFailure for what cannot be done."""

    def paths(self) -> list[str]: ...

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None: ...

    def remove(self, path: str) -> None: ...


def check_place(path: str) -> str:
    """Return the path; raises ToolFailure when it leaves the checkout or is hidden."""
    from educe.sandbox.contract import JobError, check_path

    try:
        check_path(path)
    except JobError as error:
        raise ToolFailure(str(error)[:200]) from None
    if any(part.startswith(".") for part in path.split("/")):
        raise ToolFailure("hidden files are not part of the repository")
    return path


def check_text(text: str) -> str:
    """Return the text; raises ToolFailure when it is no valid Unicode or too long for a file."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolFailure("the content is not valid Unicode") from None
    if size > MAX_FILE_BYTES:
        raise ToolFailure(f"a file may have {MAX_FILE_BYTES} bytes")
    return text


class MemoryFiles:
    """A checkout in a dictionary: shows what tools answer where no code is run."""

    def __init__(self, tree: Mapping[str, str]) -> None:
        self.tree = dict(tree)

    def paths(self) -> list[str]:
        return sorted(self.tree)

    def read(self, path: str) -> str:
        if path not in self.tree:
            raise ToolFailure(f"there is no file '{path[:80]}'")
        return self.tree[path]

    def write(self, path: str, text: str) -> None:
        self.tree[check_place(path)] = check_text(text)

    def remove(self, path: str) -> None:
        self.read(path)
        del self.tree[path]


class SessionFiles:
    """A checkout in a sandbox session, opened when first needed. Close it.

    ``tree`` is what the next turn begins with.
    """

    def __init__(self, sandbox: Sandbox, tree: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._session: Session | None = None
        self.tree = dict(tree)

    def _open(self) -> Session:
        if self._session is None:
            from educe.sandbox.contract import Limits

            limits = Limits(cpu_s=_CPU_S, wall_s=_WALL_S, memory_mb=_MEMORY_MB)
            files = {path: text.encode() for path, text in self.tree.items()}
            self._session = self._sandbox.open_session(limits=limits, files=files)
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def paths(self) -> list[str]:
        return sorted(self._walk("", 0))

    def _walk(self, folder: str, depth: int) -> list[str]:
        from educe.sandbox.contract import JobError

        found: list[str] = []
        for name, is_folder, size in self._open().list(folder):
            path = f"{folder}/{name}" if folder else name
            try:
                check_place(path)
                if is_folder and name != "__pycache__" and depth < _MAX_DEPTH:
                    found += self._walk(path, depth + 1)
                elif not is_folder and size <= MAX_FILE_BYTES:
                    found.append(path)
            except (ToolFailure, JobError):  # no name of ours, or gone or closed by now
                continue
            if len(found) >= MAX_FILES:
                break
        return found[:MAX_FILES]

    def read(self, path: str) -> str:
        from educe.sandbox.sessions import SessionFileError

        check_place(path)
        try:
            return self._open().read(path).decode()
        except SessionFileError:
            raise ToolFailure(f"there is no file '{path[:80]}'") from None
        except UnicodeDecodeError:
            raise ToolFailure(f"'{path[:80]}' is not a text file") from None

    def write(self, path: str, text: str) -> None:
        from educe.sandbox.sessions import SessionFileError

        check_place(path)
        if path not in self.tree and len(self.tree) >= MAX_FILES:
            raise ToolFailure(f"a repository may have {MAX_FILES} files")
        try:
            self._open().write(path, check_text(text).encode())
        except SessionFileError as error:
            raise ToolFailure(str(error)[:200]) from None
        self.tree[path] = text

    def remove(self, path: str) -> None:
        from educe.sandbox.sessions import SessionFileError

        self.read(path)
        try:
            self._open().remove(path)
        except SessionFileError as error:
            raise ToolFailure(str(error)[:200]) from None
        self.tree.pop(path, None)

    def run_tests(self, paths: Sequence[str]) -> list[TestReport]:
        """Run test files in the box, carry the files back, and leave the box.

        Raises:
            ToolFailure: the run ended without a report.
        """
        program = Path(running_tests.__file__).read_text(encoding="utf-8")
        turn = self._open().python(f"{program}\n\nmain({list(paths)!r}, {_FILE_SECONDS})\n")
        try:
            if not turn.lost_files:
                self.tree = self._texts()
        except InfrastructureError:  # the tested code broke the box; what was written is kept
            pass
        finally:
            self.close()
        reports = _parse(turn.stdout.decode("utf-8", "replace"))
        if reports is None:
            raise ToolFailure(f"the test run broke off: {turn.text[-200:] or turn.status}")
        return reports

    def _texts(self) -> dict[str, str]:
        """Return the text files that are in the box now, as many as a checkout may keep."""
        found: dict[str, str] = {}
        size = 0
        for path in self.paths():
            try:
                text = self.read(path)
            except ToolFailure:  # not a text
                continue
            size += len(text.encode())
            if size > _MAX_KEPT_BYTES:
                break
            found[path] = text
        return found


def _parse(text: str) -> list[TestReport] | None:
    try:
        rows: Any = json.loads(text.rpartition(running_tests.MARK)[2])
        return [(str(name), str(how), str(message)) for name, how, message in rows]
    except (ValueError, TypeError, RecursionError):
        return None
