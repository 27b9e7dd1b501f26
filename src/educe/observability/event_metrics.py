"""Metrics that arrive inside events: looks at the goal, and evaluations."""

from __future__ import annotations

from collections.abc import Mapping

from educe.core.protocols import MetricRow
from educe.core.types import JSON
from educe.observability.comparisons import domain_scores
from educe.observability.metric_names import domain_metric


def evaluation_row(payload: Mapping[str, JSON]) -> MetricRow | None:
    """Return the per-domain scores of an ``eval`` event as metrics; None when it has none."""
    scores = domain_scores(payload)
    values = {domain_metric(d, "score"): s for d, s in scores.items() if s is not None}
    return MetricRow("eval", int(payload.get("step") or 0), values) if values else None


def goal_row(payload: Mapping[str, JSON]) -> MetricRow | None:
    """Return the screen scores of a ``goal`` event as metrics of the step that it followed.

    The event counts steps done (from 1), metrics count steps from 0.
    """
    scores = payload.get("scores")
    if not isinstance(scores, Mapping) or not scores:
        return None
    stage, step = str(payload.get("stage", "rl")), int(payload["step"]) - 1
    values = {domain_metric(d, "screen_score"): float(s) for d, s in scores.items()}
    return MetricRow(
        stage, step, {f"{stage}/screen_score": sum(values.values()) / len(values), **values}
    )
