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
def kernel_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """With the processor's matrix tiles, where it has them, and without."""
    from educe.native.build import open_library
    from educe.native.kernels import kernels

    if request.param == "tiles" and not getattr(kernels(), "has_tiles", False):
        pytest.skip("this processor has no matrix tiles")
    library = open_library().library
    if library is None:
        pytest.skip("no compiled kernels here")
    flag = ctypes.c_int.in_dll(library, "educe_tiles")
    before = flag.value
    flag.value = int(request.param == "tiles")
    yield request.param
    flag.value = before


@pytest.fixture
def product_way(kernel_way: str) -> str:
    """The same for what multiplies blocks; without tiles it needs vectors of bf16 pairs."""
    from educe.native.kernels import kernels

    if not getattr(kernels(), "has_blocks", False):
        pytest.skip("no products of our own on this processor")
    return kernel_way
