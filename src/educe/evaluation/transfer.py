"""Does training carry over? The gain on families that were never trained, beside the others'."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from educe.core.types import JSON
from educe.evaluation.compare import Comparison
from educe.evaluation.statistics import Estimate, macro_difference, mean_estimate


@dataclass(frozen=True, slots=True)
class TransferGain:
    """Paired gains, macro-averaged.

    Attributes:
        trained: over domains of trained families; None where there are none.
        untrained: over domains of untrained families; the interval is about *these* domains.
        new_families: the same mean with an interval over families as the sampled unit: what a
            family nobody has looked at may expect. None with a single untrained family.
    """

    trained: Estimate | None
    untrained: Estimate
    new_families: Estimate | None
    num_untrained_families: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "trained": None if self.trained is None else self.trained.to_json(),
            "untrained": self.untrained.to_json(),
            "new_families": None if self.new_families is None else self.new_families.to_json(),
            "num_untrained_families": self.num_untrained_families,
        }


def transfer_gain(
    comparison: Comparison, families: Mapping[str, str], trained_families: Collection[str]
) -> TransferGain:
    """Return the gains on trained and untrained families.

    Args:
        families: family of every compared domain. Levels of one generator are one family: a harder
            level of a trained family is not a new skill.
        trained_families: families of which any domain was trained.

    Raises ValueError where every family was trained.
    """
    found = [
        (families[d.domain], d.difference) for d in comparison.domains if d.difference is not None
    ]
    inside = [d for family, d in found if family in trained_families]
    outside = [(family, d) for family, d in found if family not in trained_families]
    if not outside:
        raise ValueError("every family was trained; transfer needs families that were not")
    names = [family for family, _ in outside]
    count = len(set(names))
    values = [d.estimate.value for _, d in outside]
    over_families = mean_estimate(values, names, level=comparison.level)
    return TransferGain(
        macro_difference(inside) if inside else None,
        macro_difference([d for _, d in outside]),
        over_families if count > 1 else None,
        count,
    )
