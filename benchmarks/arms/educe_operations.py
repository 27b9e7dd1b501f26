"""educe: which tensor operations a decode step or a training pass is made of; prints JSON lines.

    python educe_operations.py MODEL PROMPTS.json GROUP MAX_TOKENS --kind decode|train
        [--dtype bfloat16] [--threads 2] [--clock wall|cpu] [--skip 8] [--steps 16] [--sequences 64]

decode: ``--steps`` steps of all rows, ends ignored, after ``--skip`` steps more.
train: forward and backward over ``--sequences`` packed sequences of 64 random tokens, twice; the
second counts.

The first line is the whole without a probe. Then every operation is timed where it is called from
Python (the sum misses what Python itself takes), a line for each kind. ``--clock cpu`` counts the
calling thread's own processor time: with ``--threads 1`` shares are right on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PRODUCTS = ("mm", "addmm", "bmm", "linear", "_linear_pointwise", "qlinear_pointwise", "baddbmm")
CLOCKS: dict[str, Callable[[], int]] = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--kind", choices=["decode", "train"], required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--skip", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=64)
    given = parser.parse_args()

    import torch

    torch.set_num_threads(given.threads)
    work = _decode(given) if given.kind == "decode" else _train(given)
    clock = CLOCKS[given.clock]
    begin = clock()
    repeats = work()
    whole = (clock() - begin) / 1e6 / repeats
    print(json.dumps({"kind": given.kind, "whole_ms": round(whole, 3)}), flush=True)
    with timed_operations(clock) as found:
        repeats = work()
    for (part, name), (count, spent) in sorted(found.items(), key=lambda item: -item[1][1]):
        line = {
            "part": part,
            "operation": name,
            "calls": round(count / repeats, 1),
            "ms": round(spent / 1e6 / repeats, 3),
        }
        print(json.dumps(line), flush=True)


@contextmanager
def timed_operations(clock: Callable[[], int]) -> Iterator[dict[tuple[str, str], list[int]]]:
    """Count and time every operation; yields (part, operation) -> [calls, nanoseconds]."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    class Probe(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            begin = clock()
            out = func(*args, **(kwargs or {}))
            spent = clock() - begin
            entry = found[part_of(func)]
            entry[0] += 1
            entry[1] += spent
            return out

    with Probe():
        yield found


def part_of(func: Any) -> tuple[str, str]:
    """Return what kind of work an operation is, and its name."""
    name = func.overloadpacket.__name__
    if name in PRODUCTS:
        return "products", name
    if "flash_attention" in name:
        return "attention kernels", name
    return "other", name


def _decode(given: argparse.Namespace) -> Callable[[], int]:
    import torch

    from educe.core.protocols import GenerateRequest, SamplingParameters
    from educe.engines.embedded import EmbeddedEngine
    from educe.models.load import chat_format, load

    model = load(given.model)
    chat = chat_format(model)
    dtype = None if given.dtype == "float32" else getattr(torch, given.dtype)
    texts = json.loads(given.prompts.read_text(encoding="utf-8"))
    prompts = [tuple(model.tokenizer(t, add_special_tokens=False).input_ids) for t in texts]
    engine = EmbeddedEngine(
        model,
        stop_token_ids=chat.stop_token_ids,
        decode=chat.decode,
        max_rows=len(prompts) * given.group,
        dtype=dtype,
    )
    for p, ids in enumerate(prompts):
        for g in range(given.group):
            parameters = SamplingParameters(
                max_tokens=given.max_tokens, seed_key=1_009 * p + g, ignore_end=True
            )
            engine.submit(GenerateRequest(f"{p}-{g}", ids, parameters, group_key=str(p)))
    for _ in range(1 + given.skip):
        engine.step()

    def work() -> int:
        for _ in range(given.steps):
            engine.step()
        return int(given.steps)

    return work


def _train(given: argparse.Namespace) -> Callable[[], int]:
    import torch
    from educe_packed import packs_of

    from educe.algorithms.catalogue import BUNDLES
    from educe.algorithms.losses import build_loss
    from educe.models.load import load
    from educe.trainers.step import forward_pack, pack_loss

    model = load(given.model)
    bundle = BUNDLES["grpo"]
    losses = {bundle.formula(): build_loss(bundle)}
    packs = packs_of(given.sequences, bundle.formula(), model.head_weight().shape[0])
    dtype = None if given.dtype == "float32" else getattr(torch, given.dtype)

    def work() -> int:
        for pack in packs:
            loss, _, _ = pack_loss(forward_pack(model, pack, dtype), pack, losses)
            loss.backward()  # type: ignore[no-untyped-call]
        for _, parameter in model.trainable():
            parameter.grad = None
        return 1

    work()
    return work


if __name__ == "__main__":
    main()
