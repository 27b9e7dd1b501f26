"""From samples to a task's score (reducers), and metrics that only exist over a whole corpus.

F1 or AUROC of a corpus is not the mean of anything per item: :func:`corpus_estimate` computes the
metric on all items and its interval by resampling whole clusters.
"""

from __future__ import annotations

import statistics as builtin_statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from educe.evaluation.statistics.estimates import Estimate, Floats
from educe.evaluation.statistics.resampling import bootstrap_statistic

Reducer = Callable[[Sequence[float]], float]
CorpusMetric = Callable[[Floats, Floats], float]


def _mode(values: Sequence[float]) -> float:
    """The most frequent value; of several, the lowest, so that a tie never flatters."""
    counts = Counter(values)
    top = max(counts.values())
    return min(v for v, n in counts.items() if n == top)


REDUCERS: Mapping[str, Reducer] = {
    "mean": lambda v: float(np.mean(v)),
    "median": lambda v: float(builtin_statistics.median(v)),
    "mode": _mode,
    "max": lambda v: float(max(v)),
    "min": lambda v: float(min(v)),
}


def reduce_samples(samples: Sequence[float], reducer: str = "mean") -> float:
    """Return one score of a task from all its samples (never only the first).

    Raises ValueError for no samples or an unknown reducer.
    """
    if reducer not in REDUCERS:
        raise ValueError(f"unknown reducer {reducer!r}; known are {', '.join(sorted(REDUCERS))}")
    if not samples:
        raise ValueError("a task without scored samples has no score; leave it out and count it")
    return REDUCERS[reducer](samples)


def f1_micro(predicted: Floats, true: Floats) -> float:
    """Return F1 of the positive class (1) over all items; NaN without any positive at all."""
    hits = float(((predicted == 1) & (true == 1)).sum())
    total = float((predicted == 1).sum() + (true == 1).sum())
    return 2 * hits / total if total else float("nan")


def f1_macro(predicted: Floats, true: Floats) -> float:
    """Return the unweighted mean over the true classes of each one's F1."""
    classes = np.unique(true)
    return float(
        np.mean(
            [f1_micro((predicted == c).astype(float), (true == c).astype(float)) for c in classes]
        )
    )


def auroc(scores: Floats, true: Floats) -> float:
    """Return the chance that a positive scores above a negative, ties as one half; NaN if one
    class is missing."""
    from scipy.stats import rankdata

    positives = true == 1
    num_pos, num_neg = int(positives.sum()), int((~positives).sum())
    if not num_pos or not num_neg:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[positives].sum() - num_pos * (num_pos + 1) / 2) / (num_pos * num_neg))


def recall_at_false_positive_rate(scores: Floats, true: Floats, rate: float = 0.01) -> float:
    """Return recall at the lowest threshold whose false-positive rate is at most ``rate``."""
    negatives, positives = np.sort(scores[true != 1])[::-1], scores[true == 1]
    if not len(negatives) or not len(positives):
        return float("nan")
    allowed = int(np.floor(rate * len(negatives) + 1e-9))
    # Flag strictly above the first negative that must not be flagged.
    return float((positives > negatives[allowed]).mean()) if allowed < len(negatives) else 1.0


def _accuracy(predicted: Floats, true: Floats) -> float:
    return float((predicted == true).mean())


CORPUS_METRICS: Mapping[str, CorpusMetric] = {
    "accuracy": _accuracy,
    "f1_micro": f1_micro,
    "f1_macro": f1_macro,
    "auroc": auroc,
    "recall_at_1pct_fpr": recall_at_false_positive_rate,
}


def corpus_estimate(
    metric: str | CorpusMetric,
    predicted: ArrayLike,
    true: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
) -> Estimate:
    """Return a corpus metric with its cluster-bootstrap interval.

    Args:
        metric: a name of ``CORPUS_METRICS`` or a function of (predicted or scores, true).
    """
    if isinstance(metric, str) and metric not in CORPUS_METRICS:
        raise ValueError(f"unknown metric {metric!r}; known are {', '.join(CORPUS_METRICS)}")
    function = CORPUS_METRICS[metric] if isinstance(metric, str) else metric
    x, y = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) == 0:
        raise ValueError(f"expected equally many predictions and truths, got {x.shape}, {y.shape}")
    return bootstrap_statistic(
        lambda index: function(x[index], y[index]),
        len(x),
        clusters,
        level=level,
        resamples=resamples,
    )
