"""Compiles the kernels once a machine and opens them.

No build step at installation: the source is a few hundred lines of C, any C compiler makes it in
seconds for the very processor it will run on, and without one everything works as before, slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from educe.core.cache import cache_folder

_FOLDER = Path(__file__).parent
# No -ffast-math: infinities mask, and the exponential rounds by adding a large number.
_FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_NATIVE = ("-march=native", "-mcpu=native")  # the second for compilers that know no -march
_SECONDS = 300

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """The library, or why there is none; ``told`` is one line for people."""

    library: ctypes.CDLL | None
    told: str


def is_off() -> bool:
    """Return whether the user forbids the kernels (``EDUCE_NATIVE=0``)."""
    return os.environ.get("EDUCE_NATIVE") == "0"


def compilers() -> list[list[str]]:
    """Return the commands of C compilers to try: ``$CC``, the system's, then package ziglang's."""
    found = [chosen.split()] if (chosen := os.environ.get("CC")) else []
    found += [[path] for name in ("gcc", "cc", "clang") if (path := shutil.which(name))]
    if find_spec("ziglang"):
        import sys

        found.append([sys.executable, "-m", "ziglang", "cc"])
    return found


@functools.cache
def open_library() -> Opened:
    """Compile if need be and open the library; once a process. ``EDUCE_NATIVE=0`` forbids it."""
    if is_off():
        return Opened(None, "off (EDUCE_NATIVE=0)")
    tried = compilers()
    if not tried:
        return Opened(None, "no C compiler found (gcc, cc, clang, or pip install 'educe[native]')")
    complaint = ""
    for compiler in tried:
        for native in _NATIVE:
            try:
                library = _opened(compiler, native)
            except (OSError, subprocess.SubprocessError) as error:
                complaint = complaint or _short(error)
                continue
            return Opened(library, f"compiled by {' '.join(compiler)}")
    _log.warning("the fused kernels could not be compiled, torch's are used: %s", complaint)
    return Opened(None, f"could not be compiled: {complaint}")


def _opened(compiler: list[str], native: str) -> ctypes.CDLL:
    path = _compiled(compiler, native)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # damaged in the cache: once more
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(_compiled(compiler, native)))


def _compiled(compiler: list[str], native: str) -> Path:
    """Return the compiled library's path, from the cache where it is there."""
    sources = sorted(_FOLDER.glob("*.c"))
    told = hashlib.sha256()
    for path in [*sources, *sorted(_FOLDER.glob("*.h"))]:
        told.update(path.read_bytes())
    told.update(repr((compiler, native, _FLAGS, _processor())).encode())
    folder = cache_folder() / "native"
    target = folder / f"kernels-{told.hexdigest()[:20]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once: each writes its own file, a whole one takes the name.
    with tempfile.TemporaryDirectory(dir=folder) as workplace:
        made = Path(workplace) / "kernels.so"
        command = [*compiler, *_FLAGS, native, "-o", str(made), *map(str, sources), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        made.replace(target)
    return target


def _processor() -> str:
    """Return what tells processors apart: a cache folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    first = {line.split(":")[0].strip(): line for line in reversed(lines) if ":" in line}
    return repr([first[key] for key in wanted if key in first])


def _short(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return said[0] if said else f"status {error.returncode}"
    return str(error)
