"""The compiled attention beside torch's flash kernel: when which one is faster.

    python benchmarks/native_attention.py [--threads 2] [--repeats 5]

One layer of SmolLM2-135M's shape (9 query heads, 3 key/value heads of 64) in bf16: forward and
backward over packed segments, ours for short segments, ours in blocks (on matrix tiles or by
vectors of bf16 pairs, where the processor has them) and torch's in turns, and one call of decoding
for 64 rows whose layers are visited in turn, as a step does. Milliseconds, the median of the
repeats. About a minute.
``_FEW_KEYS`` of models/attention.py is chosen by the first table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lock import quiet_machine

HEADS, KV_HEADS, WIDTH, LAYERS = 9, 3, 64, 30


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    with quiet_machine():
        import torch

        import educe  # noqa: F401  (asks for large pages before torch allocates)
        from educe.native.kernels import kernels

        torch.set_num_threads(given.threads)
        if kernels() is None:
            sys.exit("no compiled kernels here; `educe doctor` says why")
        for name, spans in cases().items():
            print(trained(name, spans, given.repeats), flush=True)
        for held in (1, 64, 127):
            print(decoded(held, given.repeats), flush=True)
    return 0


def cases() -> dict[str, list[tuple[int, int, int]]]:
    """Segments (start, end, end of what descends from it) by name."""

    def group(start: int, prompt: int, answers: int, length: int) -> list[tuple[int, int, int]]:
        first = start + prompt
        own = [(first + i * length, first + (i + 1) * length) for i in range(answers)]
        return [(start, first, first + answers * length), *((a, b, b) for a, b in own)]

    return {
        "64 segments of 64": [(i * 64, i * 64 + 64, i * 64 + 64) for i in range(64)],
        "five prompts of 110, eight answers of 73": [
            span for i in range(5) for span in group(i * (110 + 8 * 73), 110, 8, 73)
        ],
        "a prompt of 2048, eight answers of 64": group(0, 2048, 8, 64),
        "one segment of 2048": [(0, 2048, 2048)],
        "one segment of 8192": [(0, 8192, 8192)],
    }


def trained(name: str, cut: Sequence[tuple[int, int, int]], repeats: int) -> str:
    """Return the times of a layer's attention, forwards and backwards."""
    import torch

    from educe.core.forest import Span
    from educe.models import attention
    from educe.native.kernels import kernels
    from educe.native.tables import ForestTable

    spans = [Span(*part) for part in cut]
    tokens = max(span.last for span in spans)
    given = [
        torch.randn(1, tokens, heads, WIDTH).bfloat16().transpose(1, 2).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    weight = torch.randn(1, tokens, HEADS, WIDTH).bfloat16().transpose(1, 2)
    times: dict[str, list[tuple[float, float]]] = {"short": [], "torch": []}
    native = kernels()
    if native is not None and native.can_tile(WIDTH):
        times["blocks"] = []
    for repeat in range(repeats + 1):
        for kind, found in times.items():
            context = attention.ForestContext(spans)
            if kind == "torch":
                context._table_of = lambda *_: None  # type: ignore[method-assign]
            elif kind == "short":
                table = ForestTable(cut)
                context._table_of = lambda *_, kept=table: kept  # type: ignore[misc, method-assign]
            begin = time.perf_counter()
            out = context.attend(0, given[0], given[1], given[2], WIDTH**-0.5)
            middle = time.perf_counter()
            torch.autograd.grad(out, given, weight)
            end = time.perf_counter()
            if repeat:  # the first one warms up
                found.append((1e3 * (middle - begin), 1e3 * (end - middle)))
    told = [
        f"{kind} {median(t[0] for t in found):.1f} + {median(t[1] for t in found):.1f}"
        for kind, found in times.items()
    ]
    return f"{name}: {', '.join(told)} ms (forward + backward)"


def decoded(held: int, repeats: int) -> str:
    """Return the time of a decode call: 64 rows, eight a prompt of 150, ``held`` own tokens."""
    import torch

    from educe.engines.embedded.cache import CacheStore
    from educe.engines.embedded.native_attention import ChainTable, NativeDecodeContext
    from educe.native.kernels import kernels

    native = kernels()
    assert native is not None
    config = SimpleNamespace(
        num_attention_heads=HEADS, num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS,
        head_dim=WIDTH, hidden_size=HEADS * WIDTH,
    )  # fmt: skip
    store = CacheStore(config, 64, torch.bfloat16, "cpu")
    store.reserve(held + 1)
    store.new_segments(list(range(8)), [150] * 8)
    rows = [SimpleNamespace(chain=(i // 8,), suffix_length=held) for i in range(64)]
    table = ChainTable(store, [row.chain for row in rows])
    context = NativeDecodeContext(store, rows, table, native)  # type: ignore[arg-type]
    joined = SimpleNamespace(
        values=torch.randn(64, (HEADS + 2 * KV_HEADS) * WIDTH).bfloat16(), scales=None, bias=None,
        rotation=torch.randn(64, 1, WIDTH // 2, dtype=torch.complex64),
        layer=SimpleNamespace(head_norms=None),
        shape=SimpleNamespace(heads=HEADS, scale=WIDTH**-0.5, epsilon=1e-5),
    )  # fmt: skip
    out = torch.empty(64, HEADS * WIDTH, dtype=torch.bfloat16)
    native.use_threads()
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        for layer in range(LAYERS):
            context.attend_joined(layer, joined, out)  # type: ignore[arg-type]
        times.append(1e3 * (time.perf_counter() - begin) / LAYERS)
    return f"decode, 64 rows of {held} own tokens: {median(times[1:]):.3f} ms a layer"


if __name__ == "__main__":
    raise SystemExit(main())
