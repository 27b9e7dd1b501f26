"""Does training carry over: to families that were never trained, and between those trained jointly?

The joint run against runs on one domain each says whether domains help or hinder each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.compare import Comparison, compare
from educe.evaluation.records import EvalResult
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


def joint_against_single(
    joint: EvalResult,
    singles: Mapping[str, EvalResult],
    tokens: Mapping[str, tuple[int, int]],
    *,
    tolerance: float = 0.1,
) -> Comparison:
    """Compare a run on many domains with runs on one domain each, at equal tokens a domain.

    "Before" is each domain by its own run, "after" all of them by the joint run, paired by task;
    better means that the other domains helped.

    Args:
        singles: the evaluation of each domain's own run, by domain.
        tokens: what the domain was trained on, (in its own run, in the joint run).
        tolerance: by how much these may differ, as a share of the larger.

    Raises:
        EduceError: unequal tokens, a domain without rows or tokens, other tasks or settings.
    """
    if not singles:
        raise EduceError("joint_against_single needs at least one domain's own run")
    for name, single in singles.items():
        if name not in single.domains or name not in joint.domains or name not in tokens:
            raise EduceError(f"{name}: expected rows of its own and of the joint run, and tokens")
        own, shared = tokens[name]
        if min(own, shared) <= 0 or abs(own - shared) > tolerance * max(own, shared):
            raise EduceError(
                f"{name}: {own} tokens in its own run and {shared} in the joint one; only runs of "
                f"equal tokens (within {tolerance:.0%}) tell whether domains help each other"
            )
        compare(_only(single, name), _only(joint, name))  # refuses other tasks and settings
    first = next(iter(singles.values()))
    rows = [r for name in sorted(singles) for r in singles[name].rows_in(name)]
    apart = replace(
        first,
        label="each domain alone",
        rows=tuple(rows),
        floors={n: s.floors.get(n, 0.0) for n, s in singles.items()},
        kinds={n: s.kinds.get(n, "") for n, s in singles.items()},
        notes=tuple(dict.fromkeys(note for s in singles.values() for note in s.notes)),
    )
    kept = replace(joint, rows=tuple(r for r in joint.rows if r.domain in singles))
    return compare(apart, kept)


def _only(result: EvalResult, name: str) -> EvalResult:
    return replace(result, rows=tuple(result.rows_in(name)))
