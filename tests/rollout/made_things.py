"""Factories for the processes of [prefetch] in tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from educe.core.errors import DomainError


def squares(options: Any) -> Any:
    """Orders are numbers; a slow one now and then lets other processes overtake."""

    def make(order: Any) -> Any:
        if order == options.get("bad"):
            raise DomainError(f"rows.jsonl:{order}: no such column")
        if order == options.get("broken"):
            raise ValueError("not the data's fault")
        if order == options.get("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        if order % 3 == 0:
            time.sleep(0.01)
        return {"square": order * order, "pid": os.getpid()}

    return make


def refuses(options: Any) -> Any:
    raise DomainError("there is no file or folder /nowhere")
