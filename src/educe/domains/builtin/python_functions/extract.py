"""Finding the candidate's code in a completion."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

_FENCE = re.compile(
    r"```[ \t]*(?:python3?|py)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE
)
_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Extracted:
    """Code found in a completion.

    Attributes:
        source: the code, None when there is none to run.
        is_found: whether some code defines the wanted function (or a fence holds broken code).
        reason: why ``source`` is None.
    """

    source: str | None
    is_found: bool
    reason: str = ""


def extract_function(text: str, entry_point: str) -> Extracted:
    """Return the code that defines ``entry_point``.

    The last fenced block that defines it counts; without any fence, the whole text does when it is
    Python and defines it. Nothing is executed here.
    """
    if len(text) > _MAX_CHARS:
        return Extracted(None, False, f"the reply is longer than {_MAX_CHARS} characters")
    fences = [match.group(1) for match in _FENCE.finditer(text)]
    broken = ""
    for source in reversed(fences or [text]):
        problem, defined = _look_at(source)
        if not problem and entry_point in defined:
            return Extracted(source, True)
        broken = broken or problem
    if fences and broken:
        return Extracted(None, True, broken)
    return Extracted(None, False, f"no Python function {entry_point} was found in the reply")


def _look_at(source: str) -> tuple[str, set[str]]:
    """Return what keeps the source from compiling ("" when it does), and what it defines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in the candidate's text is its business
            tree = ast.parse(source)
            compile(tree, "<candidate>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg} (line {error.lineno})", set()
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f"{type(error).__name__}: {str(error)[:100]}", set()
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined.update(t.id for t in node.targets if isinstance(t, ast.Name))
    return "", defined
