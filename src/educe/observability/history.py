"""The metrics of a run as series, for whatever draws or judges them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from educe.core.protocols import MetricRow
from educe.observability.metric_names import split_domain_metric

Series = list[tuple[int, float]]
_NOISE = 1e-6


class History:
    """Series of (step, value) by (stage, name), each kept up to ``capacity`` newest steps.

    Args:
        capacity: bounds the memory of long runs; None keeps everything.
    """

    def __init__(self, rows: Iterable[MetricRow] = (), *, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._series: dict[tuple[str, str], deque[tuple[int, float]]] = {}
        self._last: dict[str, MetricRow] = {}
        for row in rows:
            self.add(row)

    def add(self, row: MetricRow) -> None:
        """Take a row in; a step that was seen before is replaced, with all that followed it."""
        for name, value in row.values.items():
            series = self._series.get((row.stage, name))
            if series is None:
                series = self._series[row.stage, name] = deque(maxlen=self._capacity)
            while series and series[-1][0] >= row.step:
                series.pop()
            series.append((row.step, float(value)))
        self._last[row.stage] = row

    def stages(self) -> list[str]:
        return list(self._last)

    def last(self, stage: str) -> MetricRow | None:
        return self._last.get(stage)

    def names(self, stage: str) -> list[str]:
        return [name for s, name in self._series if s == stage]

    def series(self, stage: str, name: str) -> Series:
        """Return the series of a full metric name (``rl/reward``, ``domain/x/score``)."""
        return list(self._series.get((stage, name), ()))

    def overall(self, stage: str, name: str) -> Series:
        """Return the series of ``STAGE/name``."""
        return self.series(stage, f"{stage}/{name}")

    def domains(self, stage: str) -> list[str]:
        """Return the domains with metrics in a stage, sorted."""
        pairs = (split_domain_metric(name) for name in self.names(stage))
        return sorted({pair[0] for pair in pairs if pair is not None})

    def domain(self, stage: str, domain: str, name: str) -> Series:
        return self.series(stage, f"domain/{domain}/{name}")


def finite_values(series: Iterable[tuple[int, float]]) -> list[float]:
    """Return the finite values of a series, in order."""
    return [value for _, value in series if math.isfinite(value)]


def smooth(values: list[float], window: int) -> list[float]:
    """Return the mean over a centred window of about ``window`` values, narrower at both ends.

    Being centred it does not trail behind a trend, and both ends keep their own value.
    """
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    smoothed = []
    for i in range(len(values)):
        half = min(window // 2, i, len(values) - 1 - i)
        smoothed.append((sums[i + half + 1] - sums[i - half]) / (2 * half + 1))
    return smoothed


def visible_range(values: list[float]) -> tuple[float, float]:
    """Return the (low, high) that a curve of finite values is drawn in.

    A spread within the rounding of fp32 is none: such a curve is a line in the middle of a range of
    1, or its noise would fill the height like a signal.
    """
    low, high = min(values), max(values)
    if high - low <= _NOISE * max(1.0, abs(low), abs(high)):
        middle = (low + high) / 2
        return middle - 0.5, middle + 0.5
    return low, high
