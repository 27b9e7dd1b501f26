"""Starts trainer ranks as local processes and watches them.

Rank 0 is the calling process; the others run ``python -m educe.cluster.rank``. A rank that dies
ends the run at once instead of letting the others wait for it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.config.loader import LoadedRecipe
from educe.core.errors import InfrastructureError
from educe.core.stopping import StopSignal

if TYPE_CHECKING:
    from educe.pipeline import RunResult


_HOST = "127.0.0.1"


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def train_ranks(
    loaded: LoadedRecipe, *, resume: bool, announce: Callable[[str], None], live: bool
) -> RunResult:
    """Train with ``run.ranks`` processes on this machine.

    Raises:
        InfrastructureError: when a rank dies.
    """
    from educe.api import train_here
    from educe.parallel.collectives import ProcessGroup

    size, port = loaded.recipe.run.ranks, free_port()
    with tempfile.TemporaryDirectory() as scratch:
        recipe_file = Path(scratch) / "recipe.json"
        recipe_file.write_text(json.dumps(loaded.recipe.model_dump(mode="json")))
        ranks = [_start(recipe_file, rank, size, port, scratch) for rank in range(1, size)]
        collectives = None
        try:
            collectives = ProcessGroup(0, size, _HOST, port, check=lambda: _raise_dead(ranks))
            result = train_here(
                loaded,
                resume=resume,
                announce=announce,
                live=live,
                stop=StopSignal(),
                collectives=collectives,
            )
            for rank in ranks:
                rank.wait(timeout=60)
            return result
        except RuntimeError:
            # Gloo only says that a connection closed; the rank's end says why.
            _raise_dead(ranks, wait_s=5.0)
            raise
        finally:
            if collectives is not None:
                collectives.close()
            for rank in ranks:
                if rank.poll() is None:
                    rank.terminate()
                rank.wait(timeout=30)


def _start(
    recipe_file: Path, rank: int, size: int, port: int, scratch: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "educe.cluster.rank"]
    command += [str(recipe_file), str(rank), str(size), str(port)]
    with (Path(scratch) / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _raise_dead(ranks: list[subprocess.Popen[bytes]], wait_s: float = 0.0) -> None:
    """Raise InfrastructureError when a rank has died; give it ``wait_s`` to be seen dead."""
    deadline = time.monotonic() + wait_s
    while True:
        for number, rank in enumerate(ranks, start=1):
            if rank.poll() not in (None, 0):
                raise InfrastructureError(
                    f"trainer rank {number} died with status {rank.returncode}; continue with "
                    "--resume"
                )
        if time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def rank_main(arguments: list[str]) -> int:
    """Entry point of a rank other than 0."""
    from educe.config.settings import Recipe
    from educe.parallel.collectives import ProcessGroup
    from educe.pipeline import Pipeline

    recipe_file, rank, size, port = arguments
    recipe = Recipe.model_validate_json(Path(recipe_file).read_text())
    collectives = ProcessGroup(int(rank), int(size), _HOST, int(port))
    folder = Path(recipe.run.out) / recipe.run.name
    result = Pipeline(
        LoadedRecipe(recipe), _Silent(), folder, collectives=collectives, announce=print
    ).run()
    collectives.close()
    return 0 if result.status in ("done", "stopped") else 1


class _Silent:
    """A recorder for ranks that have nothing to tell."""

    def record_metrics(self, row: Any) -> None:
        return None

    def record_sample(self, stage: str, step: int, sample: Any) -> None:
        return None

    def record_event(self, kind: str, payload: Any) -> None:
        return None
