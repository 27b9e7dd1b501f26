"""Two reward functions for the rows of capitals.jsonl, in the signatures of TRL and of verl."""

from __future__ import annotations

from typing import Any


def names_the_answer(
    prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any
) -> list[float | None]:
    """TRL: lists in, a list out; columns of the rows arrive under their own names."""
    return [
        1.0 if gold.casefold() in completion.casefold() else 0.0
        for completion, gold in zip(completions, answer, strict=True)
    ]


def is_short(completions: list[str], log_metric: Any, **kwargs: Any) -> list[float]:
    """A second TRL reward: at most five words."""
    words = [len(completion.split()) for completion in completions]
    log_metric("words", sum(words) / len(words))
    return [1.0 if count <= 5 else 0.0 for count in words]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> dict[str, float]:
    """verl: one sample in, a number or a dict with 'score' out; other numbers become parts."""
    is_right = solution_str.strip().rstrip(".").casefold() == ground_truth.casefold()
    return {"score": float(is_right), "length": float(len(solution_str))}
