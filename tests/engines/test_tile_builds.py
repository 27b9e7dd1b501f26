"""The tiles' code is right however it is optimised, and touches no memory but its own.

Each in a process of its own: what goes wrong here ends the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from educe.native.kernels import kernels

pytestmark = pytest.mark.skipif(
    not getattr(kernels(), "has_blocks", False), reason="no products of our own on this processor"
)
TESTS = Path(__file__).resolve().parents[1]

OTHER_LEVEL = """
import sys, pytest
from educe.native import build
build._FLAGS = (sys.argv[1], *build._FLAGS[1:])
if len(sys.argv) > 5:
    build._FLAGS += (f'-DEDUCE_EMULATED_TILES="{sys.argv.pop()}"',)
chosen = sys.argv.pop(2)
plain = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
sys.exit(pytest.main([*plain, "-k", chosen, *sys.argv[2:]]))
"""


FEW = "(dtype0 and llama) or product or integers or (deep and 64)"


def run_again(folder: Path, level: str, chosen: str, *options: str) -> str:
    """Run tests of tiles with kernels that are compiled anew; return what pytest printed."""
    files = [
        str(TESTS / "engines" / "test_tiles.py"),
        str(TESTS / "models" / "test_tiled_attention.py"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_LEVEL, level, chosen, *files, *options],
        env={**os.environ, "EDUCE_CACHE": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    return done.stdout


@pytest.mark.parametrize("level", ["-O1", "-O2"])
def test_other_levels_of_optimisation(level, tmp_path):
    """gcc does not know what its own tile instructions read: this is where leaving it out shows."""
    run_again(tmp_path, level, FEW)


EMULATED = pytest.mark.skipif(
    getattr(kernels(), "has_tiles", False), reason="this processor's own tiles are tested"
)
HEADER = str(TESTS / "engines" / "emulated_tiles.h")


@EMULATED
def test_on_emulated_tiles(tmp_path):
    """What only processors with tiles run is right, and its tiles have the right shapes."""
    told = run_again(tmp_path, "-O3", f"tiles and ({FEW}) and not 1400", HEADER)
    assert "skipped" not in told  # as they are on this processor's own


@EMULATED
@pytest.mark.slow
def test_everything_on_emulated_tiles(tmp_path):
    run_again(tmp_path, "-O3", "tiles", HEADER)


AT_THE_EDGE = """
import ctypes, mmap, sys, torch
from educe.engines.embedded.tiles import TiledMatrix, Tiles
from educe.native.build import open_library
from educe.native.kernels import kernels
from educe.native.tables import TiledTable

libc, kept = ctypes.CDLL(None, use_errno=True), []

def guarded(tensor):
    "The same numbers, ending where a page begins that nobody may read."
    size = tensor.numel() * tensor.itemsize
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, room + mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert libc.mprotect(ctypes.c_void_p(first + room), mmap.PAGESIZE, 0) == 0
    kept.append(pages)
    raw = torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=room - size)
    out = raw.view(tensor.dtype).view(tensor.shape)
    out.copy_(tensor)
    return out

native = kernels()
tiles_on = ctypes.c_int.in_dll(open_library().library, "educe_tiles")
tiles_on.value = int(sys.argv[1] == "tiles")
for rows in (1, 8, 15, 16, 17, 31, 33, 49, 70):
    tiles = Tiles(native, 64 * 576 * 3)
    weight = torch.randn(64, 576).bfloat16()
    matrix = TiledMatrix(tiles, weight)
    x, out = guarded(torch.randn(rows, 576).bfloat16()), guarded(torch.zeros(rows, 64))
    matrix.into(out, x)
    assert torch.allclose(out, x.float() @ weight.float().T, atol=1e-2, rtol=1e-4), rows
    whole, scales = weight.char(), torch.rand(64)
    matrix = TiledMatrix(tiles, whole, scales=guarded(scales))
    x, own = guarded(torch.randint(-127, 128, (rows, 576)).char()), guarded(torch.rand(rows))
    matrix.into(out := guarded(torch.zeros(rows, 64)), x, own)
    assert torch.allclose(out, x.float() @ whole.float().T * scales * own[:, None]), rows
for tokens in (1, 31, 33, 65, 200):
    table = TiledTable([(0, tokens, tokens)])
    parts = [guarded(torch.randn(tokens, n, 64).bfloat16()) for n in (6, 2, 2)]
    out, lse = native.tiled_forward(table, *parts, 0.125)
    grad = guarded(torch.randn_like(out))
    grads = native.tiled_backward(table, tuple(parts), out, lse, grad, 0.125)
    assert all(torch.isfinite(x).all() for x in (out, *grads)), tokens
print("all within their pages")
"""


def test_nothing_is_read_or_written_past_the_end(product_way):
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_EDGE, product_way],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all within their pages" in done.stdout
