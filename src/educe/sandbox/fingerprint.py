"""The execution fingerprint: what a result depends on besides the program and its input.

The interpreter, the kernel, how the level is enforced, the libraries or the compiler that a runtime
brings along, limits, network, seed and environment. Two results with the same fingerprint and the
same input are the same bytes, for programs that ask for no real randomness or time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys

from educe.sandbox.contract import Job
from educe.sandbox.host import program_of
from educe.sandbox.payload import libraries


def host_fingerprint(*parts: object) -> str:
    """Return what stands for this host and ``parts``, which say how it enforces a level."""
    told = (sys.version, os.uname().release, os.uname().machine, *parts)
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()


def job_fingerprint(job: Job, host: str) -> str:
    """Return the fingerprint of a job on a host (see :func:`host_fingerprint`)."""
    runtime = (job.runtime, *runtime_identity(job.runtime))
    parts = (host, runtime, job.limits, job.network, job.seed, dict(job.env))
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@functools.cache
def runtime_identity(runtime: str) -> tuple[str, ...]:
    """Return versions of a runtime's libraries, or which program executes it."""
    if runtime in ("python", "executable"):
        return ()
    if runtime.startswith("python"):
        return tuple(_version(name) for name in libraries(runtime))
    program = program_of(runtime)
    about = program.stat()
    return (str(program), str(about.st_size), str(about.st_mtime_ns))


def _version(library: str) -> str:
    try:
        return f"{library} {importlib.metadata.version(library)}"
    except importlib.metadata.PackageNotFoundError:
        return library
