"""From a job to what the runner inside the box reads, and the environment it runs in."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

from educe.sandbox.contract import Job, JobError, Limits

# Chosen so that nothing of the host shows and nothing varies between hosts.
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "SOURCE_DATE_EPOCH": "0",
}


_LIMITS = tuple(field.name for field in dataclasses.fields(Limits))
_SUITES = Path(__file__).with_name("inside") / "suites.py"


def base_environment(home: str) -> dict[str, str]:
    """Return the whole environment of a job whose folder is ``home``."""
    return {**_ENVIRONMENT, "HOME": home, "TMPDIR": home}


# Runtimes with libraries of this host: what is imported before the job, what it is a part of, and
# folders beside it without a module's name. The first is the zygote's name, too.
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "python-numpy": ("numpy",),
    "python-pytest": ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"),
}
_BESIDE = {"python-numpy": ("numpy.libs",)}


def preload_name(runtime: str) -> str:
    """Return the library that a runtime is named after, "" for one without."""
    return _LIBRARIES.get(runtime, ("",))[0]


def libraries(runtime: str) -> tuple[str, ...]:
    """Return names of the libraries that a runtime brings along."""
    return _LIBRARIES.get(runtime, ())


def import_paths(runtime: str) -> list[str]:
    """Return folders that a runtime adds to ``sys.path``.

    Raises:
        JobError: when its libraries are not installed here.
    """
    if runtime not in _LIBRARIES:
        return []
    name = preload_name(runtime)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise JobError(f"runtime {runtime!r} needs {name}, which is not installed")
    return [str(Path(spec.origin).parent.parent)]


def library_folders(runtime: str) -> list[str]:
    """Return what of those folders a box must be able to read."""
    (folder,) = import_paths(runtime)
    names = (*_LIBRARIES[runtime], *_BESIDE.get(runtime, ()))
    places = [Path(folder) / name for name in names]
    return [str(place) for place in places if place.exists()]


def preloads(runtime: str) -> list[str]:
    """Return modules that a runtime imports before the job."""
    return [name for name in _LIBRARIES.get(runtime, ()) if importlib.util.find_spec(name)]


def limits_of(job: Job) -> dict[str, Any]:
    """Return a job's limits as plain values by name."""
    return {name: getattr(job.limits, name) for name in _LIMITS}


def job_payload(job: Job) -> dict[str, Any]:
    """Return the marshal-able form of a job for the runner.

    Raises:
        JobError: when an argument is not a builtin value.
    """
    calls = [(call.args, dict(call.kwargs)) for call in job.calls]
    for call in job.calls:
        _check_builtin(call.args, 0)
        _check_builtin(dict(call.kwargs), 0)
    return {
        "source": job.source,
        "runtime": job.runtime,
        "entry_point": job.entry_point,
        "calls": calls,
        "argv": list(job.argv),
        "env": dict(job.env),
        "files": dict(job.files),
        "limits": limits_of(job),
        "seed": job.seed,
        "num_tests": len(job.tests),
        "suite": list(job.suite),
        "suite_program": _SUITES.read_text() if job.suite else "",
        "session": 0,
        "is_linux": sys.platform == "linux",
    }


def _check_builtin(value: Any, depth: int) -> None:
    kind = type(value)
    if depth > 200:
        raise JobError("a call's argument is nested too deeply")
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return
    if kind in (list, tuple, set, frozenset):
        for item in value:
            _check_builtin(item, depth + 1)
    elif kind is dict:
        for key, item in value.items():
            _check_builtin(key, depth + 1)
            _check_builtin(item, depth + 1)
    else:
        raise JobError(f"a call's arguments must be builtin values, got {kind.__name__}")
