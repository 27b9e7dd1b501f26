"""educe: forward and backward over packed sequences; prints one JSON line a call.

    python educe_packed.py MODEL PROMPTS.json GROUP MAX_TOKENS [--dtype bfloat16] [--calls 3]

64 sequences of 64 random tokens, all trained, no shared prefix; bf16 is autocast over fp32 weights.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--calls", type=int, default=3)
    given = parser.parse_args()

    import torch

    from educe.algorithms.catalogue import BUNDLES
    from educe.algorithms.losses import build_loss
    from educe.models.load import load
    from educe.trainers.step import forward_pack, pack_loss

    torch.set_num_threads(2)
    model = load(given.model)
    bundle = BUNDLES["grpo"]
    losses = {bundle.formula(): build_loss(bundle)}
    packs = packs_of(64, bundle.formula(), model.head_weight().shape[0])
    dtype = None if given.dtype == "float32" else getattr(torch, given.dtype)
    for call in range(given.calls):
        begin = time.perf_counter()
        for pack in packs:
            loss, _, _ = pack_loss(forward_pack(model, pack, dtype), pack, losses)
            loss.backward()
        seconds = time.perf_counter() - begin
        for _, parameter in model.trainable():
            parameter.grad = None
        print(json.dumps({"call": call, "seconds": seconds, "rate": 64 * 64 / seconds}), flush=True)


def packs_of(num_sequences: int, formula: str, vocabulary: int) -> list[Any]:
    """Return packs of at most 4,096 tokens of seeded sequences of 64 tokens, all trained."""
    import numpy as np

    from educe.rollout.packing import TrainingSample, pack_samples

    draw = np.random.default_rng(0)
    samples = []
    for number in range(num_sequences):
        streams = {
            "advantage": np.full(64, draw.normal()),
            "weight": np.full(64, 1 / (64 * num_sequences)),
            "behaviour_logprobs": np.full(64, -10.0),
            "temperature": np.ones(64),
        }
        ids = draw.integers(100, min(20_000, vocabulary), 64)
        mask = np.arange(64) >= 1
        samples.append(TrainingSample(ids, mask, streams, number, number, formula))
    return pack_samples(samples, 4096)


if __name__ == "__main__":
    main()
