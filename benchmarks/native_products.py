"""The matrix products of one decode step beside torch's, and beside reading their weights.

    python benchmarks/native_products.py [--threads 1 2] [--rows 16 64] [--repeats 9]

SmolLM2-135M's shape in bf16 (30 layers and the head, 269 MB of weights) and in 8 bits (all but the
down projection). Every weight is its own, so that a step reads all of them from memory, as
decoding does; ``alone`` multiplies by one layer's again and again, from cache, as a floor of
products does that are timed one by one. Ours and torch's take turns; milliseconds a step, medians
of the repeats. A minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lock import quiet_machine

WIDTH, FED, JOINED, VOCABULARY, LAYERS = 576, 1536, 960, 49_152, 30
LAYER = ((JOINED, WIDTH), (WIDTH, WIDTH), (2 * FED, WIDTH), (WIDTH, FED))  # outputs, inputs
SHAPES = (*(LAYER * LAYERS), (VOCABULARY, WIDTH))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args(arguments)
    with quiet_machine():
        import torch

        import educe  # noqa: F401  (asks for large pages before torch allocates)
        from educe.native.kernels import kernels

        native = kernels()
        if native is None or not native.has_blocks:
            sys.exit("no products of our own on this processor: see `educe doctor`")
        for threads in given.threads:
            torch.set_num_threads(threads)
            native.use_threads()
            for rows in given.rows:
                found = measured(steps(rows), given.repeats)
                told = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in found.items())
                print(f"{threads} threads, {rows} rows: {told} ms a step", flush=True)
    return 0


def measured(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each, which take turns; the first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - begin)
    return {name: median(found) for name, found in times.items()}


def steps(rows: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    import torch

    from educe.engines.embedded.matrices import Matrix
    from educe.engines.embedded.tiles import TiledMatrix, Tiles
    from educe.native.kernels import kernels

    native = kernels()
    assert native is not None
    tiles = Tiles(native, 2 * sum(o * i for o, i in SHAPES))
    weights = [torch.randn(o, i).bfloat16() for o, i in SHAPES]
    ours = [TiledMatrix(tiles, w) for w in weights]
    theirs = [Matrix(w) for w in weights]
    # One more room: a step's 8-bit weights, the down projection in bf16.
    narrow = Tiles(native, 2 * sum(o * i for o, i in SHAPES))
    integers = [
        TiledMatrix(narrow, w)
        if w.shape[1] == FED
        else TiledMatrix(narrow, w.char(), scales=torch.ones(len(w)))
        for w in weights
    ]
    xs = {i: torch.randn(rows, i).bfloat16() for i in (WIDTH, FED)}
    whole, scales = torch.ones(rows, WIDTH, dtype=torch.int8), torch.ones(rows)
    outs = {o: torch.empty(rows, o, dtype=torch.bfloat16) for o, _ in SHAPES}

    def tiled() -> None:
        for (o, i), matrix in zip(SHAPES, ours, strict=True):
            matrix.into(outs[o], xs[i])

    def again() -> None:
        for number, (o, i) in enumerate(SHAPES):
            matrix = ours[number % len(LAYER) if number < len(SHAPES) - 1 else number]
            matrix.into(outs[o], xs[i])

    def in_bytes() -> None:
        for (o, i), matrix in zip(SHAPES, integers, strict=True):
            if i == FED:
                matrix.into(outs[o], xs[i])
            else:
                matrix.into(outs[o], whole, scales)

    def torchs() -> None:
        for (_, i), matrix in zip(SHAPES, theirs, strict=True):
            matrix(xs[i])

    def torchs_again() -> None:
        for number, (_, i) in enumerate(SHAPES):
            theirs[number % len(LAYER) if number < len(SHAPES) - 1 else number](xs[i])

    room = tiles._room.view(torch.int64)
    return {
        "ours": tiled, "torch's": torchs, "ours in 8 bits": in_bytes, "ours alone": again,
        "torch's alone": torchs_again, "reading the weights": lambda: room.sum(),
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
