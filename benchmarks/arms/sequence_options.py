"""What every arm that trains on one long sequence is told; imports nothing heavy."""

from __future__ import annotations

import argparse


def options() -> argparse.Namespace:
    """Return MODEL TOKENS [--bf16] [--checkpointing] [--threads N]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tokens", type=int)
    parser.add_argument("--bf16", action="store_true", help="autocast over fp32 weights")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()
