"""TRL on one sequence, one step of its SFTTrainer; prints one JSON line.

    python trl_sequence.py MODEL TOKENS [--bf16] [--checkpointing]

Runs in a virtual environment with trl.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time

from sequence_options import options


def main() -> None:
    given = options()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(given.threads)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    draw = random.Random(0)
    ids = [draw.randrange(4, model.config.vocab_size) for _ in range(given.tokens)]
    settings = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=1,
        max_length=given.tokens,
        max_steps=1,
        learning_rate=1e-5,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=given.bf16,
        gradient_checkpointing=given.checkpointing,
    )
    trainer = SFTTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(given.model),
        args=settings,
        train_dataset=Dataset.from_list([{"input_ids": ids}]),
    )
    start = time.perf_counter()
    trainer.train()
    line = {
        "tokens": given.tokens,
        "seconds": time.perf_counter() - start,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
