"""A recipe with several trainer ranks: this process is rank 0, the others run this module."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from educe.cluster.launch import HOST, Ranks, free_port, watched
from educe.config.loader import LoadedRecipe
from educe.config.settings import Recipe
from educe.core.protocols import MetricRow
from educe.core.types import JSON

if TYPE_CHECKING:
    from educe.parallel.collectives import Collectives
    from educe.pipeline import RunResult


def train_ranks(recipe: Recipe, run: Callable[[Collectives], RunResult]) -> RunResult:
    """Start the other ranks of ``run.ranks`` and do ``run`` as rank 0.

    Raises:
        InfrastructureError: a rank died.
    """
    from educe.parallel.collectives import ProcessGroup

    size, port = recipe.run.ranks, free_port()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "recipe.json"
        file.write_text(json.dumps(recipe.model_dump(mode="json")))
        arguments = [[str(file), str(rank), str(size), str(port)] for rank in range(1, size)]
        ranks = Ranks("educe.ranks", arguments, Path(scratch))
        with watched(ranks):
            collectives = ProcessGroup(0, size, HOST, port, check=ranks.raise_dead)
            try:
                result = run(collectives)
                if result.status == "done":
                    ranks.wait()
                return result  # stopped: the others wait for a step that will not come
            finally:
                collectives.close()


def main(arguments: list[str]) -> int:
    """Be one rank other than 0: ``python -m educe.ranks RECIPE.json RANK SIZE PORT``."""
    from educe.parallel.collectives import ProcessGroup
    from educe.pipeline import Pipeline

    # Ctrl-C reaches the whole process group; rank 0 decides where stopping is safe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file, rank, size, port = arguments
    recipe = Recipe.model_validate_json(Path(file).read_text())
    collectives = ProcessGroup(int(rank), int(size), HOST, int(port))
    folder = Path(recipe.run.out).expanduser() / recipe.run.name
    Pipeline(LoadedRecipe(recipe), _Silent(), folder, collectives=collectives).run()
    collectives.close()
    return 0


class _Silent:
    """A recorder for ranks that have nothing to tell: rank 0 records."""

    def record_metrics(self, row: MetricRow) -> None:
        return None

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        return None

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
