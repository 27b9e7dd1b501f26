"""What a run gained for what it spent: points a 1,000 rollouts, million tokens, hour, currency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from educe.core.protocols import MetricRow
from educe.core.types import JSON
from educe.observability.comparisons import DomainComparison, compare_domains
from educe.observability.run_reader import RunReader

_TRAINING = ("sft", "preference", "rejection", "distillation", "rl")


@dataclass(frozen=True, slots=True)
class Spending:
    """What training took, over all stages; evaluation is not counted.

    Attributes:
        rollouts: completions sampled for training.
        tokens: completion tokens sampled plus, in stages without rollouts, tokens trained on.
        hours: wall time of training steps.
        price_per_hour: currency an hour of the machine; 0 when none was given.
    """

    rollouts: float
    tokens: float
    hours: float
    price_per_hour: float = 0.0

    @property
    def cost(self) -> float:
        return self.hours * self.price_per_hour


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Gain of the mean held-out score over domains, in points (hundredths), and its rates.

    A rate is None where nothing of its kind was spent.
    """

    points: float
    num_domains: int
    spending: Spending

    @property
    def per_1000_rollouts(self) -> float | None:
        return _rate(self.points, self.spending.rollouts / 1000)

    @property
    def per_million_tokens(self) -> float | None:
        return _rate(self.points, self.spending.tokens / 1e6)

    @property
    def per_hour(self) -> float | None:
        return _rate(self.points, self.spending.hours)

    @property
    def per_currency(self) -> float | None:
        return _rate(self.points, self.spending.cost)

    def to_json(self) -> dict[str, JSON]:
        return {
            "points": self.points,
            "domains": self.num_domains,
            "rollouts": self.spending.rollouts,
            "tokens": self.spending.tokens,
            "hours": self.spending.hours,
            "cost": self.spending.cost,
            "points_per_1000_rollouts": self.per_1000_rollouts,
            "points_per_million_tokens": self.per_million_tokens,
            "points_per_hour": self.per_hour,
            "points_per_currency": self.per_currency,
        }


def run_efficiency(store: RunReader, price_per_hour: float | None = None) -> Efficiency | None:
    """Return what a run gained and spent; None before its evaluation has a before and an after.

    Args:
        price_per_hour: replaces the recipe's ``run.price_per_hour``.
    """
    compared = compare_domains(store.events("eval"))
    return efficiency_of(compared, spending_of(store, price_per_hour))


def efficiency_of(compared: Sequence[DomainComparison], spending: Spending) -> Efficiency | None:
    """Return the gain over domains scored before and after; None when there is none."""
    pairs = [
        (c.before.score, c.after.score)
        for c in compared
        if c.before is not None and c.before.score is not None and c.after.score is not None
    ]
    if not pairs:
        return None
    points = 100.0 * sum(after - before for before, after in pairs) / len(pairs)
    return Efficiency(points, len(pairs), spending)


def spending_of(store: RunReader, price_per_hour: float | None = None) -> Spending:
    """Return what the training stages of a run spent, steps done twice counted once."""
    if price_per_hour is None:
        price_per_hour = float(store.recipe.get("run", {}).get("price_per_hour", 0.0))
    rollouts = tokens = seconds = 0.0
    for row in store.metrics():
        kind = row.stage.partition("-")[0]
        if kind not in _TRAINING:
            continue
        seconds += row.wall_time_s
        if kind == "rl":
            rollouts += _rollouts(store, row)
            tokens += _value(row, "rollout_tokens", _value(row, "tokens", 0.0))
        else:
            tokens += _value(row, "trained_tokens", 0.0)
    return Spending(rollouts, tokens, seconds / 3600.0, price_per_hour)


def _rollouts(store: RunReader, row: MetricRow) -> float:
    """Return the completions of a step; a row that has only looks of a guard sampled none."""
    if _value(row, "tokens", None) is None:
        return 0.0
    planned = store.recipe.get("rl", {})
    size = float(planned.get("prompts", 0)) * float(planned.get("group_size", 0))
    # Runs of earlier versions took what was planned.
    return float(_value(row, "rollouts", size))


def _value(row: MetricRow, name: str, other: Any) -> Any:
    return row.values.get(f"{row.stage}/{name}", other)


def saving_text(store: RunReader) -> str:
    """Return what predicting tasks without signal saved; empty for runs that predict none."""
    newest: dict[str, float] = {}
    for row in store.metrics():
        if "mixture/groups_saved" in row.values:
            newest[row.stage] = row.values["mixture/groups_saved"]
    if not newest:
        return ""
    groups = sum(newest.values())
    rollouts = groups * float(store.recipe.get("rl", {}).get("group_size", 0))
    return f"{groups:.0f} groups ({rollouts:.0f} rollouts) predicted to teach nothing, not sampled"


def efficiency_text(found: Efficiency) -> str:
    """Return one line, e.g. for ``educe runs show``."""
    rates = [
        (found.per_1000_rollouts, "per 1,000 rollouts"),
        (found.per_million_tokens, "per million tokens"),
        (found.per_hour, "per hour"),
        (found.per_currency, "per unit of currency"),
    ]
    told = ", ".join(f"{rate:+.3g} {name}" for rate, name in rates if rate is not None)
    return f"{found.points:+.1f} points over {found.num_domains} domains: {told or 'nothing spent'}"


def _rate(points: float, amount: float) -> float | None:
    return points / amount if amount > 0 else None
