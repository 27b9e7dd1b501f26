"""What a grid of lengths and depths says: the curve, the effective length, the worst depth.

Effective length is the longest length up to which the score stays at 85 % of the model's own score
at the base length (4,096 tokens where asked, else the shortest one). Its interval comes from
resampling tasks within every kind and length. Without a base score above what the control without
context gets, there is no effective length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from educe.core.seeds import numpy_random
from educe.core.types import JSON
from educe.evaluation.records import EvalRow
from educe.evaluation.statistics import Estimate, macro_average, score_estimate, wilson

BASE_LENGTH = 4096
KEEPS = 0.85
_RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class Observation:
    """One scored task of the grid."""

    kind: str
    length: int
    depth: float | None
    cluster: str
    value: float


@dataclass(frozen=True, slots=True)
class EffectiveLength:
    """``value`` None where there is none, for ``reason``. ``low`` and ``high`` are lengths of the
    grid; 0 stands for "not even the base length". ``is_at_end``: the grid is too short to tell."""

    value: int | None
    low: int
    high: int
    base_length: int
    threshold: float
    is_at_end: bool
    reason: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "base_length": self.base_length,
            "threshold": self.threshold,
            "is_at_end": self.is_at_end,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class PositionBias:
    """Regression of success on depth and its square, within kind and length.

    ``slope`` is the change from start to end, ``bend`` is positive where the middle is worse (score
    lost in the middle against the straight line); both with cluster-robust limits. ``p_value``
    tests both at once.
    """

    slope: Estimate
    bend: Estimate
    p_value: float


def curve(observations: Sequence[Observation], *, level: float = 0.95) -> dict[int, Estimate]:
    """Return for every length the mean over kinds of the mean over tasks."""
    return {
        length: macro_average([e for (_, n), e in cells.items() if n == length])
        for cells in [_cells(observations, level)]
        for length in sorted({n for _, n in cells})
    }


def _cells(observations: Sequence[Observation], level: float) -> dict[tuple[str, int], Estimate]:
    grouped: dict[tuple[str, int], list[Observation]] = {}
    for o in observations:
        grouped.setdefault((o.kind, o.length), []).append(o)
    return {
        key: score_estimate([[o.value] for o in found], [o.cluster for o in found], level=level)
        for key, found in grouped.items()
    }


def effective_length(
    observations: Sequence[Observation],
    *,
    guessed: float = 0.0,
    level: float = 0.95,
    seed: int = 0,
) -> EffectiveLength:
    """Return the effective length with its interval.

    Args:
        guessed: score of the control without context.
    """
    values: dict[tuple[str, int], list[float]] = {}
    for o in observations:
        values.setdefault((o.kind, o.length), []).append(o.value)
    lengths = sorted({n for _, n in values})
    if not lengths:
        return EffectiveLength(None, 0, 0, 0, math.nan, False, "nothing was scored")
    base = BASE_LENGTH if BASE_LENGTH in lengths else lengths[0]
    means = _means(values)
    base_low = curve(observations, level=level)[base].low
    threshold = KEEPS * means[base]
    if base_low <= guessed:
        return EffectiveLength(
            None, 0, 0, base, threshold, False,
            f"the score at {base} tokens is not above guessing ({100 * guessed:.0f} %)",
        )  # fmt: skip
    found = _longest(means, lengths, base)
    rng = numpy_random("effective-length", seed, len(observations))
    arrays = {key: np.asarray(v) for key, v in values.items()}
    drawn = []
    for _ in range(_RESAMPLES):
        resampled = {
            k: [float(v[rng.integers(0, len(v), len(v))].mean())] for k, v in arrays.items()
        }
        drawn.append(_longest(_means(resampled), lengths, base))
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf")
    return EffectiveLength(found, int(low), int(high), base, threshold, found == lengths[-1])


def _means(values: Mapping[tuple[str, int], Sequence[float]]) -> dict[int, float]:
    by_length: dict[int, list[float]] = {}
    for (_, length), found in values.items():
        by_length.setdefault(length, []).append(sum(found) / len(found))
    return {length: sum(m) / len(m) for length, m in by_length.items()}


def _longest(means: Mapping[int, float], lengths: Sequence[int], base: int) -> int:
    """Return the last length before the score first falls below the share of the base score."""
    reached = 0
    for length in lengths:
        if length > base and means[length] < KEEPS * means[base]:
            break
        reached = length
    return reached


def worst_cell(
    observations: Sequence[Observation], *, level: float = 0.95
) -> tuple[int, float, Estimate] | None:
    """Return (length, depth, estimate) of the lowest mean over kinds; None without depths."""
    grouped: dict[tuple[int, float], list[Observation]] = {}
    for o in observations:
        if o.depth is not None:
            grouped.setdefault((o.length, round(o.depth, 3)), []).append(o)
    if not grouped:
        return None
    means = {key: sum(o.value for o in found) / len(found) for key, found in grouped.items()}
    key = min(means, key=lambda k: (means[k], -k[0], k[1]))
    found = grouped[key]
    is_binary = all(o.value in (0.0, 1.0) for o in found)
    if is_binary:
        estimate = wilson(sum(o.value for o in found), len(found), level=level)
    else:
        estimate = score_estimate([[o.value] for o in found], level=level)
    return *key, estimate


def position_bias(
    observations: Sequence[Observation], *, level: float = 0.95
) -> PositionBias | None:
    """Regress success on depth and depth² with a mean of its own for every kind and length.

    None where depths do not vary enough for it or fewer than ten clusters are there.
    """
    rows = [o for o in observations if o.depth is not None]
    depths = {o.depth for o in rows}
    clusters: dict[str, int] = {}
    labels = np.array([clusters.setdefault(o.cluster, len(clusters)) for o in rows], dtype=int)
    if len(depths) < 3 or len(clusters) < 10:
        return None
    cells: dict[tuple[str, int], int] = {}
    cell = np.array([cells.setdefault((o.kind, o.length), len(cells)) for o in rows], dtype=int)
    d = np.array([o.depth for o in rows], dtype=float)
    # 4 (d - 1/2)² - 1 is 0 at both ends and -1 in the middle.
    x = np.stack([d, 4 * (d - 0.5) ** 2 - 1], axis=1)
    y = np.array([o.value for o in rows])
    counts = np.bincount(cell)
    x = x - np.stack([np.bincount(cell, x[:, k]) / counts for k in (0, 1)], axis=1)[cell]
    y = y - (np.bincount(cell, y) / counts)[cell]
    bread = np.linalg.pinv(x.T @ x)
    beta = bread @ x.T @ y
    scores = np.zeros((len(clusters), 2))
    np.add.at(scores, labels, x * (y - x @ beta)[:, None])
    correction = len(clusters) / (len(clusters) - 1)
    cov = correction * bread @ scores.T @ scores @ bread
    return _bias(beta, cov, len(rows), len(clusters), level)


def _bias(
    beta: np.ndarray, cov: np.ndarray, items: int, clusters: int, level: float
) -> PositionBias:
    from scipy import stats

    half = stats.t.ppf(0.5 + level / 2, clusters - 1) * np.sqrt(np.diag(cov))
    estimates = [
        Estimate(float(b), float(b - h), float(b + h), level, float(np.sqrt(c)), items, clusters,
                 "cluster-robust")
        for b, h, c in zip(beta, half, np.diag(cov), strict=True)
    ]  # fmt: skip
    wald = float(beta @ np.linalg.pinv(cov) @ beta)
    p_value = float(stats.f.sf(wald / 2, 2, clusters - 1)) if wald > 0 else 1.0
    return PositionBias(estimates[0], estimates[1], p_value)


def suspicious_rises(lengths: Mapping[int, Estimate]) -> list[str]:
    """Return a line for every longer length that scores above a shorter one, beyond both errors."""
    found = []
    ordered = sorted(lengths)
    for shorter, longer in itertools.pairwise(ordered):
        gap = lengths[longer].value - lengths[shorter].value
        error = math.hypot(lengths[longer].standard_error, lengths[shorter].standard_error)
        if error > 0 and gap > 2.6 * error:
            found.append(
                f"the score rises from {shorter} to {longer} tokens by {100 * gap:.0f} points: "
                f"check the shorter prompts before believing either"
            )
    return found


def observations_of(
    rows: Sequence[EvalRow], facts: Mapping[str, Mapping[str, JSON]], control: str = ""
) -> list[Observation]:
    """Return the scored tasks of the grid (``control`` empty) or of one control.

    A task's value is the mean over its scored samples.
    """
    grouped: dict[tuple[str, int], list[EvalRow]] = {}
    for row in rows:
        own = facts.get(row.domain, {})
        if row.value is not None and own.get("control", "") == control and own:
            grouped.setdefault((row.domain, row.index), []).append(row)
    found = []
    for (domain, index), group in grouped.items():
        own = facts[domain]
        depths = own["depths"]
        found.append(
            Observation(
                own["kind"],
                own["length"],
                depths[index % len(depths)] if own["has_depth"] else None,
                group[0].content_hash,
                sum(r.value for r in group if r.value is not None) / len(group),
            )
        )
    return found
