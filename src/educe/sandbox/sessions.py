"""Sessions: a box that stays, for multi-turn work. Python and shell state, files, snapshots.

Every turn has its own limits. ``exit()`` does not end a session; a turn that ends the interpreter
(or is ended for its time) loses the variables, keeps the files, and its result says ``was_reset``.
When the whole box dies the next turn begins in a new one, with nothing left, and says so too.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import marshal
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from educe.core.types import ToolCall, ToolSpec
from educe.sandbox.contract import (
    MAX_FILES,
    MAX_INPUT_BYTES,
    Job,
    JobError,
    SandboxError,
    check_path,
)
from educe.sandbox.inside.sessions import MAX_STRETCH

_LENGTH = struct.Struct("<I")
_MAX_ANSWER = 64 << 20
_GRACE_S = 5.0
MAX_READ = 8 << 20  # bytes of a file that a session's server sends at once


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did.

    Attributes:
        status: ``ok``, ``raised``, ``exited`` (it asked to exit), ``timeout``, ``died`` or, for the
            shell, ``exit N``.
        was_reset: the variables are gone (the files too when ``lost_files``).
    """

    status: str
    stdout: bytes = b""
    stderr: bytes = b""
    is_truncated: bool = False
    was_reset: bool = False
    lost_files: bool = False

    @property
    def text(self) -> str:
        """What to show a model: output, errors, and what it must know about the session."""
        parts = [self.stdout.decode("utf-8", "replace"), self.stderr.decode("utf-8", "replace")]
        if self.is_truncated:
            parts.append("[output was cut]")
        if self.status == "timeout":
            parts.append("[the turn took too long and was ended]")
        if self.was_reset:
            kept = "files are gone too" if self.lost_files else "files are kept"
            parts.append(f"[session reset: variables are gone, {kept}]")
        elif self.status.startswith("exit ") and self.status != "exit 0":
            parts.append(f"[{self.status}]")
        return "\n".join(part.rstrip("\n") for part in parts if part.strip())


class SessionLostError(SandboxError):
    """The box died, and with it the session's files; the next use opens a new one."""


class SessionFileError(JobError):
    """A file of the session that cannot be read or written, and why."""


