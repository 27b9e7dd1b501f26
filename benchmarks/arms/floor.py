"""The floor of a work: its matrix products alone and the bytes it moves; prints one JSON line.

    python floor.py MODEL PROMPTS.json GROUP MAX_TOKENS --kind decode|train [--dtype bfloat16]

decode: completed tokens a second of all rows together, each at its middle length, ends ignored.
train: packed tokens a second of forward and backward over 64 sequences of 64 tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--kind", choices=["decode", "train"], required=True)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()

    import torch

    from educe.floor import decode_floor, training_floor

    torch.set_num_threads(2)
    dtype = getattr(torch, given.dtype)
    if given.kind == "decode":
        rows = len(json.loads(given.prompts.read_text(encoding="utf-8"))) * given.group
        found = decode_floor(given.model, rows, dtype, given.max_tokens // 2)
        rate = rows / found["seconds"]
    else:
        tokens = 64 * 64
        found = training_floor(given.model, tokens, tokens, dtype)
        rate = tokens / found["seconds"]
    print(json.dumps({**found, "rate": rate}))


if __name__ == "__main__":
    main()
