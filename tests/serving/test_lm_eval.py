"""The real lm-eval against the real server: likelihoods, perplexities and generations.

Every number is computed a second time here, by plain transformers.
"""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path

import pytest
import torch

lm_eval = pytest.importorskip("lm_eval")
# What other packages deprecate is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = [
    {"question": "The cat sat on the", "choices": [" mat", " moon", " a very long answer"],
     "answer": 0},
    {"question": "naïve café: deux et deux font", "choices": [" quatre", " cinq", " né"],
     "answer": 1},
    {"question": "x", "choices": [" y", " z", " yz"], "answer": 2},
]  # fmt: skip
CHOICES = """
task: educe_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}]
"""
ROLLING = """
task: educe_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
"""
WRITING = """
task: educe_writing
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "none"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def results(served, tiny_folder, tmp_path_factory):
    """All three tasks in one run, each batch of four requests."""
    from lm_eval.tasks import TaskManager

    folder: Path = tmp_path_factory.mktemp("lm-eval")
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    for name, text in (("a", CHOICES), ("b", ROLLING), ("c", WRITING)):
        (folder / f"{name}.yaml").write_text(text.replace("FILE", str(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        patch.setenv("OPENAI_API_KEY", "none")
        yield lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": "tiny",
                "base_url": served.client.url + "/completions",
                "tokenizer": str(tiny_folder),
                "max_length": 1024,
                "num_concurrent": 2,
                "max_retries": 1,
            },
            tasks=["educe_choices", "educe_rolling", "educe_writing"],
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            batch_size=4,
            log_samples=True,
            bootstrap_iters=0,
        )
    gc.collect()  # what its client left open ends here, where warnings pass


def plain(folder: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def likelihood(served, folder: Path, context: str, continuation: str) -> tuple[float, bool]:
    first = served.model.tokenizer.encode(context)
    ids = [*first, *served.model.tokenizer.encode(continuation)]
    logprobs = plain(folder, ids)[len(first) - 1 :]
    targets = torch.tensor(ids[len(first) :])
    picked = logprobs.gather(1, targets[:, None]).sum().item()
    return picked, bool((logprobs.argmax(-1) == targets).all())


def by_question(results, task: str) -> dict[str, dict]:
    return {s["doc"]["question"]: s for s in results["samples"][task]}


def test_likelihoods(results, served, tiny_folder):
    num_right = 0
    for row in ROWS:
        sample = by_question(results, "educe_choices")[row["question"]]
        found = [r[0] for r in sample["resps"]]
        right = [likelihood(served, tiny_folder, row["question"], c) for c in row["choices"]]
        assert [float(v) for v, _ in found] == pytest.approx([v for v, _ in right], abs=1e-3)
        assert [str(g) for _, g in found] == [str(g) for _, g in right]
        best = max(range(3), key=lambda i: right[i][0])
        num_right += best == row["answer"]
    assert results["results"]["educe_choices"]["acc,none"] == pytest.approx(num_right / 3)


def test_perplexities(results, served, tiny_folder):
    """lm-eval puts the tokenizer's BOS first; without it the first token has no likelihood."""
    total = 0.0
    for row in ROWS:
        ids = [served.model.tokenizer.bos_token_id, *served.model.tokenizer.encode(row["question"])]
        picked = plain(tiny_folder, ids).gather(1, torch.tensor(ids[1:])[:, None]).sum().item()
        total += picked
    size = sum(len(row["question"].encode()) for row in ROWS)
    found = results["results"]["educe_rolling"]["bits_per_byte,none"]
    assert found == pytest.approx(-total / size / math.log(2), abs=1e-3)


def test_generations(results, served):
    for question, sample in by_question(results, "educe_writing").items():
        body = served.client.post(
            "/completions", prompt=question, max_tokens=12, temperature=0,
            stop=["\n\n", "<|im_end|>"],
        ).body  # fmt: skip
        assert sample["resps"] == [[body["choices"][0]["text"]]]
