"""Assert-style tests, run in a process of their own against stubs of the candidate.

Three processes in one box: the *tester* holds the tests and the result channel and never runs
candidate code; the *host* imported the candidate and was forked before the tests were read; for
each test the host forks a *server* that makes the calls. Values come back as typed JSON, so an
object that is equal to everything arrives as a handle, not as itself. The tester's memory cannot be
opened by the others (it is not dumpable), and killing it only loses the reward.
"""

from __future__ import annotations

import builtins
import json
import marshal
import os
import socket
import struct
import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from educe.sandbox.inside import typed

_LENGTH = struct.Struct("<I")
_MAX_ANSWER = 16 << 20
_loads = json.loads


class CandidateError(Exception):
    """The candidate raised something that is not a builtin exception."""


class Remote:
    """A candidate's object: calls and attributes go to the process that owns it."""

    def __init__(self, link: Link, handle: int, name: str) -> None:
        self.__dict__.update(_link=link, _handle=handle, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask("get", self._handle, name, (), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("call", self._handle, "", args, kwargs)

    def __bool__(self) -> bool:
        raise TypeError("an object of the candidate has no truth value here")

    def __repr__(self) -> str:
        return f"<{self._name} of the candidate>"


def _special(name: str) -> Callable[..., Any]:
    def method(self: Remote, *args: Any) -> Any:
        return self._link.ask("special", self._handle, name, args, {})

    return method


# Only what hands over values: comparison, membership or truth would let the candidate decide.
for _name in ("len", "getitem", "setitem", "delitem", "iter", "next", "enter", "exit"):
    setattr(Remote, f"__{_name}__", _special(f"__{_name}__"))


class Link:
    """The tester's end of the line to one server."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ask(self, what: str, handle: int, name: str, args: Any, kwargs: Any) -> Any:
        """Make one call and return its value, or raise what it raised."""
        ready = [_outgoing(arg) for arg in args]
        named = {key: _outgoing(value) for key, value in kwargs.items()}
        send(self._sock, marshal.dumps((what, handle, name, ready, named)))
        try:
            record = _loads(receive(self._sock))
            kind, body = record["k"], record["v"]
            if kind == "value":
                return typed.decode(body)
            if kind == "handle":
                return Remote(self, int(body[0]), str(body[1])[:80])
            text = str(body[1])[:2000]
            raised = getattr(builtins, str(body[0]), None)
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):
            raise CandidateError("it sent a malformed answer") from None
        # Out of a call, the end of an iteration would silently end a map or a zip of the test, and
        # with it whatever the test checks there.
        is_end = raised is StopIteration and name != "__next__"
        if isinstance(raised, type) and issubclass(raised, Exception) and not is_end:
            raise _made(raised, text)
        raise CandidateError(f"{body[0]}: {text}")


def _made(kind: type[Exception], text: str) -> Exception:
    try:
        return kind(text)
    except TypeError:  # a kind with arguments of its own, such as UnicodeDecodeError
        return kind.__new__(kind, text) if kind is not ExceptionGroup else CandidateError(text)


def _outgoing(value: Any) -> Any:
    if isinstance(value, Remote):
        return ("h", value._handle)
    typed.encode(value)  # builtin values only
    return ("v", value)


def send(sock: socket.socket, data: bytes) -> None:
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket) -> bytes:
    """Return one message.

    Raises:
        CandidateError: when the other process is gone or sends too much.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > _MAX_ANSWER:
        raise CandidateError("its answer is too large")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = sock.recv(min(count, 1 << 20))
        except OSError:
            part = b""
        if not part:
            raise CandidateError("it ended itself during a call")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# ---- the host and its servers ----


def serve_tests(module: types.ModuleType, requests: socket.socket) -> NoReturn:
    """In the host: fork a server for every test that the tester announces."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 1, 1)
        if not data:
            os._exit(0)
        child = os.fork()
        if child == 0:
            requests.close()
            _serve_calls(module, socket.socket(fileno=fds[0]))
        os.close(fds[0])
        os.waitpid(child, 0)


def _serve_calls(module: types.ModuleType, sock: socket.socket) -> NoReturn:
    objects: list[Any] = [module]
    while True:
        try:
            request = marshal.loads(receive(sock))
        except CandidateError:
            _flush()
            os._exit(0)
        send(sock, json.dumps(_answer(objects, request)).encode())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            return


def _answer(objects: list[Any], request: tuple[str, int, str, list[Any], dict[str, Any]]) -> Any:
    what, handle, name, args, kwargs = request
    try:
        target = objects[handle]
        ready = [objects[value] if kind == "h" else value for kind, value in args]
        named = {key: objects[v] if kind == "h" else v for key, (kind, v) in kwargs.items()}
        if what == "get":
            value = getattr(target, name)
        elif what == "special":
            method = getattr(type(target), name, None)
            if method is None:  # what Python says of it; list() takes it for "no length known"
                raise TypeError(f"a {type(target).__name__} has no {name}")
            value = method(target, *ready)
        else:
            value = target(*ready, **named)
    except BaseException as error:
        return {"k": "raised", "v": [type(error).__name__, str(error)]}
    try:
        return {"k": "value", "v": typed.encode(value)}
    except (TypeError, RecursionError):
        objects.append(value)
        return {"k": "handle", "v": [len(objects) - 1, type(value).__name__]}


# ---- the tester ----


def run_test(text: str, requests: socket.socket) -> dict[str, Any]:
    """Run one test text and return its record: returned true, or what it raised."""
    ours, theirs = socket.socketpair()
    socket.send_fds(requests, [b"T"], [theirs.fileno()])
    theirs.close()
    link = Link(ours)
    module = Remote(link, 0, "module")
    try:
        code = compile(text, "test", "exec")
        stub = types.ModuleType("solution")
        stub.__dict__["__getattr__"] = lambda name: getattr(module, name)
        sys.modules["solution"] = stub
        space: dict[str, Any] = {"__name__": "test"}
        for name, is_looked_into in _free_names(text).items():
            try:
                library = _library(name) if is_looked_into else ""
                space[name] = import_module(library) if library else getattr(module, name)
            except (AttributeError, ImportError):
                continue  # the test will say so, if it really needs the name
        exec(code, space)
    except AssertionError as error:
        return {"s": "raised", "e": f"AssertionError: {error}"}
    except BaseException as error:
        return {"s": "raised", "e": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        ours.close()
    return {"s": "returned", "v": True}


def _library(name: str) -> str:
    """Return the library that a test means by ``name.attribute`` without importing it, or "".

    The candidate may have imported it too, or something of its own under that name, which would
    then decide what ``math.isclose`` says.
    """
    return "numpy" if name == "np" else name if name in sys.stdlib_module_names else ""


def _free_names(text: str) -> dict[str, bool]:
    """Return the names a test uses that neither it nor Python defines, and whether it does nothing
    with one but look at its attributes.
    """
    import ast  # only where tests are run: every box pays for what is loaded here

    used: dict[str, bool] = {}
    made = set()
    tree = ast.parse(text)
    looked_into = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                used[node.id] = used.get(node.id, True) and id(node) in looked_into
            else:
                made.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return {n: only for n, only in used.items() if n not in made and not hasattr(builtins, n)}
