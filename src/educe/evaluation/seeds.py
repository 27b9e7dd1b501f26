"""Several training seeds of one recipe: each seed's own gain, and the gain of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.evaluation.compare import Comparison, compare
from educe.evaluation.records import EvalResult
from educe.evaluation.statistics import Estimate, mean_estimate
from educe.evaluation.summary import pool_seeds


@dataclass(frozen=True, slots=True)
class SeedStudy:
    """What several seeds say together.

    Attributes:
        by_seed: one comparison a seed.
        pooled: all seeds' samples on the same tasks; its interval speaks of new tasks, given these
            seeds.
        between_seeds: mean of the seeds' macro differences with a t interval over seeds; its
            interval speaks of new seeds, given these tasks. Wide with three; None with one.
    """

    by_seed: tuple[Comparison, ...]
    pooled: Comparison
    between_seeds: Estimate | None

    @property
    def is_pooled_above_zero(self) -> bool:
        """Whether the pooled paired interval of the macro difference lies above zero."""
        macro = self.pooled.macro_difference
        return macro is not None and macro.low > 0

    @property
    def is_every_seed_above_zero(self) -> bool:
        """Whether each seed's own macro difference is positive."""
        macros = [c.macro_difference for c in self.by_seed]
        return all(m is not None and m.value > 0 for m in macros)

    def to_json(self) -> dict[str, JSON]:
        seeds = [c.macro_difference for c in self.by_seed]
        return {
            "by_seed": [None if m is None else m.to_json() for m in seeds],
            "pooled": self.pooled.to_json(),
            "between_seeds": None if self.between_seeds is None else self.between_seeds.to_json(),
            "pooled_above_zero": self.is_pooled_above_zero,
            "every_seed_above_zero": self.is_every_seed_above_zero,
        }


def compare_seeds(
    pairs: Sequence[tuple[EvalResult, EvalResult]], *, level: float = 0.95
) -> SeedStudy:
    """Compare (before, after) of every seed, alone and pooled. All on the same tasks.

    Raises ValueError without pairs or with other tasks in some.
    """
    before = pool_seeds([b for b, _ in pairs], pairs[0][0].label if pairs else "")
    after = pool_seeds([a for _, a in pairs], pairs[0][1].label)
    by_seed = tuple(compare(b, a, level=level) for b, a in pairs)
    macros = [c.macro_difference.value for c in by_seed if c.macro_difference is not None]
    between = mean_estimate(macros, level=level) if len(macros) > 1 else None
    return SeedStudy(by_seed, compare(before, after, level=level), between)
