"""Generated packages run in this process, without files: to know what their tests expect.

Only texts that were generated here are run this way; what a model wrote runs in a sandbox.
"""

from __future__ import annotations

import builtins
import functools
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.domains.builtin.repo_repair.templates import Script


@dataclass(frozen=True, slots=True)
class Failure:
    """An observation that gave an exception instead of a value."""

    text: str


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, name: str, mode: str) -> types.CodeType:
    return compile(text, name, mode, dont_inherit=True)


class Loader:
    """Imports the modules of a mapping of files, each once."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._roots = {path.split("/")[0] for path in files if "/" in path}
        self._modules: dict[str, types.ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def module(self, name: str) -> types.ModuleType:
        """Return a module by its dotted name; raises ModuleNotFoundError, or what it raises."""
        if name in self._modules:
            return self._modules[name]
        parent, _, last = name.rpartition(".")
        package = self.module(parent) if parent else None
        place = name.replace(".", "/")
        path = next((p for p in (f"{place}/__init__.py", f"{place}.py") if p in self._files), None)
        if path is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        module = types.ModuleType(name)
        module.__dict__["__builtins__"] = self.builtins
        self._modules[name] = module
        try:
            exec(_compiled(self._files[path], path, "exec"), module.__dict__)
        except BaseException:
            del self._modules[name]
            raise
        if package is not None:
            setattr(package, last, module)
        return module

    def _import(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        root = name.split(".")[0]
        if root not in self._roots:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = self.module(name)
        for item in fromlist or ():
            if not hasattr(module, item):
                try:
                    self.module(f"{name}.{item}")
                except ModuleNotFoundError:
                    raise ImportError(f"cannot import name {item!r} from {name!r}") from None
        return module if fromlist else self.module(root)


def watch(files: Mapping[str, str], imports: Sequence[str], script: Script) -> list[Any | Failure]:
    """Return what each observation of a script gives, run over a fresh copy of the files."""
    space: dict[str, Any] = {"__builtins__": Loader(files).builtins}
    seen: list[Any | Failure] = []
    failure = _run("\n".join(imports), space)
    for code, is_seen in script:
        if is_seen:
            seen.append(failure or _value(code, space))
        elif failure is None:
            failure = _run(code, space)
    return seen


def _run(code: str, space: dict[str, Any]) -> Failure | None:
    try:
        exec(_compiled(code, "<step>", "exec"), space)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")
    return None


def _value(code: str, space: dict[str, Any]) -> Any | Failure:
    """Return a value that JSON keeps as it is, or the failure."""
    try:
        value = eval(_compiled(code, "<step>", "eval"), space)
        copy = json.loads(json.dumps(value))
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")
    return copy if same(copy, value) else Failure(f"a {type(value).__name__} is not JSON")


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    return bool(one == other)
