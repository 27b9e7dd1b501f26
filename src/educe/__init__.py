"""educe: joint post-training reinforcement learning of language models over hundreds of domains.

The package root stays torch-free: heavy modules load when a name below is first used.

>>> import educe
>>> educe.train("recipes/quickstart.toml")            # doctest: +SKIP
>>> educe.sample("smollm2-135m-instruct", ["Hello"])  # doctest: +SKIP
>>> educe.score("arithmetic/add/tiny", 0, "7")           # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Large tensors on large pages where the system allows it: reading them is a fifth faster
# (docs/design/0004). torch looks at this when it first allocates; programs in the sandbox do not
# get it, their environment is made anew.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from educe.api import sample, score, train

_LAZY = {"train": "educe.api", "sample": "educe.api", "score": "educe.api"}

__all__ = ["__version__", "sample", "score", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'educe' has no attribute {name!r}")
