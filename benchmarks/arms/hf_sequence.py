"""Plain transformers on one sequence of seeded tokens, forward and backward; prints one JSON line.

    python hf_sequence.py MODEL TOKENS [--bf16] [--checkpointing]

Attention is transformers' default (scaled_dot_product_attention), the loss its own.
"""

from __future__ import annotations

import json
import resource
import time
from contextlib import nullcontext

from sequence_options import options


def main() -> None:
    given = options()

    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    if given.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    ids = torch.randint(4, model.config.vocab_size, (1, given.tokens))
    start = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16) if given.bf16 else nullcontext():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    line = {
        "tokens": given.tokens,
        "seconds": time.perf_counter() - start,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
