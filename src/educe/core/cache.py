"""Where educe keeps what is made once a machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return educe's cache: ``$EDUCE_CACHE``, else ``$XDG_CACHE_HOME/educe``, else ~/.cache."""
    if chosen := os.environ.get("EDUCE_CACHE"):
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "educe"
