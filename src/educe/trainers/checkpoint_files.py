"""What a checkpoint's folder says without its tensors. Torch-free: a resume is checked with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from educe.core.errors import CheckpointError

FORMAT_VERSION = 1
COMPLETE = "COMPLETE"


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return whole checkpoints of ``RUN/checkpoints``, oldest first."""
    return sorted(f.parent for f in folder.glob(f"step-*/{COMPLETE}"))


def is_complete(folder: Path) -> bool:
    return (folder / COMPLETE).exists()


def read_progress(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's progress without its tensors.

    Raises:
        CheckpointError: when it is not whole or of another format version.
    """
    if not is_complete(folder):
        raise CheckpointError(f"{folder} is not a whole checkpoint (no {COMPLETE} mark)")
    meta = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if meta["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder} has format version {meta['format_version']}, this educe reads "
            f"{FORMAT_VERSION}"
        )
    return dict(meta)


def sync_path(path: Path) -> None:
    """Ask the system to put a file or folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
