"""Counters, gauges and histograms in Prometheus' text format.

A histogram's buckets let a reader take any quantile over any time (``histogram_quantile``).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A sum that only grows, by label values."""

    kind = "counter"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._lock = threading.Lock()
        self._values: dict[tuple[tuple[str, str], ...], float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def value(self, **labels: str) -> float:
        return self._values.get(tuple(sorted(labels.items())), 0)

    def lines(self) -> Iterable[str]:
        with self._lock:
            values = dict(self._values) or {(): 0.0}
        for key, value in sorted(values.items()):
            yield f"{self.name}{_labels(key)} {_number(value)}"


class Gauge:
    """A number that is read when it is asked for."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.name, self.text, self._read = name, text, read

    def lines(self) -> Iterable[str]:
        yield f"{self.name} {_number(self._read())}"


class Histogram:
    """Counts of values up to each of some bounds, their sum and number."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def lines(self) -> Iterable[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        running = 0
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), counts, strict=True):
            running += count
            yield f'{self.name}_bucket{{le="{bound}"}} {running}'
        yield f"{self.name}_sum {_number(total)}"
        yield f"{self.name}_count {running}"


class ServeMetrics:
    """Everything that the server counts."""

    def __init__(self) -> None:
        self.requests = Counter("educe_requests_total", "Answered requests by path and status.")
        self.finished = Counter("educe_completions_total", "Finished completions by reason.")
        self.cancelled = Counter("educe_cancelled_total", "Completions whose client went away.")
        self.prompt_tokens = Counter("educe_prompt_tokens_total", "Tokens of accepted prompts.")
        self.completion_tokens = Counter("educe_completion_tokens_total", "Tokens sampled.")
        self.scored_tokens = Counter("educe_scored_tokens_total", "Prompt tokens scored (echo).")
        self.withheld = Counter("educe_withheld_total", "Answers that the review withheld.")
        self.queued_s = Histogram("educe_queue_seconds", "Wait for a row.", _LATENCIES)
        self.first_token_s = Histogram(
            "educe_time_to_first_token_seconds", "From submission to the first token.", _LATENCIES
        )
        self.between_tokens_s = Histogram(
            "educe_inter_token_seconds", "Between two tokens of a completion.", _GAPS
        )
        self.request_s = Histogram("educe_request_seconds", "Whole requests.", _LATENCIES)
        self._gauges: list[Gauge] = []

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._gauges.append(Gauge(name, text, read))

    def text(self) -> str:
        """Return all of it in the text format."""
        known: list[Counter | Gauge | Histogram] = [
            m for m in vars(self).values() if isinstance(m, Counter | Histogram)
        ]
        lines = []
        for metric in [*known, *self._gauges]:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
            lines += metric.lines()
        return "\n".join(lines) + "\n"


def _labels(key: tuple[tuple[str, str], ...]) -> str:
    if not key:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in key) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
