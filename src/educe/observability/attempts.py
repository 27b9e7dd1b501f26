"""Attempts: each start or resume of a run claims the next number, and says where it starts.

``run.json`` describes the run and is written once; ``attempts/NNNN.json`` one attempt each. Both
appear whole or not at all (written beside, synced, linked).
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from educe.core.errors import InfrastructureError
from educe.core.types import JSON

RUN_FILE = "run.json"
ATTEMPT_FOLDER = "attempts"


def write_once(path: Path, content: Mapping[str, JSON]) -> bool:
    """Write a JSON file that must not exist yet, atomically; False when it exists.

    Raises InfrastructureError when the folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("x", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1, default=str)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error.strerror}. Choose a writable run folder (run.out) or "
            f"free disk space"
        ) from error
    return True


def read_attempts(run_folder: Path) -> dict[int, dict[str, JSON]]:
    """Return what each attempt declared, by number; an unreadable one counts as empty."""
    found: dict[int, dict[str, JSON]] = {}
    for path in sorted((run_folder / ATTEMPT_FOLDER).glob("[0-9]*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            content = {}
        found[int(path.stem)] = content if isinstance(content, dict) else {}
    return found


def claim_attempt(
    run_folder: Path,
    *,
    next_step: Mapping[str, int],
    recipe: Mapping[str, JSON] | None,
) -> int:
    """Claim the next attempt number; two processes never get the same one.

    Args:
        next_step: for stages that continue, the first step that this attempt will do.
        recipe: the resolved recipe when it differs from the run's first one.
    """
    content = {
        "started": time.time(),
        "process_id": os.getpid(),
        "host": socket.gethostname(),
        "next_step": dict(next_step),
        "recipe": recipe,
    }
    number = max(read_attempts(run_folder), default=0) + 1
    while not write_once(run_folder / ATTEMPT_FOLDER / f"{number:04d}.json", content):
        number += 1
    return number


def declared_starts(run_folder: Path) -> list[tuple[int, str, int]]:
    """Return (attempt, stage, first step) for everything that attempts declared."""
    return [
        (attempt, str(stage), int(step))
        for attempt, content in read_attempts(run_folder).items()
        for stage, step in (content.get("next_step") or {}).items()
    ]
