"""Starts trainer ranks as local processes and watches them.

Rank 0 is the calling process; the others run ``python -m educe.cluster.rank``. A rank that dies
ends the run at once instead of letting the others wait for it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.config.loader import LoadedRecipe
from educe.core.errors import InfrastructureError
from educe.core.stopping import StopSignal

if TYPE_CHECKING:
    from educe.pipeline import RunResult


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
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

    size = loaded.recipe.run.ranks
    address = f"tcp://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as scratch:
        recipe_file = Path(scratch) / "recipe.json"
        recipe_file.write_text(json.dumps(loaded.recipe.model_dump(mode="json")))
        ranks = [_start(recipe_file, rank, size, address, scratch) for rank in range(1, size)]
        watch = _Watch(ranks)
        stop = StopSignal()
        try:
            watch.start()
            collectives = ProcessGroup(0, size, address)
            result = train_here(
                loaded,
                resume=resume,
                announce=announce,
                live=live,
                stop=stop,
                collectives=collectives,
            )
            watch.expect_end()
            for rank in ranks:
                rank.wait(timeout=60)
            return result
        except RuntimeError as error:
            dead = watch.dead()
            if dead:
                raise InfrastructureError(f"trainer {dead}; continue with --resume") from error
            raise
        finally:
            watch.expect_end()
            for rank in ranks:
                if rank.poll() is None:
                    rank.terminate()


def _start(
    recipe_file: Path, rank: int, size: int, address: str, scratch: str
) -> subprocess.Popen[bytes]:
    log = (Path(scratch) / f"rank-{rank}.log").open("wb")
    command = [sys.executable, "-m", "educe.cluster.rank"]
    command += [str(recipe_file), str(rank), str(size), address]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))


class _Watch:
    """Notices a rank that died while it was needed."""

    def __init__(self, ranks: list[subprocess.Popen[bytes]]) -> None:
        self._ranks = ranks
        self._ending = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def expect_end(self) -> None:
        self._ending.set()

    def dead(self) -> str:
        for number, rank in enumerate(self._ranks, start=1):
            if rank.poll() not in (None, 0):
                return f"rank {number} died with status {rank.returncode}"
        return ""

    def _look(self) -> None:
        while not self._ending.wait(0.5):
            if self.dead():
                # Gloo notices the closed connection by itself and raises in rank 0.
                return


def rank_main(arguments: list[str]) -> int:
    """Entry point of a rank other than 0."""
    from educe.config.settings import Recipe
    from educe.parallel.collectives import ProcessGroup
    from educe.pipeline import Pipeline

    recipe_file, rank, size, address = arguments
    recipe = Recipe.model_validate_json(Path(recipe_file).read_text())
    collectives = ProcessGroup(int(rank), int(size), address)
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
