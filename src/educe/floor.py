"""The floor of a decode or optimizer step: its matrix products alone, and the bytes it must move.

Every product of the real list (query/key/value, output, gate-up, down, head) is timed alone, by the
fastest way torch offers, at the step's number of rows; cached keys, values and logits are counted
at the rate of a large copy. All in the process that asks, so in the same run.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def seconds_of(work: Callable[[], Any], repeats: int = 7) -> float:
    """Return the median time of one call, warm."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matrices(folder: Path) -> list[tuple[int, int, int]]:
    """Return (outputs, inputs, how often) of a model's matrix products for one token."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    query = config["num_attention_heads"] * head
    other = config.get("num_key_value_heads", config["num_attention_heads"]) * head
    layers = config["num_hidden_layers"]
    return [
        (query + 2 * other, width, layers),
        (width, query, layers),
        (2 * inner, width, layers),
        (width, inner, layers),
        (config["vocab_size"], width, 1),
    ]


def product_seconds(outputs: int, inputs: int, rows: int, dtype: Any, copies: int) -> float:
    """Time x W^T for weights too many to stay in a cache, packed where torch can pack them."""
    import torch

    x = torch.randn(rows, inputs, dtype=dtype)
    weights = [torch.randn(outputs, inputs, dtype=dtype) for _ in range(copies)]
    packed = [_pack(w, rows) for w in weights]

    def run(way: int) -> None:
        for plain, own in zip(weights, packed, strict=True):
            if way and own is not None:
                torch.ops.mkldnn._linear_pointwise(x, own, None, "none", [], "")
            else:
                torch.nn.functional.linear(x, plain)

    with torch.no_grad():
        return min(seconds_of(lambda: run(0)), seconds_of(lambda: run(1))) / copies


def _pack(weight: Any, rows: int) -> Any:
    """Return the weight in the matrix kernel's own layout, None where there is none."""
    import torch

    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    except (RuntimeError, AttributeError):  # a build of torch without oneDNN
        return None


def copy_rate() -> float:
    """Return bytes a second of reading one large array into another."""
    import torch

    source, target = torch.empty(2**26), torch.empty(2**26)
    source.fill_(1.0)
    return 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source))


def decode_floor(folder: Path, rows: int, dtype: Any, context: int) -> dict[str, float]:
    """Return the seconds one decode step needs for rows with ``context`` cached tokens each.

    The cache is counted once a row (its own suffix); logits are written and read once in fp32.
    """
    products = 0.0
    for outputs, inputs, count in matrices(folder):
        copies = 1 if outputs * inputs > 10_000_000 else 12
        products += count * product_seconds(outputs, inputs, rows, dtype, copies)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    size = 2 if "16" in str(dtype) else 4
    cached = rows * context * config["num_hidden_layers"] * 2 * size
    cached *= config.get("num_key_value_heads", config["num_attention_heads"]) * head
    logits = rows * config["vocab_size"] * 4 * 2
    traffic = (cached + logits) / copy_rate()
    return {"products_s": products, "traffic_s": traffic, "seconds": products + traffic}


def training_floor(folder: Path, tokens: int, trained: int, dtype: Any) -> dict[str, float]:
    """Return the seconds that one forward and backward over packed tokens needs.

    Forward, input gradient and weight gradient of every product; the head on trained tokens only.
    """
    import torch

    total = 0.0
    with torch.no_grad():
        for outputs, inputs, count in matrices(folder):
            rows = trained if outputs == matrices(folder)[-1][0] else tokens
            part = min(rows, 1024)
            x = torch.randn(part, inputs, dtype=dtype)
            w = torch.randn(outputs, inputs, dtype=dtype)
            g = torch.randn(part, outputs, dtype=dtype)
            parts = (
                seconds_of(partial(torch.nn.functional.linear, x, w), 3),
                seconds_of(partial(torch.mm, g, w), 3),
                seconds_of(partial(torch.mm, g.T, x), 3),
            )
            total += count * sum(parts) * rows / part
    return {"seconds": total}
