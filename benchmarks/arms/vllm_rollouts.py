"""vLLM on a rollout work; prints one JSON line a call. Runs in a virtual environment of its own.

python vllm_rollouts.py MODEL PROMPTS.json GROUP MAX_TOKENS [--dtype bfloat16] [--calls 2]
    [--empty-cache]
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import tempfile
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
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--empty-cache", action="store_true", help="compile everything anew")
    given = parser.parse_args()
    if given.empty_cache:
        # Some parts are compiled by torch itself, into a cache of its own.
        os.environ["VLLM_CACHE_ROOT"] = empty = tempfile.mkdtemp()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{empty}/torch"
        atexit.register(shutil.rmtree, empty, ignore_errors=True)

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0-1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    model = LLM(model=given.model, dtype=given.dtype, max_model_len=1024, max_num_seqs=64)
    texts = json.loads(given.prompts.read_text(encoding="utf-8"))
    for call in range(given.calls):
        start = time.perf_counter()
        done = model.generate(
            texts,
            SamplingParams(n=given.group, max_tokens=given.max_tokens, temperature=1.0, logprobs=0),
            use_tqdm=False,
        )
        seconds = time.perf_counter() - start
        tokens = sum(len(c.token_ids) for request in done for c in request.outputs)
        line = {"call": call, "seconds": seconds, "tokens": tokens, "rate": tokens / seconds}
        print(json.dumps({**line, "since_start": time.perf_counter() - BEGIN}), flush=True)


if __name__ == "__main__":
    main()
