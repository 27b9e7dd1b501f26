"""Reads a program's text inside a box and prints what there is to say about its style.

Sent into the box as a job's source: it stands alone, and executes nothing of what it reads.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs each box more than the rest of this
    from collections.abc import Iterator
    from typing import Any

_BRANCHES = (
    ast.If, ast.For, ast.While, ast.AsyncFor, ast.ExceptHandler, ast.IfExp, ast.comprehension,
    ast.Assert, ast.match_case,
)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_FINDINGS, _LONG_LINE = 50, 100
# Names that a reviewer would stop at.
_RISKY = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os._exit", "os.kill",
    "pickle.loads", "pickle.load", "marshal.loads", "yaml.load", "tempfile.mktemp",
    "subprocess.getoutput", "subprocess.getstatusoutput",
}  # fmt: skip
_RISKY_BEGINNINGS = ("os.exec", "os.spawn", "os.posix_spawn", "ctypes.")
_RISKY_MODULES = {name.split(".")[0] for name in _RISKY if "." in name} | {"ctypes", "subprocess"}


def complexity(node: ast.AST) -> int:
    """Return one path plus one for each decision (McCabe 1976)."""
    total = 1
    for child in ast.walk(node):
        if isinstance(child, _BRANCHES):
            total += 1
        elif isinstance(child, ast.BoolOp):
            total += len(child.values) - 1
    return total


def outside_functions(node: ast.Module | ast.ClassDef) -> int:
    """Return the complexity of what a module or a class does by itself."""
    blocks = (*_FUNCTIONS, ast.ClassDef)
    own = [statement for statement in node.body if not isinstance(statement, blocks)]
    return complexity(ast.Module(own, []))


class Names:
    """What names stand for: after ``from os import system as s``, s is ``os.system``."""

    def __init__(self, tree: ast.Module) -> None:
        self._means: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    whole = name.name if name.asname else name.name.split(".")[0]
                    self._means[name.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for name in node.names:
                    self._means[name.asname or name.name] = f"{node.module}.{name.name}"

    def dotted(self, node: ast.AST) -> str:
        """Return the full name that a name or an attribute of one is, "" for anything else."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self._means.get(node.id, node.id))
        return ".".join(reversed(parts)).removeprefix("builtins.")


def _is_risky(name: str) -> bool:
    return name in _RISKY or name.startswith(_RISKY_BEGINNINGS)


def insecure(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each thing that a reviewer would stop at."""
    names = Names(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        # Named, not only called: "run = os.system" is as good as a call.
        if isinstance(node, (ast.Name, ast.Attribute)):
            is_used = isinstance(node.ctx, ast.Load) and id(node) not in inner
            if is_used and _is_risky(names.dotted(node)):
                yield node.lineno, names.dotted(node)
        elif isinstance(node, ast.Call):
            for what in _risky_call(node, names):
                yield node.lineno, what
        elif isinstance(node, ast.ImportFrom):
            if node.module in _RISKY_MODULES and any(name.name == "*" for name in node.names):
                yield node.lineno, f"from {node.module} import *"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"


def _risky_call(node: ast.Call, names: Names) -> Iterator[str]:
    if names.dotted(node.func) == "getattr" and len(node.args) > 1:
        attribute = getattr(node.args[1], "value", "")
        what = f"{names.dotted(node.args[0])}.{attribute}".removeprefix("builtins.")
        if _is_risky(what):
            yield what
    for word in node.keywords:
        if word.arg == "shell" and getattr(word.value, "value", True):
            yield "shell=True"


def facts_of(source: str) -> dict[str, Any]:
    """Return what was found, as builtin values."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"compiles": False, "why": str(error)[:200]}
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    bodies: list[ast.Module | ast.ClassDef] = [tree]
    bodies += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = sorted(insecure(tree))[:_MAX_FINDINGS]
    lines = source.splitlines()
    # Only lines that say something: empty ones and comments must not thin out what is found.
    telling = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {
        "compiles": True,
        "insecure": [f"line {line}: {what}" for line, what in found],
        "worst": max(
            [complexity(node) for node in functions] + [outside_functions(node) for node in bodies]
        ),
        "functions": len(functions),
        "documented": sum(ast.get_docstring(node) is not None for node in functions),
        "long_lines": sum(len(line) > _LONG_LINE for line in lines),
        "lines": len(telling),
    }


if __name__ == "__main__":
    with open("candidate.py", encoding="utf-8", errors="replace") as file:
        print(facts_of(file.read()))
