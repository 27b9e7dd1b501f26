"""Kernels come from any C compiler; without one everything works, and says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from educe.native import build


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no compiler on the path, nothing opened yet; one function to compile."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "one.c").write_text('#include "one.h"\nint educe_one(void) { return ONE; }\n')
    (source / "one.h").write_text("#define ONE 1\n")
    monkeypatch.setattr(build, "_FOLDER", source)
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def opened() -> build.Opened:
    return build.open_library.__wrapped__()


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_a_compiler(fresh):
    found = opened()
    assert found.library is None
    assert "educe[native]" in found.told


def test_switched_off(fresh, monkeypatch):
    monkeypatch.setenv("EDUCE_NATIVE", "0")
    assert opened() == build.Opened(None, "off (EDUCE_NATIVE=0)")


def test_a_broken_compiler_is_named_and_the_next_one_taken(fresh, caplog):
    script(fresh / "gcc", "echo 'kernels.c:1: no such luck' >&2; exit 3")
    found = opened()
    assert found.library is None
    assert "no such luck" in found.told
    assert "no such luck" in caplog.text
    real = shutil.which("cc", path="/usr/bin:/usr/local/bin")
    if real is None:
        pytest.skip("no C compiler")
    script(fresh / "cc", f'PATH=/usr/bin:/usr/local/bin exec {real} "$@"')
    found = opened()
    assert found.library is not None
    assert found.told == f"compiled by {fresh / 'cc'}"


def test_compiled_once(fresh):
    real = shutil.which("cc", path="/usr/bin:/usr/local/bin")
    if real is None:
        pytest.skip("no C compiler")
    count = fresh / "count"
    script(fresh / "gcc", f'echo x >> {count}; PATH=/usr/bin:/usr/local/bin exec {real} "$@"')
    assert opened().library is not None
    assert opened().library is not None
    assert count.read_text() == "x\n"
    kept = list((fresh.parent / "cache" / "native").iterdir())
    assert len(kept) == 1
    # Other sources are another library.
    (build._FOLDER / "one.h").write_text("#define ONE 2\n")
    library = opened().library
    assert library is not None and library.educe_one() == 2
    assert count.read_text() == "x\nx\n"
    # A damaged file in the cache is no reason to go without.
    for path in (fresh.parent / "cache" / "native").iterdir():
        path.write_bytes(b"not a library")
    assert opened().library is not None
