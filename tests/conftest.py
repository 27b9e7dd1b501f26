"""Shared fixtures: seeded tiny models saved as ordinary folders, once a session."""

from __future__ import annotations

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
