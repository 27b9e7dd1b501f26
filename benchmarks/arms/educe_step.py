"""educe: whole GRPO steps on a work; prints one JSON line a step, then one with the peak memory.

    python educe_step.py MODEL PROMPTS.json GROUP MAX_TOKENS [--steps 2] [--bf16] [--lora] [--fixed]

A step is rollouts, rewards, advantages, packing, forward, backward, AdamW and publishing the new
weights to the engine. The reward is the same as the peer's: characters modulo 7.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast over fp32 weights")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--fixed", action="store_true", help="ignore the end token")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    given = parser.parse_args()

    import torch

    from educe.algorithms.catalogue import BUNDLES
    from educe.algorithms.losses import build_loss
    from educe.config.settings import OptimizerSettings
    from educe.core.protocols import GenerateRequest, SamplingParameters
    from educe.engines.embedded import EmbeddedEngine
    from educe.models.load import chat_format, load
    from educe.trainers.step import TrainerState, optimizer_step

    torch.set_num_threads(2)
    lora = {"rank": 16, "alpha": 32, "targets": "all-linear"} if given.lora else None
    model = load(given.model, lora=lora)
    chat = chat_format(model)
    dtype = torch.bfloat16 if given.bf16 else None
    settings = OptimizerSettings(micro_batch_tokens=given.micro_batch_tokens)
    state = TrainerState.create(model, settings, 1e-5, compute_dtype=dtype)
    engine = EmbeddedEngine(
        model, stop_token_ids=chat.stop_token_ids, decode=chat.decode, max_rows=64, dtype=dtype
    )
    bundle = BUNDLES["grpo"]
    losses = {bundle.formula(): build_loss(bundle)}
    texts = json.loads(given.prompts.read_text(encoding="utf-8"))
    prompts = [tuple(model.tokenizer(t, add_special_tokens=False).input_ids) for t in texts]
    for step in range(given.steps):
        begin = time.perf_counter()
        done = engine.generate(
            [
                GenerateRequest(
                    f"{step}-{p}-{g}",
                    ids,
                    SamplingParameters(
                        max_tokens=given.max_tokens,
                        seed_key=1_000_003 * step + 1_009 * p + g,
                        ignore_end=given.fixed,
                    ),
                    group_key=f"{step}-{p}",
                )
                for p, ids in enumerate(prompts)
                for g in range(given.group)
            ]
        )
        engine.rest()  # as the loop does
        sampled = time.perf_counter()
        lengths = [len(c.token_ids) for c in done]
        samples = training_samples(prompts, done, bundle, given.group, given.max_tokens)
        result = optimizer_step(state, samples, losses, 1e-5)
        trained = time.perf_counter()
        engine.publish(step + 1)
        end = time.perf_counter()
        line = {
            "step": step,
            "seconds": end - begin,
            "rollout_s": sampled - begin,
            "train_s": trained - sampled,
            "publish_s": end - trained,
            "tokens": sum(lengths),
            "grad_norm": result.grad_norm,
            "mismatch": result.tally.values().get("mismatch"),
        }
        print(json.dumps(line), flush=True)
    print(json.dumps({"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))


def training_samples(
    prompts: Sequence[tuple[int, ...]],
    done: Sequence[Any],
    bundle: Any,
    group: int,
    max_tokens: int,
) -> list[Any]:
    """Return the samples of a step: rewards, group advantages and per-token streams."""
    import numpy as np

    from educe.algorithms.advantages import ADVANTAGES
    from educe.algorithms.aggregate import sequence_weights
    from educe.rollout.packing import TrainingSample

    lengths = [len(c.token_ids) for c in done]
    groups = [i // group for i in range(len(done))]
    weights = sequence_weights(bundle.aggregation, lengths, groups, max_tokens)
    samples = []
    for number in range(len(prompts)):
        rows = range(number * group, (number + 1) * group)
        rewards = np.array([float(len(done[i].text) % 7) for i in rows])
        scored = np.ones(len(rewards), bool)
        advantages = ADVANTAGES[bundle.advantage](rewards, scored, bundle.advantage_eps)
        for i, advantage in zip(rows, advantages, strict=True):
            prompt, completion = prompts[number], done[i].token_ids
            size = len(prompt) + len(completion)
            behaviour = np.zeros(size)
            behaviour[len(prompt) :] = done[i].logprobs
            streams = {
                "advantage": np.full(size, advantage),
                "weight": np.full(size, weights[i]),
                "behaviour_logprobs": behaviour,
                "temperature": np.ones(size),
            }
            samples.append(
                TrainingSample(
                    np.array([*prompt, *completion], np.int64),
                    np.arange(size) >= len(prompt),
                    streams,
                    number,
                    i,
                    bundle.formula(),
                )
            )
    return samples


if __name__ == "__main__":
    main()