class Session:
    """One persistent box. Not for two threads at once. Close it, or use it as a context manager."""

    def __init__(self, backend: Any, job: Job) -> None:
        self._backend, self._job = backend, job
        self._sock: socket.socket | None = None
        self._was_opened = False
        self._connect()

    def _connect(self) -> None:
        self._sock = self._backend.connect_session(self._job)
        self._was_opened = True

    def python(self, code: str, *, wall_s: float = 0.0, cpu_s: float = 0.0) -> Turn:
        """Run code in the session's interpreter; a last expression's value is printed."""
        return self._turn("python", code, wall_s, cpu_s)

    def shell(self, command: str, *, wall_s: float = 0.0, cpu_s: float = 0.0) -> Turn:
        """Run a bash command; folder and exported variables last from turn to turn."""
        return self._turn("shell", command, wall_s, cpu_s)

    def read(self, path: str) -> bytes:
        """Return a file's content (at most 8 MiB)."""
        return base64.b64decode(self._file("read", check_path(path))["content"])

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, with the folders above it.

        Raises:
            JobError: for a path that leaves the session, or what is not bytes, or too many.
        """
        if not isinstance(content, bytes):
            raise JobError(f"content of {path!r} must be bytes, got {type(content).__name__}")
        most = min(self._job.limits.disk_mb << 20, MAX_INPUT_BYTES)
        if len(content) > most:
            raise SessionFileError(
                f"cannot write {path!r}: {len(content)} bytes, the session takes {most}"
            )
        self._file("write", check_path(path), content)

    def list(self, path: str = "") -> list[tuple[str, bool, int]]:
        """Return (name, is a folder, bytes) of what a folder holds, in order of names."""
        entries = self._file("list", check_path(path) if path else "")["entries"]
        return [(str(name), bool(folder), int(size)) for name, folder, size in entries]

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all below it."""
        self._file("remove", check_path(path))

    def upload(self, files: Mapping[str, bytes]) -> None:
        """Create or replace files: relative path to content."""
        for path in files:
            check_path(path)
        for path, content in files.items():
            self.write(path, content)

    def download(self, path: str = "") -> dict[str, bytes]:
        """Return the regular files below a folder (the session's own by default): path to content.

        Raises:
            SessionFileError: for a file of over 8 MiB, or more than 2,048 entries or 64 MiB in all.
        """
        found: dict[str, bytes] = {}
        waiting, num_seen, total = [path], 0, 0
        while waiting:
            folder = waiting.pop()
            for name, is_folder, size in self.list(folder):
                inner = f"{folder}/{name}" if folder else name
                num_seen += 1  # folders too: links can make a few look like endlessly many
                total += 0 if is_folder else size
                if num_seen > MAX_FILES or total > MAX_INPUT_BYTES:
                    what = f"{MAX_FILES} files" if num_seen > MAX_FILES else f"{MAX_INPUT_BYTES} B"
                    raise SessionFileError(f"cannot download {path!r}: it has more than {what}")
                if is_folder:
                    waiting.append(inner)
                elif size > MAX_READ:
                    raise SessionFileError(f"cannot download {inner!r}: over {MAX_READ} bytes")
                else:
                    with contextlib.suppress(SessionFileError):  # a pipe, or a link to nowhere
                        found[inner] = self.read(inner)
        return found

    def snapshot(self) -> int:
        """Keep the interpreter's state (a parked fork) and the files; return a number for it."""
        return int(self._file("snapshot")["snapshot"])

    def restore(self, snapshot: int) -> None:
        """Go back to a snapshot; it can be gone back to again, for branching."""
        self._file("restore", snapshot)

    # ---- the same without blocking an event loop ----

    async def python_async(self, code: str, *, wall_s: float = 0.0, cpu_s: float = 0.0) -> Turn:
        """Like :meth:`python`."""
        return await asyncio.to_thread(self.python, code, wall_s=wall_s, cpu_s=cpu_s)

    async def shell_async(self, command: str, *, wall_s: float = 0.0, cpu_s: float = 0.0) -> Turn:
        """Like :meth:`shell`."""
        return await asyncio.to_thread(self.shell, command, wall_s=wall_s, cpu_s=cpu_s)

    async def call_tool_async(self, call: ToolCall) -> str:
        """Like :meth:`call_tool`."""
        return await asyncio.to_thread(self.call_tool, call)

    def close(self) -> None:
        """End the box and everything in it."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._was_opened = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- tools for models ----

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the session's tools; ``ToolSpec.to_openai`` is what OpenAI's interface takes."""
        return TOOLS

    def call_tool(self, call: ToolCall) -> str:
        """Carry out a model's tool call and return the text to answer it with; never raises for
        what the model wrote.
        """
        try:
            arguments = json.loads(call.arguments or "{}")
            answer = self._tool(call.name, arguments)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            answer = f"[tool error: {error}]"
        except SessionLostError as error:  # what the model started has ended it
            answer = f"[session reset: {error}]"
        return answer.encode("utf-8", "backslashreplace").decode()  # file names may be any bytes

    def _tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        spec = next((tool for tool in TOOLS if tool.name == name), None)
        if spec is None:
            known = ", ".join(tool.name for tool in TOOLS)
            return f"[tool error: there is no tool {name!r}; known: {known}]"
        for key in spec.parameters["required"]:
            if not isinstance(arguments.get(key), str):
                return f"[tool error: {name} needs {key!r}, a string]"
        if name == "python":
            return self.python(arguments["code"]).text
        if name == "shell":
            return self.shell(arguments["command"]).text
        if name == "read_file":
            return self.read(arguments["path"]).decode("utf-8", "replace")
        if name == "write_file":
            self.write(arguments["path"], arguments["content"].encode())
            return f"[wrote {arguments['path']}]"
        path = arguments.get("path", "")
        rows = self.list(path if isinstance(path, str) and path not in (".", "") else "")
        return "\n".join(name + ("/" if folder else f"  {size}") for name, folder, size in rows)

    # ---- the wire ----

    def _turn(self, kind: str, text: str, wall_s: float, cpu_s: float) -> Turn:
        if not isinstance(text, str) or "\0" in text:
            raise JobError("a turn is text without NUL bytes")
        for name, value in (("wall_s", wall_s), ("cpu_s", cpu_s)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise JobError(f"a turn's {name} must be a number of 0 or more, got {value!r}")
        limits = self._job.limits
        wall_s = min(wall_s or limits.wall_s, limits.wall_s)
        try:
            answer = self._ask(
                (kind, text, wall_s, min(cpu_s or limits.cpu_s, limits.cpu_s)), wall_s
            )
        except (OSError, EOFError):
            self._lose()
            return Turn("died", was_reset=True, lost_files=True)
        if "error" in answer:
            return Turn("died", stderr=str(answer["error"]).encode())
        return Turn(
            status=str(answer["status"]),
            stdout=base64.b64decode(answer.get("out", "")),
            stderr=base64.b64decode(answer.get("err", "")),
            is_truncated=bool(answer.get("truncated")),
            was_reset=bool(answer["reset"]),
        )

    def _file(self, kind: str, *arguments: Any) -> dict[str, Any]:
        try:
            answer = self._ask((kind, *arguments), 30.0)
        except (OSError, EOFError):
            self._lose()
            raise SessionLostError("the session's box died; its files are gone") from None
        if "error" in answer:
            where = f" {arguments[0]!r}" if arguments else ""
            raise SessionFileError(f"cannot {kind}{where}: {answer['error']}")
        return answer

    def _lose(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _ask(self, request: tuple[Any, ...], wall_s: float) -> dict[str, Any]:
        if self._sock is None:
            if not self._was_opened:
                raise SandboxError("this session is closed")
            self._connect()
        assert self._sock is not None
        self._sock.settimeout(MAX_STRETCH * wall_s + _GRACE_S)
        data = marshal.dumps(request)
        self._sock.sendall(_LENGTH.pack(len(data)) + data)
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > _MAX_ANSWER:
            raise EOFError("the answer is too long")
        try:
            answer = json.loads(self._exactly(length))
        except (ValueError, RecursionError):
            raise EOFError("a malformed answer") from None
        if not isinstance(answer, dict):
            raise EOFError("a malformed answer")
        return answer

    def _exactly(self, count: int) -> bytes:
        assert self._sock is not None
        data = bytearray()
        while len(data) < count:
            part = self._sock.recv(min(count - len(data), 1 << 20))
            if not part:
                raise EOFError("the session's box is gone")
            data += part
        return bytes(data)


def _tool(name: str, description: str, required: tuple[str, ...], **fields: str) -> ToolSpec:
    properties = {key: {"type": "string", "description": text} for key, text in fields.items()}
    return ToolSpec(
        name,
        description,
        {"type": "object", "properties": properties, "required": list(required)},
    )


TOOLS = (
    _tool(
        "python",
        "Run Python in a session that keeps its variables; the last expression's value is shown.",
        ("code",),
        code="the program text",
    ),
    _tool("shell", "Run a bash command in the session.", ("command",), command="the command line"),
    _tool("read_file", "Show a file of the session.", ("path",), path="relative path"),
    _tool(
        "write_file",
        "Create or replace a file of the session.",
        ("path", "content"),
        path="relative path",
        content="the whole text",
    ),
    _tool("list_files", "List a folder of the session.", (), path="relative path, empty for all"),
)
