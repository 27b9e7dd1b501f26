"""transformers ``generate`` on a rollout work (what TRL calls on a CPU); prints one JSON line.

python hf_rollouts.py MODEL PROMPTS.json GROUP MAX_TOKENS [--dtype float32]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(given.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=getattr(torch, given.dtype))
    texts = json.loads(given.prompts.read_text(encoding="utf-8"))
    inputs = tokenizer(
        [t for t in texts for _ in range(given.group)],
        return_tensors="pt",
        padding=True,
        add_special_tokens=False,
    )
    start = time.perf_counter()
    out = model.generate(
        **inputs,
        max_new_tokens=given.max_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    seconds = time.perf_counter() - start
    end = tokenizer.eos_token_id
    rows = out[:, inputs.input_ids.shape[1] :].tolist()
    tokens = sum(r.index(end) + 1 if end in r else len(r) for r in rows)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "rate": tokens / seconds}))


if __name__ == "__main__":
    main()
