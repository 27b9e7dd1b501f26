"""The number of a word problem, with the number that a completion answered with on record."""

from __future__ import annotations

from dataclasses import replace

from educe.core.protocols import Services
from educe.core.types import Score, Task
from educe.rewards.outcome.numeric import final_number, numeric_match


def grade_number(task: Task, text: str, services: Services) -> Score:
    """Score 1 when the final number equals the gold (``metadata``: number), by value."""
    score = numeric_match(text, str(task.metadata["number"]))
    found = final_number(text)
    return score if found is None else replace(score, proof={"answer": str(found)})
