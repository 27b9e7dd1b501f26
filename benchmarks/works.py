"""The works that speed is measured on, and the prompts they share.

W1: 8 prompts x 8 completions of at most 128 tokens, temperature 1, no truncation of the
distribution, every weight trained. W2: 4 prompts of 2,048 tokens x 8 completions of at most 64.
W3: one sequence of 8,192 tokens, forward and backward.

Prompts are short reasoning-gym questions in SmolLM2's chat format. ``--prompts FILE`` (a JSON list
of rendered strings) takes others.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

FAMILIES = (
    "chain_sum",
    "basic_arithmetic",
    "word_sorting",
    "letter_counting",
    "spell_backward",
    "gcd",
    "number_sorting",
    "prime_factorization",
)


@dataclass(frozen=True)
class Work:
    """``prompt_tokens`` 0 leaves the prompts as they are, else filler lengthens them to that."""

    num_prompts: int
    group_size: int
    max_tokens: int
    prompt_tokens: int = 0


WORKS = {"W1": Work(8, 8, 128), "W2": Work(4, 8, 64, 2048)}


def write_prompts(path: Path, tokenizer: object, work: Work, given: Path | None = None) -> None:
    """Write the work's rendered prompts as a JSON list."""
    if given is not None:
        texts = json.loads(given.read_text(encoding="utf-8"))[: work.num_prompts]
    else:
        texts = [render(question) for question in questions(work.num_prompts)]
    if work.prompt_tokens:
        texts = [lengthen(t, i, work.prompt_tokens, tokenizer) for i, t in enumerate(texts)]
    path.write_text(json.dumps(texts), encoding="utf-8")


def questions(count: int) -> list[str]:
    import reasoning_gym

    sets = [reasoning_gym.create_dataset(name, size=count, seed=7) for name in FAMILIES]
    return [sets[i % len(sets)][i]["question"] for i in range(count)]


def render(question: str) -> str:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def lengthen(text: str, index: int, num_tokens: int, tokenizer: object) -> str:
    """Put seeded filler words before the question until the prompt has ``num_tokens`` tokens."""
    encode = lambda s: tokenizer(s, add_special_tokens=False).input_ids  # noqa: E731
    words = ["river", "stone", "green", "walks", "seven", "lamp", "quiet", "north", "paper"]
    draw = random.Random(index)
    filler = encode(" ".join(draw.choice(words) for _ in range(num_tokens)))
    kept = tokenizer.decode(filler[: num_tokens - len(encode(text)) - 1])
    head, mark, tail = text.rpartition("<|im_start|>user\n")
    return f"{head}{mark}{kept}\n\n{tail}"
