"""educe's embedded engine on a rollout work; prints one JSON line a call.

python educe_rollouts.py MODEL PROMPTS.json GROUP MAX_TOKENS [--dtype bfloat16] [--calls 2]
    [--fixed] [--forward module]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

BEGIN = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--forward", default="auto")
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--fixed", action="store_true", help="ignore the end token")
    given = parser.parse_args()

    import torch

    from educe.core.protocols import GenerateRequest, SamplingParameters
    from educe.engines.embedded import EmbeddedEngine
    from educe.models.load import chat_format, load

    torch.set_num_threads(2)
    model = load(given.model)
    chat = chat_format(model)
    dtype = None if given.dtype == "float32" else getattr(torch, given.dtype)
    engine = EmbeddedEngine(
        model,
        stop_token_ids=chat.stop_token_ids,
        decode=chat.decode,
        max_rows=64,
        dtype=dtype,
        forward=given.forward,
    )
    texts = json.loads(given.prompts.read_text(encoding="utf-8"))
    prompts = [model.tokenizer(t, add_special_tokens=False).input_ids for t in texts]
    for call in range(given.calls):
        requests = [
            GenerateRequest(
                f"{call}-{p}-{g}",
                tuple(ids),
                SamplingParameters(
                    max_tokens=given.max_tokens,
                    temperature=1.0,
                    seed_key=1_000_003 * call + 1_009 * p + g,
                    ignore_end=given.fixed,
                ),
                group_key=f"{call}-{p}",
            )
            for p, ids in enumerate(prompts)
            for g in range(given.group)
        ]
        start = time.perf_counter()
        done = engine.generate(requests)
        seconds = time.perf_counter() - start
        tokens = sum(len(c.token_ids) for c in done)
        line = {
            "call": call,
            "seconds": seconds,
            "tokens": tokens,
            "rate": tokens / seconds,
            "since_start": time.perf_counter() - BEGIN,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
