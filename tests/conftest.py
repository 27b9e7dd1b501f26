"""Shared fixtures: seeded tiny models saved as ordinary folders, once a session."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its byte tokenizer, fp32."""
    from educe.models.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny model of each supported architecture."""
    from educe.models.tiny import ARCHITECTURES, save_tiny

    root = tmp_path_factory.mktemp("tiny")
    return {name: save_tiny(root / name, name, seed=1) for name in ARCHITECTURES}


@pytest.fixture(params=["tiles", "vectors"])
def product_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way in which the compiled kernels multiply blocks here; tiles also do it by vectors."""
    from educe.native.build import open_library
    from educe.native.kernels import kernels

    found = kernels()
    if found is None or not found.has_blocks:
        pytest.skip("no products of our own on this processor")
    if request.param == "tiles" and not found.has_tiles:
        pytest.skip("this processor has no matrix tiles")
    flag = ctypes.c_int.in_dll(open_library().library, "educe_tiles")
    before = flag.value
    flag.value = int(request.param == "tiles")
    yield request.param
    flag.value = before
