"""TRL GRPO steps on a work; prints one JSON line. Runs in a virtual environment with trl.

python trl_step.py MODEL PROMPTS.json GROUP MAX_TOKENS [--steps 1] [--bf16] [--lora] [--rows N]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--rows", type=int, default=8, help="rows of a forward and backward")
    given = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    prompts = json.loads(given.prompts.read_text(encoding="utf-8"))
    batch = len(prompts) * given.group
    rows = min(given.rows, batch)
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batch // rows,
        num_generations=given.group,
        max_completion_length=given.max_tokens,
        max_steps=given.steps,
        learning_rate=1e-5,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=given.bf16,
        gradient_checkpointing=False,
        temperature=1.0,
        beta=0.0,
        shuffle_dataset=False,
    )
    adapter = None
    if given.lora:
        from peft import LoraConfig

        adapter = LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
        peft_config=adapter,
    )
    start = time.perf_counter()
    trainer.train()
    seconds = (time.perf_counter() - start) / given.steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({"seconds": seconds, "peak_gb": peak}))


def reward(completions: list[str], **_: object) -> list[float]:
    return [float(len(c) % 7) for c in completions]


if __name__ == "__main__":
    main()
