"""``module:function`` references to user code: found, imported and checked with clear errors."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from educe.core.errors import DomainError, did_you_mean


def load_reference(reference: str, *, purpose: str) -> Callable[..., Any]:
    """Return the callable that ``module:function`` or ``path/to/file.py:function`` names.

    Modules are looked up on ``sys.path`` and then in the current folder; the recipe's loader turns
    those that lie beside the recipe into files. A file may import its neighbours.

    Args:
        reference: the text from the recipe.
        purpose: what it is wanted for, e.g. ``domains."my/data".reward``; starts the errors.

    Raises:
        DomainError: malformed reference, module that cannot be imported, missing or uncallable
            attribute.
    """
    module_name, colon, attribute = reference.rpartition(":")
    if not colon or not module_name or not attribute:
        raise DomainError(
            f"{purpose}: expected 'module:function' or 'file.py:function', got {reference!r}"
        )
    module = _import_file(module_name, purpose) if module_name.endswith(".py") else None
    module = module or _import_module(module_name, purpose)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n in dir(found) if not n.startswith("_")]
            raise DomainError(
                f"{purpose}: {module_name} has no {attribute!r}.{did_you_mean(part, known)}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise DomainError(f"{purpose}: {reference} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _import_module(name: str, purpose: str) -> ModuleType:
    here = str(Path.cwd())
    is_here = Path(here, *name.split(".")).with_suffix(".py").exists() or Path(here, name).is_dir()
    if is_here and here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise DomainError(
                f"{purpose}: module {name!r} was not found on the Python path or in {here}. "
                f"Install it, or write the file's path: 'folder/{name}.py:function'"
            ) from error
        raise DomainError(f"{purpose}: importing {name} failed: {error}") from error
    except Exception as error:  # user code may raise anything while it is imported
        raise DomainError(
            f"{purpose}: importing {name} failed: {type(error).__name__}: {error}"
        ) from error


def _import_file(path: str, purpose: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise DomainError(f"{purpose}: there is no file {file.absolute()}")
    key = f"educe_user_{file.stem}_{abs(hash(str(file.absolute()))):x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, file)
    if spec is None or spec.loader is None:
        raise DomainError(f"{purpose}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    if str(file.absolute().parent) not in sys.path:
        sys.path.append(str(file.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise DomainError(
            f"{purpose}: importing {file} failed: {type(error).__name__}: {error}"
        ) from error
    return module
