"""Which device a run will compute on, asked without torch."""

from __future__ import annotations

import os
from pathlib import Path

from educe.config.settings import ModelSettings


def has_cuda_device() -> bool:
    """Whether the NVIDIA driver shows a device (torch is not asked: it is not loaded yet)."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def takes_cuda(model: ModelSettings) -> bool:
    """Whether the model will be on a GPU."""
    return model.device == "cuda" or (model.device == "auto" and has_cuda_device())


def num_cores() -> int:
    """Return the cores that this process may use (a container may have fewer than the machine)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
