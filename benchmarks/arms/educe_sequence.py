"""educe: one training step on sequences of seeded tokens; prints one JSON line.

    python educe_sequence.py MODEL TOKENS [--bf16] [--lora] [--checkpointing] [--offload]
        [--rope-factor 4] [--repeats 1] [--no-step] [--warm]

A step is packing, forward, backward (every token but the first is trained, chunked head) and AdamW.
``--warm`` takes a step on 64 tokens first, so that kernels are ready and moments are in memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tokens", type=int)
    parser.add_argument("--bf16", action="store_true", help="autocast over fp32 weights")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--rope-factor", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-step", action="store_true", help="forward and backward only")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()

    import torch

    from educe.algorithms.losses import cross_entropy
    from educe.config.settings import OptimizerSettings
    from educe.models.activations import FileShelf
    from educe.models.load import load
    from educe.trainers.step import TrainerState, accumulate_gradients, optimizer_step

    torch.set_num_threads(given.threads)
    factor = given.rope_factor
    model = load(
        given.model,
        lora={"rank": 16, "alpha": 32, "targets": "all-linear"} if given.lora else None,
        rope={"kind": "yarn", "factor": factor} if factor > 1 else None,
        checkpointing=given.checkpointing,
        offload=given.offload,
    )
    settings = OptimizerSettings(micro_batch_tokens=given.tokens)
    dtype = torch.bfloat16 if given.bf16 else None
    state = TrainerState.create(model, settings, 1e-5, compute_dtype=dtype)
    losses = {"cross_entropy": cross_entropy}
    if given.warm:
        optimizer_step(state, _samples(model, 64, -1), losses, 1e-5)
    base_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    seconds, phases = [], _Phases()
    state.timeline = phases
    for repeat in range(given.repeats):
        samples = _samples(model, given.tokens, repeat)
        begin = time.perf_counter()
        if given.no_step:
            state.optimizer.zero_grad(set_to_none=True)
            accumulate_gradients(state, samples, losses)
        else:
            optimizer_step(state, samples, losses, 1e-5)
        seconds.append(time.perf_counter() - begin)
    line = {
        "tokens": given.tokens,
        "seconds": min(seconds),
        "phases": {name: round(s / given.repeats, 3) for name, s in phases.seconds.items()},
        "base_gb": base_gb,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    if isinstance(model.shelf, FileShelf):
        line["file_gb"] = model.shelf.num_bytes / 1e9
    print(json.dumps(line), flush=True)


def _samples(model: Any, num_tokens: int, seed: int) -> list[Any]:
    """Return one sequence of seeded tokens, trained but for its first token."""
    import numpy as np

    from educe.rollout.packing import supervised_samples

    rng = np.random.default_rng(seed + 1)
    ids = rng.integers(4, model.head_weight().shape[0], num_tokens).tolist()
    mask = [False] + [True] * (num_tokens - 1)
    return supervised_samples([ids], [mask], {0: 1.0 / num_tokens})


class _Phases:
    """Adds up the seconds of a step's phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def measure(self, name: str, size: int = 0) -> _Phase:
        return _Phase(self.seconds, name)


class _Phase:
    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._begin
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent


if __name__ == "__main__":
    main()
