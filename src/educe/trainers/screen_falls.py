"""Has a stage fallen below its best look at the screen tasks, or is that chance?

Each look answers the same tasks, so two looks are compared task by task. The best look is a maximum
and so too high by luck; the bound in ``educe.trainers.guards`` allows for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# A domain's scores, in the order of its screen tasks; None where one has none.
ScreenValues = Mapping[str, Sequence[float | None]]


def mean_screen_score(values: ScreenValues) -> float:
    """Return the mean over domains of their tasks' mean, NaN when nothing is scored."""
    means = [sum(known) / len(known) for known in _known(values) if known]
    return sum(means) / len(means) if means else math.nan


def screen_fall(best: ScreenValues, now: ScreenValues) -> tuple[float, float]:
    """Return (by how much ``now`` is below ``best``, standard error of that), over the tasks that
    both have scored; (0, infinity) when there are none.

    The sum of squares counts the largest difference once more, so that a handful of tasks which
    agree by chance are no proof.
    """
    falls = [
        before - after
        for name in sorted(best.keys() & now.keys())
        for before, after in zip(best[name], now[name], strict=False)
        if before is not None and after is not None
    ]
    if not falls:
        return 0.0, math.inf
    mean = sum(falls) / len(falls)
    squares = sum((f - mean) ** 2 for f in falls) + max(f * f for f in falls)
    return mean, math.sqrt(squares) / len(falls)


def _known(values: ScreenValues) -> list[list[float]]:
    return [[v for v in values[name] if v is not None] for name in sorted(values)]
