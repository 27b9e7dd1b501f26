"""How the processes outside are started: a bare interpreter, an empty environment, no site."""

from __future__ import annotations

import sys
from pathlib import Path

# No site, no user site, no folder on the path. Not -I: it would ignore the fixed hash seed.
FLAGS = ("-s", "-S", "-P", "-X", "utf8")
_PACKAGE = Path(__file__).resolve().parent
# Hollow parent packages: the modules in ``inside`` keep their real names, and nothing else of
# educe is executed in there.
_BOOT = """
import sys, types
for name, path in (("educe", {educe!r}), ("educe.sandbox", {sandbox!r})):
    hollow = types.ModuleType(name)
    hollow.__path__ = [path]
    sys.modules[name] = hollow
from educe.sandbox.inside.{module} import main
main()
"""


def interpreter() -> str:
    """Return the real interpreter, behind any virtual environment's link."""
    return str(Path(sys.executable).resolve())


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs ``main`` of a module in ``inside``."""
    boot = _BOOT.format(educe=str(_PACKAGE.parent), sandbox=str(_PACKAGE), module=module)
    return [interpreter(), *FLAGS, "-c", boot, *arguments]
