"""Replies that only repeat the prompt or a part of it.

Once in a while a copy is right (the larger of two numbers stands in the prompt). Paid more often
than the domain's floor, it is a hole: a model learns to repeat instead of to answer.
"""

from __future__ import annotations

import re

from educe.core.protocols import Domain, Services
from educe.core.types import Split, assistant
from educe.domains.check import play

_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_QUOTED = re.compile(
    r"(?<!\w)'([^'\n]{1,60})'(?!\w)|\"([^\"\n]{1,60})\"|“([^”\n]{1,60})”|`([^`\n]{1,60})`"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")


def copied_parts(prompt: str) -> dict[str, str]:
    """Return parts of a prompt by what they are called; only those that it has."""
    sentences = [s for s in _SENTENCES.split(prompt.strip()) if s]
    lines = [line for line in prompt.splitlines() if line.strip()]
    quoted = [next(g for g in m.groups() if g) for m in _QUOTED.finditer(prompt)]
    parts = {
        "the prompt": prompt,
        "its first sentence": sentences[0] if sentences else "",
        "its last sentence": sentences[-1] if sentences else "",
        "its first line": lines[0] if lines else "",
        "its last line": lines[-1] if lines else "",
        "its first half": prompt[: len(prompt) // 2],
        "its second half": prompt[len(prompt) // 2 :],
        "all before the question": prompt[: prompt.rfind("\n\n")] if "\n\n" in prompt else "",
        "behind its last colon": prompt.rpartition(":")[2].strip() if ":" in prompt else "",
        "its words in quotes": " ".join(dict.fromkeys(quoted)),
        "its first word in quotes": quoted[0] if quoted else "",
        "its last word in quotes": quoted[-1] if quoted else "",
    }
    return {name: text for name, text in parts.items() if text.strip()}


def picked_numbers(prompt: str) -> dict[str, str]:
    """Return the first and the last number: guesses rather than copies, told and not judged."""
    numbers = _NUMBER.findall(prompt)
    return {"its first number": numbers[0], "its last number": numbers[-1]} if numbers else {}


def paid_copies(domain: Domain, num_tasks: int, services: Services) -> dict[str, float]:
    """Return the mean score of each part of the prompt given back, on train tasks that have it."""
    totals: dict[str, list[float]] = {}
    for index in range(num_tasks):
        task = domain.task(Split.TRAIN, index)
        for form, text in copied_parts(task.messages[-1].content).items():
            score = play(domain, task, (assistant(text),), services)
            totals.setdefault(form, []).append(score.value or 0.0)
    # A part that few prompts have says little about the domain.
    return {f: sum(v) / len(v) for f, v in totals.items() if 2 * len(v) >= num_tasks}
