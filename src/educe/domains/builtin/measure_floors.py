"""Measure the best constant answer of each generated domain and keep it beside the generator.

    python -m educe.domains.builtin.measure_floors arithmetic

writes ``floors.json`` of that package. A constant is chosen among the golds of one half of the
tasks and measured on the other half; a standard error is added, so the floor errs upwards. Where a
task says how many candidates it offers, picking one of them at random is a floor too.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from educe.core.protocols import Domain, Services
from educe.core.types import Split, assistant

_SERVICES = Services()


def best_constant(domain: Domain, num_tasks: int) -> tuple[float, str]:
    """Return the held-out mean score of the best constant gold, and that constant."""
    tasks = [domain.task(Split.TRAIN, i) for i in range(num_tasks)]
    half = num_tasks // 2
    counts = Counter(t.gold or "" for t in tasks[:half])
    best, best_mean = "", -1.0
    for gold, _ in counts.most_common(3):
        mean = _mean(domain, tasks[:half], gold)
        if mean > best_mean:
            best, best_mean = gold, mean
    return _mean(domain, tasks[half:], best), best


def _mean(domain: Domain, tasks: list[Any], text: str) -> float:
    values = [
        domain.score(t, None, [*t.messages, assistant(text)], _SERVICES).value or 0.0 for t in tasks
    ]
    return sum(values) / len(values)


def picking_at_random(domain: Domain, num_tasks: int) -> float:
    """Return the mean of 1 / candidates over tasks that name their number, else 0."""
    counts = [domain.task(Split.TRAIN, i).metadata.get("candidates") for i in range(num_tasks)]
    return float(sum(1 / c for c in counts if c)) / num_tasks


def measure(
    module_name: str, num_tasks: int = 600, endings: tuple[str, ...] = ("",)
) -> dict[str, float]:
    """Return the floors of the domains whose names have one of the endings, to three places."""
    module = importlib.import_module(f"educe.domains.builtin.{module_name}")
    floors: dict[str, float] = {}
    for spec in (s for s in module.specs() if s.name.endswith(endings)):
        domain = module.create(spec.name)
        mean, _ = best_constant(domain, num_tasks)
        error = math.sqrt(max(mean * (1 - mean), 1 / num_tasks) / (num_tasks / 2))
        floor = max(mean + error, picking_at_random(domain, num_tasks // 4))
        floors[spec.name] = math.ceil(1000 * floor) / 1000
    return floors


if __name__ == "__main__":
    name = sys.argv[1]
    path = Path(__file__).parent / name / "floors.json"
    is_long = name in ("long_document", "long_dialogue")
    measured = measure(name, 200, ("/tiny", "/512", "/1k")) if is_long else measure(name)
    path.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n", encoding="utf-8")
