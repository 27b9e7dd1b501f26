"""What a decode step calls: each tensor operation costs microseconds, thousands a step add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from educe.core.protocols import GenerateRequest, SamplingParameters
from educe.engines.embedded import EmbeddedEngine
from educe.engines.embedded.sampler import sample
from educe.models.load import chat_format, load
from educe.models.tiny import save_tiny

# Products, attention and what is between them; 57 when this was written.
MOST_CALLS_A_LAYER = 60


class Count(TorchDispatchMode):
    """Counts every tensor operation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_of_a_step(folder: Path) -> int:
    model = load(str(folder))
    chat = chat_format(model)
    engine = EmbeddedEngine(
        model,
        stop_token_ids=chat.stop_token_ids,
        decode=chat.decode,
        max_rows=24,
        dtype=torch.bfloat16,
        drafts=False,
    )
    # Two prompts of different length classes: two shelves, as real batches have.
    for prompt in (tuple(range(10, 30)), tuple(range(10, 50))):
        for number in range(12):
            parameters = SamplingParameters(max_tokens=9, seed_key=number, ignore_end=True)
            name = f"{len(prompt)}-{number}"
            engine.submit(GenerateRequest(name, prompt, parameters, group_key=str(len(prompt))))
    for _ in range(4):
        engine.step()
    with Count() as count:
        engine.step()
    return count.calls


def test_a_layer_calls_few_operations(tmp_path: Path) -> None:
    shallow = calls_of_a_step(save_tiny(tmp_path / "two", num_hidden_layers=2))
    deep = calls_of_a_step(save_tiny(tmp_path / "six", num_hidden_layers=6))
    assert (deep - shallow) / 4 <= MOST_CALLS_A_LAYER


def test_the_number_of_threads_changes_no_draw() -> None:
    logits = torch.randn(40, 50_000, generator=torch.Generator().manual_seed(0))
    parameters = [SamplingParameters(max_tokens=1, seed_key=i) for i in range(40)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = sample(logits, parameters, [0] * 40)
        torch.set_num_threads(2)
        together = sample(logits, parameters, [0] * 40)
    finally:
        torch.set_num_threads(threads)
    assert alone == together
